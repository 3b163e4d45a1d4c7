"""Owns building a Tokenizer from a Hugging Face directory; refuses remote code and slow formats."""

from collections.abc import Mapping
from pathlib import Path

import tokenizers

from serve_shim.errors import TokenizerError
from serve_shim.models.fields import Fields
from serve_shim.models.json_file import read_json_object
from serve_shim.tokenization.tokenizer import Tokenizer

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_OTHER_FORMATS = ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


def hf_tokenizer(directory: Path) -> Tokenizer | None:
    """Return the tokenizer of `directory`, None where it holds no tokenizer at all.

    Reads tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises `TokenizerError`
    for damaged files, for `auto_map`, and where only a format needing conversion is there.
    """
    path = directory / "tokenizer.json"
    config = _read_config(directory / "tokenizer_config.json")
    if not path.is_file():
        _refuse_other_formats(directory)
        return None
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        # The library raises bare `Exception` for whatever is wrong with the file.
        raise TokenizerError(f"{path}: cannot be read: {str(error)[:300]}") from error
    backend.no_truncation()
    backend.no_padding()
    return Tokenizer(
        backend,
        special_tokens=_special_tokens(config),
        where=str(directory),
        add_bos=config.boolean("add_bos_token", False),
        chat_template=_find_template(directory, config),
    )


def _read_config(path: Path) -> Fields:
    if not path.is_file():
        return Fields({}, str(path))
    config = read_json_object(path)
    if config.has("auto_map"):
        raise TokenizerError(
            f"{path}: `auto_map` wants the checkpoint's own Python code run, which is never done; "
            "use a checkpoint with a tokenizer.json of a built-in kind"
        )
    return config


def _refuse_other_formats(directory: Path) -> None:
    found = [name for name in _OTHER_FORMATS if (directory / name).is_file()]
    if found:
        raise TokenizerError(
            f"{directory}: {', '.join(found)} but no tokenizer.json; convert the tokenizer to the "
            "`tokenizers` format (save it once with a fast tokenizer)"
        )


def _special_tokens(config: Fields) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = config.values.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _find_template(directory: Path, config: Fields) -> str | Mapping[str, str] | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: cannot be read: {error}") from error
    value = config.values.get("chat_template")
    if not isinstance(value, list):
        return config.text("chat_template") if value is not None else None
    named = {
        entry["name"]: entry["template"]
        for entry in value
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }
    if len(named) != len(value):
        raise TokenizerError(f"{config.where}: `chat_template` entries need `name` and `template`")
    return named
