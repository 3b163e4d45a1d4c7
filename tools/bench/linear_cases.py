"""Projections by weights of several formats, as cases: all providers, torch and oneDNN.

Shapes: T tokens, K inputs, N outputs; a size is K x N.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import ir_core as ir
from ir_core.op import IrOp
from serve_shim.models.weight_memory import WeightMemory
from tools.bench.contender import Case, Contender, num_copies
from tools.bench.providers import Providers, copied_into

_GROUP = 32


def linear_cases(
    name: str, size: tuple[int, int], tokens: Sequence[int], footprint: int
) -> Iterator[Case]:
    """A case for each number of tokens; weights are packed and copied once for all of them."""
    torch.manual_seed(0)
    op, values = _call(name, *size)
    dtype: torch.dtype = values[0].dtype
    providers = Providers(op, values, footprint)
    baselines = _Baselines(size, dtype, footprint)
    for count in tokens:
        x_TK = torch.randn(count, size[0]).to(dtype)
        contenders = [*baselines.contenders(x_TK), *providers.contenders(x_TK)]
        declined = (*baselines.declined, *providers.declined)
        yield Case(op.name, name, f"{size[0]}x{size[1]}", count, contenders, declined)


class _Baselines:
    """`F.linear` and oneDNN with its own packed weights, on weights of the activation's dtype."""

    def __init__(self, size: tuple[int, int], dtype: torch.dtype, footprint: int) -> None:
        weight_NK = _random(size[1], size[0], dtype)
        copies = num_copies(weight_NK.nbytes, footprint)
        self._num_bytes = weight_NK.nbytes
        memory = WeightMemory()
        self._plain = [copied_into(memory, weight_NK) for _ in range(copies)]
        self._packed: list[Tensor] = []
        self.declined: list[tuple[str, str]] = []
        try:
            self._packed = [_packed_by_onednn(weight_NK) for _ in range(copies)]
        except RuntimeError as error:
            self.declined.append(("oneDNN packed", str(error).partition("\n")[0]))

    def contenders(self, x_TK: Tensor) -> list[Contender]:
        plain = [functools.partial(functional.linear, x_TK, weight) for weight in self._plain]
        packed = [
            functools.partial(
                torch.ops.mkldnn._linear_pointwise, x_TK, weight, None, "none", [], ""
            )
            for weight in self._packed
        ]
        found = [Contender("F.linear", plain, self._num_bytes, is_baseline=True)]
        if packed:
            found.append(Contender("oneDNN packed", packed, self._num_bytes, is_baseline=True))
        return found


def _packed_by_onednn(weight_NK: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight_NK, None)


def _call(name: str, inner: int, outer: int) -> tuple[IrOp, tuple[Any, ...]]:
    """The op of a format, and the values of a call of it with one token."""
    dtype = torch.float32 if name == "f32" else torch.bfloat16
    x_TK = torch.randn(1, inner).to(dtype)
    if name in ("bf16", "f32"):
        return ir.ops.linear, ir.ops.linear.bind(x_TK, _random(outer, inner, dtype))
    scale = torch.full((outer, inner // _GROUP), 2e-3, dtype=torch.float16)
    if name == "w8a16":
        weight = torch.randint(-127, 128, (outer, inner), dtype=torch.int8)
        return ir.ops.linear_w8a16, ir.ops.linear_w8a16.bind(x_TK, weight, scale)
    weight = torch.randint(0, 256, (outer, inner // 2), dtype=torch.uint8)
    minimum = -8 * scale if name == "w4a16_min" else None
    return ir.ops.linear_w4a16, ir.ops.linear_w4a16.bind(x_TK, weight, scale, minimum)


def _random(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(rows, columns) * columns**-0.5).to(dtype)
