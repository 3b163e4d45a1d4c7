"""Owns how text is cut before byte-pair merging, by GGUF's name for it; refuses unknown names."""

from tokenizers import Regex, normalizers, pre_tokenizers

from serve_shim.errors import TokenizerError

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = ("gpt-2", "gpt2")
_SMOLLM = ("smollm", "smollm2")
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
_QWEN2 = ("qwen2", "qwen2.5", "deepseek-r1-qwen")


def pre_tokenizer_of(name: str, where: str) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer that GGUF calls `name`; raises `TokenizerError` for others."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _GPT2:
        return byte_level
    if name in _SMOLLM:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level])
    if name in _LLAMA3 + _QWEN2:
        pattern = _WORDS.format(digits="{1,3}" if name in _LLAMA3 else "")
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, plain])
    supported = ", ".join(_GPT2[:1] + _SMOLLM[:1] + _LLAMA3[:1] + _QWEN2[:1])
    raise TokenizerError(
        f"{where}: `tokenizer.ggml.pre` is {name!r:.80}, which is not supported; "
        f"supported: {supported}"
    )


def normalizer_of(name: str) -> normalizers.Normalizer | None:
    """Return the normalizer that belongs to `name`, None for most."""
    return normalizers.NFC() if name in _QWEN2 else None


def adds_bos_by_default(name: str) -> bool:
    """Return whether files that say nothing about it mean a beginning-of-sequence token."""
    return name in _LLAMA3


def ignores_merges(name: str) -> bool:
    """Return whether a word that is in the vocabulary is one token whatever the merges say."""
    return name in _LLAMA3
