"""Families are found by either format's name; names are unique; others are refused."""

import pytest

from serve_shim.errors import ModelLoadError
from serve_shim.models import FAMILIES, find_family, find_gguf_family


def test_every_family_is_found_by_its_names() -> None:
    for family in FAMILIES:
        assert find_family(["Other", family.architecture], "x") is family
        if family.gguf_architecture is not None:
            assert find_gguf_family(family.gguf_architecture, "x") is family


def test_names_are_unique() -> None:
    names = [family.architecture for family in FAMILIES]
    gguf_names = [f.gguf_architecture for f in FAMILIES if f.gguf_architecture is not None]
    assert len(set(names)) == len(names)
    assert len(set(gguf_names)) == len(gguf_names)


def test_unknown_names_list_the_supported_ones() -> None:
    with pytest.raises(ModelLoadError, match=r"^config: architecture `Gemma` .*LlamaForCausalLM"):
        find_family(["Gemma"], "config")
    with pytest.raises(ModelLoadError, match="supported: llama, qwen2, qwen3"):
        find_gguf_family("falcon", "file")
    with pytest.raises(ModelLoadError, match="close to `Qwen2ForCausalLM`"):
        find_family(["Qwen2MoeForCausalLM"], "config")
