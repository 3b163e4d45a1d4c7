"""Tiny GGUF files in every stored form: kept integers give the logits of expanded weights."""

from pathlib import Path

import gguf
import pytest
import torch
from one_sequence import OneSequence
from tiny_checkpoints import make_llama_of_blocks, write_gguf
from torch import Tensor

import ir_core as ir
from serve_shim.loading import LoadedModel, load_model, quantization

_IDS = torch.randint(0, 96, (24,), generator=torch.Generator().manual_seed(4)).tolist()
_TYPES = gguf.GGMLQuantizationType
_OPS = ("linear", "linear_w4a16", "linear_w8a16", "embedding", "embedding_w8a16")
_EVERY_FORM = {
    "q4_0": ({"weight": _TYPES.Q4_0}, {"w4a16": 12, "w8a16": 1}),
    "q4_1": ({"weight": _TYPES.Q4_1}, {"w4a16 with minimum": 13, "dense": 1}),
    "q5_0": ({"weight": _TYPES.Q5_0}, {"w8a16": 13}),
    "q8_0": ({"weight": _TYPES.Q8_0}, {"w8a16": 13}),
    "q4_1, q8_0 table": (
        {"weight": _TYPES.Q4_1, "token_embd": _TYPES.Q8_0},
        {"w4a16 with minimum": 12, "w8a16": 1},
    ),
    "mixed bytes": ({"weight": _TYPES.Q8_0, "attn_k": _TYPES.Q5_0}, {"w8a16": 13}),
    "q4_0 with bytes": (
        {"weight": _TYPES.Q4_0, "attn_v": _TYPES.Q8_0},
        {"w4a16": 9, "w8a16": 4},
    ),
    "parts disagree": (
        {"weight": _TYPES.Q8_0, "attn_q": _TYPES.Q4_1, "ffn_down": _TYPES.Q5_1},
        {"w8a16": 7, "dense": 6},
    ),
}


@pytest.fixture(autouse=True)
def any_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers are kept though this machine may have no other implementation than native."""
    monkeypatch.setattr(quantization, "_has_kernel", lambda form: True)


def _write(path: Path, formats: dict[str, gguf.GGMLQuantizationType], *, tied: bool) -> str:
    model = make_llama_of_blocks(tie_word_embeddings=tied)
    write_gguf(model, path / "model.gguf", "llama", formats)
    return str(path / "model.gguf")


def _logits(loaded: LoadedModel) -> Tensor:
    sequence = OneSequence(loaded.model)
    return torch.cat([sequence.step(_IDS[:9]), sequence.step(_IDS[9:10]), sequence.step(_IDS[10:])])


@pytest.mark.parametrize("name", _EVERY_FORM)
def test_kept_integers_compute_what_expanded_weights_do(name: str, tmp_path: Path) -> None:
    formats, forms = _EVERY_FORM[name]
    path = _write(tmp_path, formats, tied=True)
    kept = load_model(path, dtype=torch.bfloat16)
    expanded = load_model(path, dtype=torch.bfloat16, quantization="none")
    assert kept.load_report["forms"] == forms
    assert expanded.load_report["forms"] == {"dense": 13}
    # Native reads every layout, and rounds each value to the dtype as expanding does.
    with ir.priority({op: ["native"] for op in _OPS}):
        assert torch.equal(_logits(kept), _logits(expanded))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", _EVERY_FORM)
def test_default_kernels_stay_near_the_float32_oracle(
    name: str, tied: bool, tmp_path: Path
) -> None:
    path = _write(tmp_path, _EVERY_FORM[name][0], tied=tied)
    exact = _logits(load_model(path, dtype=torch.float32))
    for dtype, tolerance in ((torch.bfloat16, 0.06), (torch.float16, 0.006)):
        kept = load_model(path, dtype=dtype)
        assert kept.load_report["forms"] != {"dense": 14 - tied}
        assert kept.model.dtype is dtype
        error = (_logits(kept).float() - exact).square().mean().sqrt()
        assert error < tolerance * exact.square().mean().sqrt()


def test_float32_expands_and_says_so(tmp_path: Path) -> None:
    path = _write(tmp_path, {"weight": _TYPES.Q4_0}, tied=False)
    report = load_model(path, dtype=torch.float32).load_report
    assert report["forms"] == {"dense": 14}
    assert report["quantization_reason"] == "float32 computes with expanded weights"


def test_expanded_matrices_are_counted_by_their_reason(tmp_path: Path) -> None:
    path = _write(tmp_path, _EVERY_FORM["parts disagree"][0], tied=True)
    assert load_model(path, dtype=torch.bfloat16).load_report["expanded"] == {
        "its parts are stored as Q4_1 and Q8_0, which no one form holds": 3,
        "stored as Q5_1, which no form holds": 3,
    }


def test_table_and_head_of_different_forms_are_read_from_one_tensor(tmp_path: Path) -> None:
    model = load_model(
        _write(tmp_path, {"weight": _TYPES.Q4_1}, tied=True), dtype=torch.bfloat16
    ).model
    assert model.lm_head is not model.embedding
    x = torch.eye(64, dtype=torch.bfloat16)
    # Near zero, a value and its minimum cancel: the head need not round it as the table does.
    torch.testing.assert_close(
        model.lm_head(x).T, model.embedding.embed(torch.arange(96)), atol=1e-3, rtol=1.6e-2
    )
