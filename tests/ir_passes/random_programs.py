"""Random small programs of IR ops, views, copies, in-place ops and donations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import ir_core as ir

SHAPES = (("T", 8), ("T", 8), (8,))
_FUSED = ir.ops.fused_add_rms_norm

_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "left": lambda a: a[:, : a.shape[1] // 2],
    "right": lambda a: a[:, a.shape[1] // 2 :],
    "heads": lambda a: a.unflatten(1, (2, -1)).flatten(1),
    # Not `contiguous`, which copies or not depending on the token count.
    "turned": lambda a: a.t().clone(memory_format=torch.contiguous_format).t(),
    "same rows": lambda a: a[: a.shape[0]],
    "same columns": lambda a: a[:, : a.shape[1]],
    "expanded": lambda a: a.expand(a.shape[0], a.shape[1]),
    "cast": lambda a: torch.ops.prims.convert_element_type(a, a.dtype),
    "narrow": lambda a: a.to(torch.bfloat16).to(a.dtype),
    "clone": lambda a: a.clone(),
    "doubled": lambda a: a * 2,
    "norm": lambda a: ir.ops.rms_norm(a, None, 1e-5),
    "tiny norm": lambda a: ir.ops.rms_norm(a, None, epsilon=1e-3, variance_size=2),
    "gate": ir.ops.silu_and_mul,
}
_TWO: dict[str, Callable[[Tensor, Tensor], Sequence[Tensor]]] = {
    "sum": lambda a, b: (a + b,),
    "sum and norm": lambda a, b: (ir.ops.rms_norm(a + b, None, 1e-6),),
    "sum, norm and sum": lambda a, b: (t := a + b, ir.ops.rms_norm(t, None, 1e-6)),
    "joined": lambda a, b: (torch.cat((a, b), dim=1),),
    "fused": lambda a, b: _FUSED(a, b, None, 1e-5),
    "donating": lambda a, b: _FUSED.maybe_inplace(a, b, None, 1e-5),
}
_WRITING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add_": lambda a, b: a.add_(b),
    "mul_": lambda a, b: a.mul_(2),
    "copy_": lambda a, b: a.copy_(b),
}
_ALL = (*_ONE, *_TWO, *_WRITING)


@dataclass(frozen=True)
class Program:
    """Steps, each a name and two operands counted back from the newest value, and results."""

    steps: tuple[tuple[str, int, int], ...]
    returned: tuple[int, ...]

    def __call__(self, x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        values = [x, r, x * w]
        for name, first, second in self.steps:
            values += _step(name, _pick(values, first), values, second)
        return tuple(_pick(values, each) for each in self.returned)


def programs(names: Sequence[str] = _ALL, max_steps: int = 8) -> st.SearchStrategy[Program]:
    """Programs of these steps."""
    place = st.integers(0, 7)
    steps = st.lists(
        st.tuples(st.sampled_from(names), place, place), min_size=1, max_size=max_steps
    )
    returned = st.lists(place, min_size=1, max_size=3)
    return st.builds(lambda s, r: Program(tuple(s), tuple(r)), steps, returned)


def without_writes() -> Sequence[str]:
    """Names of the steps that write nothing in place."""
    return (*_ONE, *_TWO)


def _pick(values: Sequence[Tensor], place: int) -> Tensor:
    return values[-1 - place % len(values)]


def _step(name: str, first: Tensor, values: Sequence[Tensor], second: int) -> Sequence[Tensor]:
    if name in _ONE:
        is_too_narrow = first.shape[1] < 4 and name in ("left", "right", "gate")
        return () if is_too_narrow else (_ONE[name](first),)
    # Ops take operands of one width; there is always one, the first operand itself.
    alike = [each for each in values if each.shape[1] == first.shape[1]]
    other = _pick(alike, second)
    if name in _WRITING:
        _WRITING[name](first, other)
        return ()
    is_too_wide = name == "joined" and first.shape[1] > 8
    return () if is_too_wide else _TWO[name](first, other)
