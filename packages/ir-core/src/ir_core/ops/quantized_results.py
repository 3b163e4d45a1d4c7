"""Norms and activations whose result is quantised at once. Owns no formula: it composes two ops.

Each op here is `<first>_<quantize>`, equal to calling one after the other bit for bit. It takes the
parameters of the first; those that quantising adds come before the ones with defaults. It returns
what quantising returns, then what else the first returns.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

import torch
from torch import Tensor

from ir_core.default_registry import register_op
from ir_core.op import IrOp
from ir_core.ops.activation import silu_and_mul
from ir_core.ops.quantize import (
    quantize_fp8_per_token,
    quantize_fp8_static,
    quantize_int8_per_token,
)
from ir_core.ops.rms_norm import fused_add_rms_norm, rms_norm
from ir_core.ops.workload import InputGenerator, workloads

_Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Split:
    """Where the parameters that quantising adds stand among all: from `begin` to `end`."""

    begin: int
    end: int


def _quantized(first: IrOp, quantize: IrOp) -> IrOp:
    """Declare an op that quantises the first result of another."""
    own, added = _parameters(first), _parameters(quantize)[1:]
    begin = sum(each.default is each.empty for each in own)
    split = _Split(begin, begin + len(added))
    native = _composed(first.native.fn, quantize.native.fn, split)
    native.__name__ = f"{first.name}_{quantize.name}"
    native.__doc__ = (
        f"`{quantize.name}` of what `{first.name}` gives, bit for bit; see both.\n\n"
        f"What `{first.name}` gives besides comes last."
    )
    native.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*own[:begin], *added, *own[begin:]],
        return_annotation=_returns(len(quantize.schema.returns) + len(first.schema.returns) - 1),
    )
    both = first.native.batch_invariant and quantize.native.batch_invariant
    op = register_op(batch_invariant=both)(native)
    op.register_fake(_composed(_fake_of(first), _fake_of(quantize), split))
    op.register_input_generator(_inputs(first, quantize, split))
    _set_tolerances(op, quantize)
    return op


def _composed(first: _Function, quantize: _Function, split: _Split) -> _Function:
    def composed(*values: Any) -> Any:
        result = first(*values[: split.begin], *values[split.end :])
        value, *others = (result,) if isinstance(result, Tensor) else result
        quantized = quantize(value, *values[split.begin : split.end])
        if isinstance(quantized, Tensor):
            return (quantized, *others) if others else quantized
        return (*quantized, *others)

    return composed


def _inputs(first: IrOp, quantize: IrOp, split: _Split) -> InputGenerator:
    generator = first.input_generator
    cases = generator.workloads if isinstance(generator, InputGenerator) else ()

    @workloads(*cases)
    def inputs(num_tokens: int, dtype: torch.dtype, **options: Any) -> tuple[Any, ...]:
        given = first.generate_inputs(num_tokens=num_tokens, dtype=dtype, **options)
        values = first.bind(*given)
        _, *added = quantize.generate_inputs(num_tokens=1, dtype=dtype)
        return (*values[: split.begin], *added, *values[split.begin :])

    return inputs


def _set_tolerances(op: IrOp, quantize: IrOp) -> None:
    for dtype, own in quantize.tolerances.items():
        op.override_tolerance(dtype, atol=own.atol, rtol=own.rtol, reason=own.reason)
    if quantize is not quantize_fp8_static:
        reason = "a row and so its scale are rounded to the activations' dtype before"
        op.override_tolerance(torch.float32, atol=1e-6, rtol=1.6e-2, reason=reason)
        op.override_tolerance(torch.int8, atol=2, rtol=0, reason=reason)


def _fake_of(op: IrOp) -> _Function:
    return op.fake or op.native.fn


def _parameters(op: IrOp) -> list[inspect.Parameter]:
    return list(inspect.signature(op.native.fn).parameters.values())


def _returns(count: int) -> Any:
    return Tensor if count == 1 else GenericAlias(tuple, (Tensor,) * count)


rms_norm_quantize_fp8_static = _quantized(rms_norm, quantize_fp8_static)
rms_norm_quantize_fp8_per_token = _quantized(rms_norm, quantize_fp8_per_token)
rms_norm_quantize_int8_per_token = _quantized(rms_norm, quantize_int8_per_token)
fused_add_rms_norm_quantize_fp8_static = _quantized(fused_add_rms_norm, quantize_fp8_static)
fused_add_rms_norm_quantize_fp8_per_token = _quantized(fused_add_rms_norm, quantize_fp8_per_token)
fused_add_rms_norm_quantize_int8_per_token = _quantized(fused_add_rms_norm, quantize_int8_per_token)
silu_and_mul_quantize_fp8_static = _quantized(silu_and_mul, quantize_fp8_static)
silu_and_mul_quantize_fp8_per_token = _quantized(silu_and_mul, quantize_fp8_per_token)
silu_and_mul_quantize_int8_per_token = _quantized(silu_and_mul, quantize_int8_per_token)
