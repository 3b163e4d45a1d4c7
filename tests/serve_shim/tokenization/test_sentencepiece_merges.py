"""The written-out merge list gives what SentencePiece's own rule gives."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from serve_shim.tokenization.sentencepiece_merges import merges_from_scores

_ALPHABET = "abc"


def _merge_best_scored(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece: merge the leftmost pair that makes the best-scored piece, until none does."""
    parts = list(text)
    while True:
        pairs = [
            (-scores[left + right], index)
            for index, (left, right) in enumerate(pairwise(parts))
            if left + right in scores
        ]
        if not pairs:
            return parts
        _, index = min(pairs)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]


@given(
    st.lists(st.text(_ALPHABET, min_size=2, max_size=5), unique=True, max_size=12),
    st.text(_ALPHABET, max_size=24),
)
@settings(deadline=None, max_examples=200)
def test_merge_list_follows_the_scores(pieces: list[str], text: str) -> None:
    tokens = [*_ALPHABET, *pieces]
    scores = [-float(index) for index in range(len(tokens))]
    merges = merges_from_scores(tokens, scores)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    assert backend.encode(text).tokens == _merge_best_scored(
        text, dict(zip(tokens, scores, strict=True))
    )


def test_token_without_parts_gives_no_merge() -> None:
    assert merges_from_scores(["a", "xyz"], [0.0, 1.0]) == []
