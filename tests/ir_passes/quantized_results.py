"""What the tests of fused quantisation share: a provider that does all in one step, and a check."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_passes.base import Pass
from ir_passes.report import PassReport
from ir_passes.tracing.whole_graph import WholeGraph

from .graphs import Shape, apply, random_tensors, trace

LIBRARY = "one_step"
KINDS = ("fp8_static", "fp8_per_token", "int8_per_token")
FIRST = ("rms_norm", "fused_add_rms_norm", "silu_and_mul")


@contextmanager
def one_step_library() -> Generator[None]:
    """Another name for native of all ops that are fused and of what they become, first in line."""
    names = (*FIRST, *(f"{first}_quantize_{kind}" for first in FIRST for kind in KINDS))
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            op = ir.registry()[name]
            added = replace(op.native, provider=LIBRARY)
            patch.setattr(op, "_implementations", {**op.implementations, LIBRARY: added})
        with ir.priority({name: [LIBRARY] for name in names}):
            yield
    ir.registry().forget_choices()


def quantize(kind: str, x: Tensor) -> tuple[Tensor, ...]:
    """What the op of this kind gives, always as a tuple; a static scale is made on the spot."""
    op = ir.registry()[f"quantize_{kind}"]
    if kind == "fp8_static":
        return (op(x, torch.full((1,), 0.01)),)
    return op(x)


def fuse(
    step: Pass,
    model: Callable[..., Any],
    shapes: Sequence[Shape],
    names: str,
    dtype: torch.dtype = torch.float32,
) -> tuple[WholeGraph, PassReport]:
    """Trace, apply the pass, and compare the results with those from before, bit for bit."""
    whole = trace(model, *shapes, dtype=dtype, names=names)
    inputs = random_tensors(*shapes, dtype=dtype)
    wanted = whole.module(*inputs)
    report = apply(whole, step)
    for mine, theirs in zip(whole.module(*inputs), wanted, strict=True):
        assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
        assert torch.equal(*(each.contiguous().view(torch.uint8) for each in (mine, theirs)))
    return whole, report.passes[0]
