"""Compiled and eager code round alike: one provider, one result, in every dtype and mix of them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import metrics

import ir_core as ir

from .compiled_calls import IN_PLACE, NATIVE, TOKENS, compile_call, rows

_WIDTH = 64
# The dtype of activations, and that of the weight.
_DTYPES = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.float64, torch.float64),
)
_PATHS = " ".join(f"{name}.{place}" for name in ("xs", "rs") for place in range(len(_DTYPES)))
# Of each mix of dtypes; and the place of the gate among them.
_NUM_RESULTS, _GATE = 8, 5
_FORCED = {"native": NATIVE, "vllm_c": IN_PLACE}


class Norms(nn.Module):
    """Norms and a gate in every mix of dtypes, where a second rounding would be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            (1 + torch.randn(_WIDTH, generator=torch.Generator().manual_seed(7)) / 4).to(dtype)
            for _, dtype in _DTYPES
        )

    def forward(self, xs: list[Tensor], rs: list[Tensor]) -> list[Tensor]:
        results: list[Tensor] = []
        for x, r, weight in zip(xs, rs, self.weights, strict=True):
            normal, total = ir.ops.fused_add_rms_norm(x, r, weight, 1e-5)
            spread = x - total
            results += [normal, total, ir.ops.rms_norm(x, weight, 1e-6), spread]
            results += [ir.ops.rms_norm(spread, weight, 1e-5), ir.ops.silu_and_mul(normal)]
            added = total + normal
            results += [ir.ops.rms_norm(added, weight, 1e-5), added]
        return results


def _inputs(num_tokens: int) -> tuple[list[Tensor], list[Tensor]]:
    """Values near 1000, and residuals that all but cancel them."""
    generator = torch.Generator().manual_seed(num_tokens)
    wide = [torch.randn(2, num_tokens, _WIDTH, generator=generator) for _ in _DTYPES]
    xs = [(each[0] * 1000).to(dtype) for each, (dtype, _) in zip(wide, _DTYPES, strict=True)]
    rs = [(each[1] - x.float()).to(x.dtype) for each, x in zip(wide, xs, strict=True)]
    return xs, rs


@pytest.fixture(scope="module")
def model() -> Norms:
    return Norms().requires_grad_(False)


@pytest.mark.parametrize(
    ("backend", "provider"), [("eager", "native"), ("eager", "vllm_c"), ("inductor", "native")]
)
def test_compiled_rounds_as_eager_mode_does(model: Norms, backend: str, provider: str) -> None:
    with ir.priority(_FORCED[provider]):
        compiled = compile_call(model, _inputs(TOKENS), _PATHS, backend=backend)
        used = compiled.selected_impls
        for num_tokens in (5, 1, 12):
            given, kept = _inputs(num_tokens), _inputs(num_tokens)
            found, wanted = compiled(*given), model(*_inputs(num_tokens))
            for place, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
                # Torch takes an activation apart before it is compiled.
                is_exact = backend != "inductor" and place % _NUM_RESULTS != _GATE
                _check_rounded_alike(mine, theirs, is_exact=is_exact)
            for mine, theirs in zip(given, kept, strict=True):
                assert all(map(torch.equal, mine, theirs))
    assert set(used) == {"rms_norm", "fused_add_rms_norm", "silu_and_mul"}
    # Nothing but native takes float64.
    assert used["fused_add_rms_norm"].get("native") == (10 if provider == "native" else 2)


def _check_rounded_alike(mine: Tensor, theirs: Tensor, *, is_exact: bool) -> None:
    """Same metadata; same bits, or, where loops are generated, all but the rarest ones."""
    assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
    if is_exact:
        assert torch.equal(mine, theirs)
        return
    torch.testing.assert_close(mine, theirs)
    if mine.dtype in (torch.bfloat16, torch.float16):
        assert (mine == theirs).float().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_providers_agree_within_the_tolerance_of_the_op(dtype: torch.dtype) -> None:
    def layer(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return ir.ops.fused_add_rms_norm(x, r, None, 1e-5)

    tolerance = ir.ops.fused_add_rms_norm.tolerance(dtype)
    place = next(at for at, pair in enumerate(_DTYPES) if pair[0] is dtype)
    results: list[Any] = []
    for priority in _FORCED.values():
        with ir.priority(priority):
            compiled = compile_call(layer, [each[place] for each in _inputs(TOKENS)], "x r")
            results.append(compiled(*(each[place] for each in _inputs(5))))
    for native, kernel in zip(*results, strict=True):
        torch.testing.assert_close(kernel, native, atol=tolerance.atol, rtol=tolerance.rtol)


def test_row_alone_has_the_bits_that_it_has_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    """Also where a single token was to have a program of its own."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(2)
            self.norm = nn.Buffer(1 + torch.randn(_WIDTH, generator=generator) / 4)
            self.matrix = nn.Buffer(torch.randn(2 * _WIDTH, _WIDTH, generator=generator) / 8)

        def forward(self, x: Tensor) -> Tensor:
            normal = ir.ops.rms_norm(x * 2, self.norm, 1e-5)
            gate = ir.ops.silu_and_mul(ir.ops.linear(normal, self.matrix))
            total = gate.sum(-1, keepdim=True) + torch.exp(gate) * torch.tanh(x)
            return ir.ops.rms_norm(gate + x, self.norm, 1e-5) + total

    layer, x = Layer(), rows(32, _WIDTH)
    ir.set_batch_invariant(True)
    try:
        with ir.priority({"rms_norm": ["native"]}):
            compiled = compile_call(
                layer, (x[:TOKENS],), limit=32, backend="inductor", compile_sizes=(1,)
            )
        whole = compiled(x)
        for first, last in [*((row, row + 1) for row in range(32)), (3, 5), (7, 16), (0, 31)]:
            assert torch.equal(compiled(x[first:last].clone()), whole[first:last])
    finally:
        ir.set_batch_invariant(None)
    assert "a count of 1 tokens has the code of all others" in caplog.text
    torch.testing.assert_close(whole, layer(x), rtol=1e-4, atol=1e-3)


def test_fusing_an_add_with_its_norm_makes_no_more_kernels() -> None:
    def layer(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        total = x * 2 + r
        return ir.ops.rms_norm(total, None, 1e-5), total

    def num_kernels(*disabled: str) -> int:
        metrics.reset()
        passes = {"disable": disabled}
        with ir.priority(NATIVE):
            args = (rows(TOKENS), rows(TOKENS))
            compiled = compile_call(layer, args, "x r", backend="inductor", pass_config=passes)
        assert "fused_add_rms_norm" in compiled.selected_impls or disabled
        return metrics.generated_kernel_count

    assert 1 <= num_kernels() <= num_kernels("fuse_add_rms_norm")
