"""Which matrices stay in the integers they are stored in, and what is said of the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ir_core as ir
from serve_shim.errors import ModelLoadError
from serve_shim.loading import quantization
from serve_shim.loading.checkpoint import StoredFormat
from serve_shim.loading.quantization import FormChoice, choose_forms
from serve_shim.models.weight_form import W4A16, W4A16_MINIMUM, W8A16, WeightForm
from serve_shim.models.weight_slots import WeightSlot


@pytest.fixture
def any_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice does not depend on which kernels this machine has."""
    monkeypatch.setattr(quantization, "_has_kernel", lambda form: True)


_FORMATS = {
    "BF16": StoredFormat("BF16"),
    "Q4_0": StoredFormat("Q4_0", True, (W4A16, W8A16)),
    "Q4_1": StoredFormat("Q4_1", True, (W4A16_MINIMUM,)),
    "Q8_0": StoredFormat("Q8_0", True, (W8A16,)),
    "Q6_K": StoredFormat("Q6_K", True),
}
_SLOTS = [
    WeightSlot("embedding", (64, 32), "embedding.weight"),
    WeightSlot("norm", (32,), "norm.weight"),
    WeightSlot("q", (32, 32), "qkv_proj.weight"),
    WeightSlot("q.bias", (32,), "qkv_proj.bias"),
    WeightSlot("k", (32, 32), "qkv_proj.weight", 32),
    WeightSlot("down", (32, 64), "down_proj.weight"),
]
_HEAD = WeightSlot("head", (64, 32), "lm_head.weight")


@dataclass
class _Stored:
    """The only facts of a checkpoint that the choice may rest on."""

    formats: Mapping[str, str]
    is_tied: bool = True
    config: Any = field(init=False)

    def __post_init__(self) -> None:
        self.config = SimpleNamespace(tie_word_embeddings=self.is_tied)

    def stored_format(self, name: str) -> StoredFormat:
        return _FORMATS[self.formats[name]]


def _choose(*formats: str, dtype: torch.dtype = torch.bfloat16, method: str = "auto") -> FormChoice:
    """The choice for an embedding, q, k, down and, if it has a format of its own, a head."""
    names = ("embedding", "q", "k", "down", "head")[: len(formats)]
    stored: Any = _Stored(dict(zip(names, formats, strict=True)), is_tied=len(formats) == 4)
    slots = [*_SLOTS, _HEAD] if len(formats) == 5 else _SLOTS
    return choose_forms(method, dtype, slots, stored)


@pytest.mark.usefixtures("any_kernel")
@pytest.mark.parametrize(
    ("formats", "forms"),
    [
        ("Q8_0 Q4_1 Q4_1 Q4_1", (W8A16, W4A16_MINIMUM, W4A16_MINIMUM)),
        ("Q8_0 Q4_0 Q4_0 Q4_1", (W8A16, W4A16, W4A16_MINIMUM)),
        ("Q4_0 Q8_0 Q8_0 Q4_0", (W8A16, W8A16, W4A16)),
        ("Q8_0 Q4_0 Q8_0 Q8_0", (W8A16, W8A16, W8A16)),
    ],
)
def test_parts_that_share_a_form_stay_as_stored(
    formats: str, forms: tuple[WeightForm, ...]
) -> None:
    choice = _choose(*formats.split())
    assert choice.forms == dict(zip(("embedding", "qkv_proj", "down_proj"), forms, strict=True))
    assert choice.reason == "kept as stored"
    assert not choice.expanded


@pytest.mark.usefixtures("any_kernel")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_both_dtypes_of_16_bits_keep_integers(dtype: torch.dtype) -> None:
    assert len(_choose("Q8_0", "Q4_1", "Q4_1", "Q4_1", dtype=dtype).forms) == 3


