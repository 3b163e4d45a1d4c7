"""Whether an implementation gives what native gives on a model's own calls; a fast one may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ir_core.autotuning.recorder import copy_of
from ir_core.testing.comparison import worst_difference
from ir_core.tolerance import Tolerance

if TYPE_CHECKING:
    from ir_core.implementation import Implementation


def disagreement(implementation: Implementation, values: Sequence[Any]) -> str | None:
    """How its results differ from native's on a call with these values; None if they agree.

    They may differ by twice the op's tolerance, since native rounds too. The conformance suite
    proves an implementation; this only keeps one that is broken here from being chosen.
    """
    op = implementation.op
    try:
        got, expected = _run(implementation, values), _run(op.native, values)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    if [_shape(each) for each in got] != [_shape(each) for each in expected]:
        return "gives other shapes or dtypes than native"
    for ours, native in zip(got, expected, strict=True):
        known = op.tolerance(ours.dtype)
        allowed = Tolerance(2 * known.atol, 2 * known.rtol)
        difference = worst_difference(ours, native, allowed)
        if difference is not None:
            return f"differs from native: {difference}"
    return None


def _run(implementation: Implementation, values: Sequence[Any]) -> list[Tensor]:
    op = implementation.op
    copies = [
        copy_of(value) if name in op.activations and isinstance(value, Tensor) else value
        for name, value in zip(op.schema.names, values, strict=True)
    ]
    with torch.inference_mode():
        returned = implementation.fn(*copies)
    outputs = returned if isinstance(returned, tuple | list) else (returned,)
    return [each for each in outputs if isinstance(each, Tensor)]


def _shape(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
