"""An op that quantises its result is the two ops that its name names, bit for bit."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core import testing

FIRST = ("rms_norm", "fused_add_rms_norm", "silu_and_mul")
KINDS = ("fp8_static", "fp8_per_token", "int8_per_token")
PAIRS = tuple(product(FIRST, KINDS))


def _bytes(tensors: tuple[Tensor, ...]) -> list[Any]:
    return [(each.dtype, each.contiguous().view(torch.uint8).tolist()) for each in tensors]


def _tuple(returned: Any) -> tuple[Tensor, ...]:
    return (returned,) if isinstance(returned, Tensor) else returned


@pytest.mark.parametrize(("first", "kind"), PAIRS)
@pytest.mark.parametrize("dtype", testing.DTYPES, ids=str)
def test_fused_op_is_one_op_and_then_the_other(first: str, kind: str, dtype: torch.dtype) -> None:
    op, quantize = ir.registry()[f"{first}_quantize_{kind}"], ir.registry()[f"quantize_{kind}"]
    for workload in testing.workloads_of(op):
        if not workload.checked:
            continue
        values = op.bind(*op.generate_inputs(**{**workload.inputs, "dtype": dtype}))
        given = dict(zip(op.schema.names, values, strict=True))
        value, *others = _tuple(
            ir.registry()[first].native(
                *(given[name] for name in ir.registry()[first].schema.names)
            )
        )
        extra = (given[name] for name in quantize.schema.names[1:])
        wanted = (*_tuple(quantize.native(value, *extra)), *others)
        assert _bytes(_tuple(op.native(*values))) == _bytes(wanted), workload.name


def test_static_scale_comes_before_what_has_a_default() -> None:
    names = ir.ops.fused_add_rms_norm_quantize_fp8_static.schema.names
    assert names == ("x", "x_residual", "weight", "epsilon", "scale", "variance_size")


@pytest.mark.parametrize(("first", "kind"), PAIRS)
def test_fused_op_can_be_cached_and_says_what_it_is(first: str, kind: str) -> None:
    op = ir.registry()[f"{first}_quantize_{kind}"]
    fingerprint = op.native.fingerprint()
    assert fingerprint.digest is not None, fingerprint.reason
    assert f"`quantize_{kind}` of what `{first}` gives" in str(op.__doc__)


def test_fingerprints_of_fused_ops_differ() -> None:
    ops = [ir.registry()[f"{first}_quantize_{kind}"] for first, kind in PAIRS]
    assert len({each.native.fingerprint().digest for each in ops}) == len(PAIRS)


@pytest.mark.parametrize("kind", KINDS)
def test_native_claims_batch_invariance_where_both_parts_do(kind: str) -> None:
    claims = [ir.registry()[f"{first}_quantize_{kind}"].native.batch_invariant for first in FIRST]
    assert claims == [True, True, False]
