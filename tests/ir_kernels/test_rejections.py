"""Why a provider passes a call on: each predicate's reasons, in words a person can act on."""

from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir

pytestmark = pytest.mark.usefixtures("compiled")


def rejection(registry: ir.Registry, name: str, *arguments: Any) -> str | None:
    """vllm_c's reason for refusing a call; None if it takes it."""
    with registry.priorities.override({name: ["vllm_c"]}):
        selection = registry[name].select(*arguments)
    if selection.provider == "vllm_c":
        return None
    return {each.provider: each.reason for each in selection.rejections}["vllm_c"]


def norm_arguments(x: Tensor, weight: Tensor | None) -> dict[str, tuple[Any, ...]]:
    return {
        "rms_norm": (x, weight, 1e-5),
        "fused_add_rms_norm": (x, x.clone(), weight, 1e-5),
    }


@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm"])
def test_sibling_norms_refuse_the_same_arguments(name: str, registry: ir.Registry) -> None:
    x = torch.randn(2, 8)
    wide = norm_arguments(x.double(), torch.ones(8).double())[name]
    mixed = norm_arguments(x, torch.ones(8).bfloat16())[name]
    halves = norm_arguments(x.half(), torch.ones(8).bfloat16())[name]
    elsewhere = norm_arguments(x.to("meta"), torch.ones(8, device="meta"))[name]
    assert rejection(registry, name, *wide) == "takes float32, bfloat16, float16; x has float64"
    for arguments, x_dtype in ((mixed, "float32"), (halves, "float16")):
        assert rejection(registry, name, *arguments) == (
            f"needs a weight of x's dtype or float32; x has {x_dtype}, weight bfloat16"
        )
    assert rejection(registry, name, *elsewhere) == "runs on cpu, and the activations are on meta"


@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_norms_take_no_weight_their_own_and_float32(
    name: str, dtype: torch.dtype, registry: ir.Registry
) -> None:
    x = torch.randn(2, 8).to(dtype)
    for weight in (None, torch.ones(8).to(dtype), torch.ones(8)):
        assert rejection(registry, name, *norm_arguments(x, weight)[name]) is None


def test_residual_of_another_dtype_goes_to_native(registry: ir.Registry) -> None:
    x = torch.randn(2, 8)
    arguments = (x, x.bfloat16(), None, 1e-5)
    assert rejection(registry, "fused_add_rms_norm", *arguments) == (
        "needs one dtype for both; x has float32, x_residual bfloat16"
    )
    with registry.priorities.override({"fused_add_rms_norm": ["vllm_c"]}):
        _, residual = registry["fused_add_rms_norm"](*arguments)
    assert residual.dtype == torch.float32


def test_silu_refuses_float64_only(registry: ir.Registry) -> None:
    x = torch.randn(2, 8)
    assert rejection(registry, "silu_and_mul", x.double()) is not None
    assert rejection(registry, "silu_and_mul", x.t()) is None


def test_rotary_embedding_names_the_table(registry: ir.Registry) -> None:
    x, positions, table = torch.randn(2, 8), torch.zeros(2, dtype=torch.int64), torch.ones(4, 8)

    def refused(*arguments: Any) -> str | None:
        return rejection(registry, "rotary_embedding", *arguments, 8)

    assert refused(x, x.clone(), positions, table) is None
    assert refused(x, x.clone(), positions.int(), table) == "needs int64 positions, not int32"
    assert refused(x, x.clone(), positions, table.bfloat16()) == (
        "needs a float32 `cos_sin_cache`, not bfloat16"
    )
    assert refused(x, x.half(), positions, table) == (
        "needs one dtype for both; x has float32, x_key float16"
    )


def test_qk_norm_rope_names_the_weight_and_the_table(registry: ir.Registry) -> None:
    x, weight = torch.randn(2, 3, 8), torch.ones(8)
    positions, table = torch.zeros(2, dtype=torch.int64), torch.ones(4, 8)

    def refused(key: Tensor, weights: tuple[Tensor, Tensor], table: Tensor) -> str | None:
        return rejection(
            registry, "qk_norm_rope", x.half(), key, *weights, 1e-6, positions, table, 8
        )

    assert refused(x.half(), (weight.half(), weight), table) is None
    assert refused(x, (weight, weight), table) == (
        "needs one dtype for both; x has float16, x_key float32"
    )
    for weights in ((weight.bfloat16(), weight), (weight, weight.bfloat16())):
        assert refused(x.half(), weights, table) == (
            "needs a weight of x's dtype or float32; x has float16, weight bfloat16"
        )
    assert refused(x.half(), (weight, weight), table.half()) == (
        "needs a float32 `cos_sin_cache`, not float16"
    )


def packed(registry: ir.Registry, name: str, *arguments: Any) -> tuple[Any, ...]:
    """A call's arguments with its weights in layout `panel16`."""
    op = registry[name]
    return op.pack(op.bind(*arguments), "panel16")


def test_linear_wants_one_dtype_and_packed_weights(registry: ir.Registry) -> None:
    x, weight, bias = torch.randn(2, 8), torch.randn(20, 8), torch.randn(20)

    def refused(*arguments: Any) -> str | None:
        return rejection(registry, "linear", *packed(registry, "linear", *arguments))

    assert refused(x, weight.clone(), bias) is None
    assert refused(x.bfloat16(), weight.clone()) == (
        "needs one dtype for both; x has bfloat16, weight float32"
    )
    assert refused(x, weight.clone(), bias.half()) == (
        "needs one dtype for both; x has float32, bias float16"
    )
    assert refused(x.double(), weight.double()) == (
        "takes float32, bfloat16, float16; x has float64"
    )
    plain = rejection(registry, "linear", x, weight, bias)
    assert plain == "reads layout `panel16`, and the weight lies in `plain`"


def test_embedding_wants_int64_ids_and_a_packed_table(registry: ir.Registry) -> None:
    ids, table = torch.tensor([1, 2]), torch.randn(20, 8)

    def refused(*arguments: Any) -> str | None:
        return rejection(registry, "embedding", *packed(registry, "embedding", *arguments))

    assert refused(ids, table.clone()) is None
    assert refused(ids.int(), table.clone()) == "needs int64 ids, not int32"
    assert refused(ids, table.double()) == "takes float32, bfloat16, float16; x has float64"
    plain = rejection(registry, "embedding", ids, table)
    assert plain == "reads layout `panel16`, and the weight lies in `plain`"
