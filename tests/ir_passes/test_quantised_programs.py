"""A compiled model whose activations are quantised runs the fused kernels, with eager's numbers."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
import ir_passes
from ir_passes.config import CompilationConfig, DynamicShapesType

HIDDEN = 48
FIRST = ("rms_norm", "fused_add_rms_norm", "silu_and_mul")
QUANTIZE = "quantize_int8_per_token"
KERNELS = {
    name: ["vllm_c"] for name in (*FIRST, QUANTIZE, *(f"{first}_{QUANTIZE}" for first in FIRST))
}


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    """The C++ kernels for all of it; test_library says whether they have to be there."""
    ir.load_plugins()
    for name in KERNELS:
        kernel = ir.registry()[name].implementations["vllm_c"]
        if not kernel.supported:
            pytest.skip(kernel.unsupported_reason)
    with ir.priority(KERNELS):
        yield


class Model(nn.Module):
    """A norm, a norm behind a residual and an activation, each read by one quantised product."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter((torch.randn(shape, generator=random) / 8).bfloat16())

        self.scale, self.mix = weight(HIDDEN), weight(HIDDEN, HIDDEN)
        self.up, self.down = weight(HIDDEN, 2 * HIDDEN), weight(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        residual = x * 2
        x = _product(ir.ops.rms_norm(residual, self.scale, 1e-5), self.mix)
        x, residual = ir.ops.fused_add_rms_norm.maybe_inplace(x, residual, self.scale, 1e-6)
        x = ir.ops.silu_and_mul(_product(x, self.up))
        return _product(x, self.down), residual


def _product(x: Tensor, weight: Tensor) -> Tensor:
    q, scale = ir.ops.quantize_int8_per_token(x)
    return (q.to(torch.bfloat16) @ weight) * scale.to(torch.bfloat16)


def _input(num_tokens: int) -> Tensor:
    return torch.randn(num_tokens, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.mark.parametrize("shapes", DynamicShapesType)
@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "in two steps"])
def test_program_gives_the_bits_of_eager_mode(shapes: DynamicShapesType, is_fused: bool) -> None:
    config = CompilationConfig.model_validate(
        {
            "backend": "eager",
            "dynamic_shapes_config": {"type": shapes},
            "pass_config": {"fuse_norm_quant": is_fused, "fuse_act_quant": is_fused},
        }
    )
    with torch.no_grad():
        compiled = ir_passes.compile(
            Model(), (_input(6),), dynamic_dims={"x": 0}, limits={"tokens": 16}, config=config
        )
        for num_tokens in (1, 2, 6, 13):
            wanted = Model()(_input(num_tokens))
            for mine, theirs in zip(compiled(_input(num_tokens)), wanted, strict=True):
                assert torch.equal(mine, theirs)
    selected = compiled.report().selected_impls
    for first in FIRST:
        assert (f"{first}_{QUANTIZE}" in selected) is is_fused
        assert (first in selected) is not is_fused
