"""How the calls that share a tuned choice are told from others: arguments without the batch.

Two calls have one signature if they differ in token dims and in values only, so a choice that is
found by it is the same for every token count, in eager mode and for the fakes of a compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import SymBool, SymFloat, SymInt, Tensor

if TYPE_CHECKING:
    from ir_core.op import IrOp

_FACTS = ("dtype", "device", "ndim", "sizes")
_TOKENS = "*"
# A size that is known in no call's signature: such a call is tuned by none.
_UNKNOWN = "?"


def signature_of(op: IrOp, values: Sequence[Any]) -> str:
    """What all calls of one kind have in common, as `x: bfloat16[*, 576], epsilon: 1e-05`.

    Args:
        op: the op that is called.
        values: one per parameter; tensors may be fakes.
    """
    return ", ".join(
        f"{name}: {_fact(value, op.token_dims.get(name))}"
        for name, value in zip(op.schema.names, values, strict=True)
    )


def signature_reads(op: IrOp) -> frozenset[tuple[str, str]]:
    """The (parameter, kind) pairs of tensors that a signature is made of."""
    tensors = (each.name for each in op.schema.parameters if each.is_tensor)
    return frozenset((name, kind) for name in tensors for kind in _FACTS)


def has_signature(op: IrOp) -> bool:
    """Whether calls of the op can be told apart: nothing says what the dims of a list are."""
    return not any(each.is_tensor_list for each in op.schema.parameters)


def _fact(value: Any, hidden: frozenset[int] | None) -> str:
    if isinstance(value, Tensor):
        sizes = (
            _TOKENS if dim in (hidden or ()) else str(size) if type(size) is int else _UNKNOWN
            for dim, size in enumerate(value.shape)
        )
        dtype, device = str(value.dtype).removeprefix("torch."), value.device.type
        return f"{dtype}[{', '.join(sizes)}]" + ("" if device == "cpu" else f" on {device}")
    if isinstance(value, SymInt | SymFloat | SymBool):
        return _TOKENS if hidden is not None else _UNKNOWN
    if hidden is not None and value is not None:
        return _TOKENS
    return repr(list(value) if isinstance(value, tuple) else value)
