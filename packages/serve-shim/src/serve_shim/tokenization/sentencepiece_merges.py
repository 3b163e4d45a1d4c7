"""Owns the merge order of a SentencePiece byte-pair vocabulary."""

from collections.abc import Sequence


def merges_from_scores(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every way to make a token from two others, best score first.

    SentencePiece merges whichever pair makes the best-scored token; written out as a merge list
    that is the same order. Ties go to the pair whose parts come first in the vocabulary.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-score, left, right))
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, left, right in ranked]
