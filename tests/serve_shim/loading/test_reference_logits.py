"""Whole models against transformers: prefill, prefill in chunks, and decoding token by token."""

from pathlib import Path

import pytest
import torch
from one_sequence import OneSequence
from tiny_checkpoints import MAKERS, make_model, write_gguf

import ir_core as ir
from serve_shim.loading import load_model

_IDS = torch.randint(0, 96, (40,), generator=torch.Generator().manual_seed(3)).tolist()
_GGUF = {
    "llama": "llama",
    "llama_llama3_rope": "llama",
    "llama_biases_tied": "llama",
    "qwen3_tied": "qwen3",
}


@pytest.fixture(scope="module", params=sorted(MAKERS))
def reference(request: pytest.FixtureRequest) -> tuple[str, torch.Tensor, Path]:
    name: str = request.param
    tmp: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    model = make_model(name)
    directory = tmp.mktemp(name)
    model.save_pretrained(directory)
    if name in _GGUF:
        write_gguf(model, directory / "model.gguf", _GGUF[name])
    with torch.inference_mode():
        logits = model(torch.tensor([_IDS])).logits[0]
    return name, logits, directory


def _worst(path: Path, expected: torch.Tensor, chunks: list[int]) -> float:
    loaded = load_model(str(path), dtype=torch.float32)
    sequence = OneSequence(loaded.model)
    found = torch.cat([sequence.step(part.tolist()) for part in torch.tensor(_IDS).split(chunks)])
    return (found - expected).abs().max().item()


@pytest.mark.parametrize(
    "chunks", [[40], [1] * 40, [13, 1, 1, 25]], ids=["prefill", "decode", "chunked"]
)
def test_safetensors_logits_equal_transformers(
    reference: tuple[str, torch.Tensor, Path], chunks: list[int]
) -> None:
    _, expected, directory = reference
    assert expected.abs().max() > 1
    assert _worst(directory, expected, chunks) < 1e-4


@pytest.mark.parametrize("reference", sorted(_GGUF), indirect=True)
def test_gguf_logits_equal_transformers(reference: tuple[str, torch.Tensor, Path]) -> None:
    _, expected, directory = reference
    assert _worst(directory / "model.gguf", expected, [30, 1, 9]) < 1e-4


def test_qwen2_gguf_has_biases_and_unpermuted_rows(tmp_path: Path) -> None:
    model = make_model("qwen2_window")
    model.config.layer_types = ["full_attention"] * 3
    for layer in model.get_submodule("model.layers").children():
        layer.get_submodule("self_attn").sliding_window = None  # type: ignore[assignment]
        layer.attention_type = "full_attention"  # type: ignore[assignment]
    write_gguf(model, tmp_path / "model.gguf", "qwen2")
    with torch.inference_mode():
        expected = model(torch.tensor([_IDS])).logits[0]
    assert _worst(tmp_path / "model.gguf", expected, [40]) < 1e-4


def test_model_uses_no_tensor_after_donating_it(tmp_path: Path) -> None:
    make_model("qwen3_tied").save_pretrained(tmp_path)
    with ir.check_donations():
        sequence = OneSequence(load_model(str(tmp_path), dtype=torch.float32).model)
        checked = sequence.step(_IDS)
    sequence = OneSequence(load_model(str(tmp_path), dtype=torch.float32).model)
    torch.testing.assert_close(checked, sequence.step(_IDS))
