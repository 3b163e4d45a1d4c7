"""Tokenizers from a Hugging Face directory, and the files that are refused."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from serve_shim.errors import ModelLoadError, TokenizerError
from serve_shim.tokenization import hf_tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tokens = ["<s>", "</s>", "a", "b", "ab", "Ġ"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    _write_config(tmp_path, bos_token={"content": "<s>"}, eos_token="</s>")
    return tmp_path


def _write_config(directory: Path, **values: object) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps(values), encoding="utf-8")


def test_directory_gives_ids_and_special_tokens(directory: Path) -> None:
    tokenizer = hf_tokenizer(directory)
    assert tokenizer is not None
    # Saved truncation and padding are for training and would cut prompts.
    assert tokenizer.encode("ab ab</s>") == [0, 4, 5, 4, 1]
    assert tokenizer.encode("ab", add_special_tokens=False) == [4]
    assert tokenizer.eos_ids == (1,)
    assert not tokenizer.has_chat_template


def test_no_tokenizer_files_is_none(tmp_path: Path) -> None:
    assert hf_tokenizer(tmp_path) is None


def test_chat_template_file_wins_over_the_config(directory: Path) -> None:
    _write_config(directory, chat_template="config")
    tokenizer = hf_tokenizer(directory)
    assert tokenizer is not None
    assert tokenizer.apply_chat_template([]) == "config"
    (directory / "chat_template.jinja").write_text("file", encoding="utf-8")
    tokenizer = hf_tokenizer(directory)
    assert tokenizer is not None
    assert tokenizer.apply_chat_template([]) == "file"


def test_named_chat_templates_are_read(directory: Path) -> None:
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]
    _write_config(directory, chat_template=named)
    tokenizer = hf_tokenizer(directory)
    assert tokenizer is not None
    assert tokenizer.apply_chat_template([], tools=[{"name": "f"}]) == "tools"


def test_add_bos_is_honoured_where_the_pipeline_lacks_it(directory: Path) -> None:
    data = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    data["post_processor"] = None
    (directory / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    _write_config(directory, bos_token="<s>", add_bos_token=True)
    tokenizer = hf_tokenizer(directory)
    assert tokenizer is not None
    assert tokenizer.encode("ab") == [0, 4]


def test_remote_code_is_refused_even_without_tokenizer_json(tmp_path: Path) -> None:
    _write_config(tmp_path, auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})
    with pytest.raises(TokenizerError, match=r"`auto_map`.*never done"):
        hf_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
def test_formats_that_need_conversion_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(TokenizerError, match=rf"{name} but no tokenizer.json; convert"):
        hf_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {"type": "Nonsense"}}'])
def test_damaged_tokenizer_json_is_refused(directory: Path, text: str) -> None:
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer.json: cannot be read"):
        hf_tokenizer(directory)


def test_unknown_decoder_is_refused(directory: Path) -> None:
    data = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    data["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (directory / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(TokenizerError, match="decoder WordPiece is not supported"):
        hf_tokenizer(directory)


@pytest.mark.parametrize("value", [{"add_bos_token": "yes"}, {"chat_template": 3}])
def test_config_of_wrong_types_is_refused(directory: Path, value: dict[str, object]) -> None:
    _write_config(directory, **value)
    with pytest.raises(ModelLoadError, match=r"tokenizer_config.json: `"):
        hf_tokenizer(directory)


def test_chat_template_list_needs_names(directory: Path) -> None:
    _write_config(directory, chat_template=[{"template": "x"}])
    with pytest.raises(TokenizerError, match="need `name` and `template`"):
        hf_tokenizer(directory)
