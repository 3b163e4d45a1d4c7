"""Whether a compiler would fuse what an implementation does with what stands around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ir_core.autotuning.recorder import copy_of

if TYPE_CHECKING:
    from ir_core.implementation import Implementation

_FACTORIES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
# A compiler calls libraries for these, as eager mode does.
_PRODUCTS = ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm")
_UNFUSED = frozenset((*_FACTORIES, *_PRODUCTS))


def is_fusable(implementation: Implementation, values: Sequence[Any]) -> bool:
    """Whether it computes with ATen ops that Inductor fuses, on a call with these values.

    It runs once, on copies of the activations. One that is opaque, calls kernels of its own, or
    raises, is not fusable.
    """
    if implementation.opaque:
        return False
    op = implementation.op
    copies = [
        copy_of(value) if name in op.activations and isinstance(value, Tensor) else value
        for name, value in zip(op.schema.names, values, strict=True)
    ]
    try:
        with torch.inference_mode(), _FusableOps() as seen:
            implementation.fn(*copies)
    except Exception:
        # What is wrong with it shows where it is timed.
        return False
    return seen.is_any


class _FusableOps(TorchDispatchMode):
    """Notes whether any op that a compiler fuses is called."""

    def __init__(self) -> None:
        super().__init__()
        self.is_any = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Torch would import Dynamo for it, which costs a start a second, and nothing traces here.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace in ("aten", "prims") and not func.is_view:
            self.is_any |= func.overloadpacket.__name__ not in _UNFUSED
        return func(*args, **(kwargs or {}))
