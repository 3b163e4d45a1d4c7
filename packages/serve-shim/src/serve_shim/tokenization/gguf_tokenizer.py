"""Owns building a Tokenizer from GGUF metadata; refuses models other than gpt2 and llama."""

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from serve_shim.errors import TokenizerError
from serve_shim.models.fields import Fields
from serve_shim.tokenization.pre_tokenizers import (
    adds_bos_by_default,
    ignores_merges,
    normalizer_of,
    pre_tokenizer_of,
)
from serve_shim.tokenization.sentencepiece_merges import merges_from_scores
from serve_shim.tokenization.tokenizer import Tokenizer

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4
_SPECIAL_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def gguf_tokenizer(metadata: Fields) -> Tokenizer | None:
    """Return the tokenizer in `metadata`, None where there is none.

    Raises `TokenizerError` for kinds that are not supported or data that does not fit together.
    """
    if not metadata.has(f"{_PREFIX}model"):
        return None
    kind = metadata.text(f"{_PREFIX}model")
    if kind not in ("gpt2", "llama"):
        raise TokenizerError(
            f"{metadata.where}: `{_PREFIX}model` is {kind!r:.80}; supported: gpt2, llama"
        )
    tokens = metadata.texts(f"{_PREFIX}tokens")
    if len(set(tokens)) != len(tokens):
        raise TokenizerError(f"{metadata.where}: `{_PREFIX}tokens` holds a token twice")
    backend, adds_bos = (
        _byte_level(metadata, tokens) if kind == "gpt2" else _sentencepiece(metadata, tokens)
    )
    _add_special_tokens(backend, metadata, tokens)
    return Tokenizer(
        backend,
        special_tokens=_special_tokens(metadata, tokens),
        where=metadata.where,
        add_bos=metadata.boolean(f"{_PREFIX}add_bos_token", adds_bos),
        chat_template=metadata.text("tokenizer.chat_template")
        if metadata.has("tokenizer.chat_template")
        else None,
    )


def _byte_level(metadata: Fields, tokens: Sequence[str]) -> tuple[tokenizers.Tokenizer, bool]:
    name = metadata.text(f"{_PREFIX}pre", "gpt-2")
    merges = [_split_merge(metadata, merge) for merge in metadata.texts(f"{_PREFIX}merges")]
    model = _build_bpe(metadata, tokens, merges, ignore_merges=ignores_merges(name))
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizer_of(name, metadata.where)
    normalizer = normalizer_of(name)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    return backend, adds_bos_by_default(name)


def _sentencepiece(metadata: Fields, tokens: Sequence[str]) -> tuple[tokenizers.Tokenizer, bool]:
    scores = metadata.values.get(f"{_PREFIX}scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise TokenizerError(f"{metadata.where}: `{_PREFIX}scores` must have one for each token")
    unknown = metadata.integer(f"{_PREFIX}unknown_token_id", 0, minimum=0)
    model = _build_bpe(
        metadata,
        tokens,
        merges_from_scores(tokens, scores),
        unk_token=tokens[unknown] if unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "\u2581")]
    trim: list[decoders.Decoder] = []
    if metadata.boolean(f"{_PREFIX}add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("\u2581"))
        trim = [decoders.Strip(" ", 1, 0)]
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *trim]
    )
    return backend, True


def _build_bpe(
    metadata: Fields, tokens: Sequence[str], merges: list[tuple[str, str]], **options: object
) -> models.BPE:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        return models.BPE(vocab=vocabulary, merges=merges, **options)
    except Exception as error:
        # The library raises bare `Exception`, for example for a merge of unknown tokens.
        raise TokenizerError(f"{metadata.where}: tokenizer: {str(error)[:300]}") from error


def _split_merge(metadata: Fields, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space:
        raise TokenizerError(f"{metadata.where}: `{_PREFIX}merges` has {merge!r:.80}, not a pair")
    return left, right


def _add_special_tokens(
    backend: tokenizers.Tokenizer, metadata: Fields, tokens: Sequence[str]
) -> None:
    kinds = metadata.values.get(f"{_PREFIX}token_type")
    if kinds is None:
        return
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise TokenizerError(
            f"{metadata.where}: `{_PREFIX}token_type` must have one for each token"
        )
    for kind, is_special in ((_CONTROL, True), (_USER_DEFINED, False)):
        found = [token for token, own in zip(tokens, kinds, strict=True) if own == kind and token]
        backend.add_tokens(
            [AddedToken(token, special=is_special, normalized=False) for token in found]
        )


def _special_tokens(metadata: Fields, tokens: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, key in _SPECIAL_NAMES.items():
        if metadata.has(_PREFIX + key):
            index = metadata.integer(_PREFIX + key, minimum=0, maximum=len(tokens) - 1)
            found[name] = tokens[index]
    return found