@pytest.mark.usefixtures("any_kernel")
def test_parts_that_share_no_form_are_expanded_with_the_reason() -> None:
    choice = _choose("Q8_0", "Q4_1", "Q4_0", "Q6_K")
    assert choice.forms == {"embedding": W8A16}
    assert choice.expanded == {
        "qkv_proj": "its parts are stored as Q4_0 and Q4_1, which no one form holds",
        "down_proj": "stored as Q6_K, which no form holds",
    }
    assert _choose("Q8_0", "Q4_1", "BF16", "Q4_1").expanded == {
        "qkv_proj": "stored as BF16 and Q4_1, which no form holds"
    }


@pytest.mark.usefixtures("any_kernel")
def test_table_whose_rows_cannot_be_looked_up_gets_a_head_of_its_own() -> None:
    tied = _choose("Q4_1", "Q4_1", "Q4_1", "Q4_1")
    assert "embedding" not in tied.forms
    assert tied.forms["lm_head"] == W4A16_MINIMUM
    assert "no op looks up rows of w4a16" in tied.expanded["embedding"]


@pytest.mark.usefixtures("any_kernel")
def test_separate_head_is_a_matrix_like_others() -> None:
    untied = _choose("Q4_1", "Q4_1", "Q4_1", "Q4_1", "Q8_0")
    assert untied.forms["lm_head"] == W8A16
    assert "embedding" in untied.expanded
    assert "lm_head" not in _choose("Q4_1", "Q4_1", "Q4_1", "Q4_1", "Q6_K").forms


@pytest.mark.usefixtures("any_kernel")
@pytest.mark.parametrize(
    ("method", "dtype", "format_name", "reason"),
    [
        ("none", torch.bfloat16, "Q4_1", "asked for"),
        ("auto", torch.float32, "Q4_1", "float32 computes with expanded weights"),
        ("auto", torch.bfloat16, "BF16", "the checkpoint is not quantised"),
        ("none", torch.bfloat16, "BF16", "the checkpoint is not quantised"),
        ("auto", torch.bfloat16, "Q6_K", "nothing can be kept"),
    ],
)
def test_everything_is_dense_with_the_reason(
    method: str, dtype: torch.dtype, format_name: str, reason: str
) -> None:
    choice = _choose(*[format_name] * 4, dtype=dtype, method=method)
    assert choice.forms == {}
    assert choice.reason == reason


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """An implementation of each product that stands for a machine's kernels."""
    for op in (ir.ops.linear_w4a16, ir.ops.linear_w8a16):
        kernel = replace(op.native, provider="kernel")
        monkeypatch.setattr(op, "_implementations", {"native": op.native, "kernel": kernel})


@pytest.mark.usefixtures("with_kernels")
def test_weights_that_only_native_would_read_are_expanded() -> None:
    only_native = {"linear_w8a16": ["native"]}
    with ir.priority({"linear_w4a16": ["kernel"]}), ir.priority(only_native):
        choice = _choose("Q8_0", "Q4_0", "Q4_0", "Q8_0")
    assert choice.forms == {"qkv_proj": W4A16}
    assert choice.expanded["down_proj"] == (
        "stored as Q8_0, and `linear_w8a16` would run on native, which expands them at each call"
    )


@pytest.mark.usefixtures("with_kernels")
def test_batch_invariance_expands_what_no_invariant_kernel_reads() -> None:
    both = {op: ["kernel"] for op in ("linear_w4a16", "linear_w8a16")}
    ir.set_batch_invariant(True)
    try:
        with ir.priority(both):
            choice = _choose("Q8_0", "Q8_0", "Q8_0", "Q8_0")
    finally:
        ir.set_batch_invariant(None)
    assert choice.forms == {}


@pytest.mark.usefixtures("with_kernels")
def test_native_may_look_rows_up_where_it_computes_no_product() -> None:
    only_native = {"linear_w4a16": ["native"], "linear_w8a16": ["native"]}
    with ir.priority(only_native):
        choice = _choose("Q4_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0")
        tied = _choose("Q4_0", "Q8_0", "Q8_0", "Q8_0")
    assert choice.forms == {"embedding": W8A16}
    assert tied.forms == {}


@pytest.mark.usefixtures("any_kernel")
def test_other_methods_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(ModelLoadError, match="`awq` is not supported; supported: auto, none"):
        _choose(*["Q4_1"] * 4, method="awq")
