"""aiter and xpu_kernels: availability in every state of a machine, and the calls they make.

The libraries are not here, so functions with their signatures stand in for them.
"""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_kernels import aiter_library, machine, xpu_library

OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding")


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return ir.ops.rms_norm.native(x, weight, epsilon, None)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return ir.ops.fused_add_rms_norm.native(x, residual, weight, epsilon, None)


@pytest.fixture
def aiter_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    def rms_norm(
        input: Tensor,  # noqa: A002
        weight: Tensor,
        epsilon: float,
        use_model_sensitive_rmsnorm: int = 0,
    ) -> Tensor:
        assert input.dim() == 2
        assert use_model_sensitive_rmsnorm == 1
        return norm(input, weight, epsilon)

    def rmsnorm2d_fwd_with_add(
        out: Tensor,
        input: Tensor,  # noqa: A002
        residual_in: Tensor,
        residual_out: Tensor,
        weight: Tensor,
        epsilon: float,
        gemma_norm: bool = False,
        use_model_sensitive_rmsnorm: int = 0,
    ) -> None:
        assert all(each.is_contiguous() for each in (out, residual_in, residual_out))
        assert (gemma_norm, use_model_sensitive_rmsnorm) == (False, 1)
        normal, total = add_norm(input, residual_in, weight, epsilon)
        out.copy_(normal)
        residual_out.copy_(total)

    def silu_and_mul(out: Tensor, input: Tensor) -> None:  # noqa: A002
        assert input.is_contiguous()
        out.copy_(ir.ops.silu_and_mul.native(input))

    def rope_cached_2c_fwd_inplace(
        input_x: Tensor,
        input_y: Tensor,
        cos: Tensor,
        sin: Tensor,
        rotate_style: int,
        reuse_freqs_front_part: bool,
        nope_first: bool,
    ) -> None:
        tokens, one, _, head_size = input_x.shape
        assert (one, reuse_freqs_front_part, nope_first) == (1, True, False)
        assert cos.shape == sin.shape == (tokens, 1, 1, cos.shape[-1])
        assert cos.is_contiguous()
        assert sin.is_contiguous()
        table = torch.cat((cos, sin), dim=-1).flatten(0, 2)
        heads, rows = (input_x[:, 0], input_y[:, 0]), torch.arange(tokens)
        turned = ir.ops.rotary_embedding.native(*heads, rows, table, head_size, rotate_style == 0)
        for target, result in zip(heads, turned, strict=True):
            target.copy_(result)

    module = ModuleType("aiter")
    for function in (rms_norm, rmsnorm2d_fwd_with_add, silu_and_mul, rope_cached_2c_fwd_inplace):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, "aiter", module)
    return module


@pytest.fixture
def xpu_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    def rms_norm(result: Tensor, input: Tensor, weight: Tensor, epsilon: float) -> None:  # noqa: A002
        assert result.is_contiguous()
        result.copy_(norm(input, weight, epsilon))

    def fused_add_rms_norm(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:  # noqa: A002
        assert input.is_contiguous()
        assert residual.is_contiguous()
        normal, total = add_norm(input, residual, weight, epsilon)
        input.copy_(normal)
        residual.copy_(total)

    def silu_and_mul(result: Tensor, input: Tensor) -> None:  # noqa: A002
        result.copy_(ir.ops.silu_and_mul.native(input))

    def rotary_embedding(
        positions: Tensor,
        query: Tensor,
        key: Tensor | None,
        head_size: int,
        cos_sin_cache: Tensor,
        is_neox: bool,
    ) -> None:
        assert key is not None
        turned = ir.ops.rotary_embedding.native(
            query, key, positions, cos_sin_cache, head_size, is_neox
        )
        query.copy_(turned[0])
        key.copy_(turned[1])

    ops = SimpleNamespace(
        rms_norm=rms_norm,
        fused_add_rms_norm=fused_add_rms_norm,
        silu_and_mul=silu_and_mul,
        rotary_embedding=rotary_embedding,
    )
    monkeypatch.setattr(xpu_library, "kernels", ops)


def assert_calls_fit(registry: ir.Registry, provider: str) -> None:
    """The provider's functions give native's results through the stand-in library."""
    for name in OPS:
        op = registry[name]
        arguments = op.generate_inputs(num_tokens=3, dtype=torch.float32)
        assert_same(op, provider, arguments)
        if name == "rotary_embedding":
            assert_same(op, provider, (*arguments[:-1], False))
        else:
            assert_same(op, provider, tuple(with_three_dims(op, arguments)))


def assert_same(op: ir.IrOp, provider: str, arguments: tuple[Any, ...]) -> None:
    copies = [each.clone() if isinstance(each, Tensor) else each for each in arguments]
    got = op.implementations[provider].fn(*copies)
    torch.testing.assert_close(got, op.native.fn(*arguments), rtol=0, atol=0)


def with_three_dims(op: ir.IrOp, arguments: tuple[Any, ...]) -> Iterator[Any]:
    """The arguments with a dim of one between the rows and the columns of each activation."""
    for name, each in zip(op.schema.names, arguments, strict=True):
        yield each[:, None] if name in op.activations else each


@pytest.mark.usefixtures("aiter_module")
def test_aiter_calls_fit_the_library(registry: ir.Registry) -> None:
    assert_calls_fit(registry, "aiter")


@pytest.mark.usefixtures("xpu_ops")
def test_xpu_calls_fit_the_library(registry: ir.Registry) -> None:
    assert_calls_fit(registry, "xpu_kernels")


def test_rocm_reasons_in_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    assert aiter_library.availability() == (
        False,
        "needs a ROCm GPU; this torch is built without HIP",
    )
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert aiter_library.availability() == (False, "needs a ROCm GPU; torch sees none")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert machine.rocm_package("no_such_package_here") == (
        False,
        "package `no_such_package_here` is not installed",
    )
    assert machine.rocm_package("json") == (True, "")


def test_xpu_reasons_in_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert "needs an Intel GPU" in machine.xpu_package("json")[1]
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    assert machine.xpu_package("json") == (True, "")
    broken = ModuleType("vllm_xpu_kernels")
    broken.__spec__ = SimpleNamespace(loader=None)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "vllm_xpu_kernels", broken)
    supported, reason = xpu_library.availability.__wrapped__()
    assert not supported
    assert reason.startswith("package `vllm_xpu_kernels` does not load: ")


def test_vendors_predicates_refuse_what_the_libraries_lack() -> None:
    from ir_kernels.rms_norm import aiter, xpu_kernels  # noqa: A004

    on_gpu = SimpleNamespace(device=SimpleNamespace(type="cuda"), dtype=torch.bfloat16)
    weight: Any = SimpleNamespace(dtype=torch.bfloat16)
    wide: Any = SimpleNamespace(dtype=torch.float32)
    x: Any = on_gpu
    assert aiter.supports_args(x, weight, 1e-5) is True
    assert aiter.supports_args(x, None, 1e-5) == "needs a weight"
    assert aiter.supports_args(x, weight, 1e-5, 64) == "has no `variance_size`"
    assert aiter.supports_args(x, wide, 1e-5) == (
        "needs a weight of x's dtype; x has bfloat16, weight float32"
    )
    assert xpu_kernels.supports_args(x, weight, 1e-5) == (
        "runs on xpu, and the activations are on cuda"
    )
