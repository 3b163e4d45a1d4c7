"""Which implementations of an op may compete for its calls, and why the others may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ir_core.autotuning.fusable import is_fusable
from ir_core.dispatch import choose
from ir_core.errors import PredicateError
from ir_core.implementation import NATIVE
from ir_core.selection import Rejection
from ir_core.weight_layouts import PLAIN

if TYPE_CHECKING:
    from ir_core.implementation import Implementation
    from ir_core.op import IrOp

_FUSED = "is compiled together with its neighbours, so that its time alone says nothing"
_UNPACKS = "unpacks the weights at every call"


@dataclass(frozen=True, slots=True)
class Candidates:
    """The providers that compete, the priority's own choice `default` first among them.

    `rejections` says why each other one does not, and `is_compiled` whether some of those that do
    must be compiled before they are timed: a compiler makes loops of its own of them.
    """

    default: str
    providers: tuple[str, ...]
    rejections: tuple[Rejection, ...]
    is_compiled: bool = False


def find_candidates(
    op: IrOp, values: Sequence[Any], *, is_fused: bool, can_compile: bool = False
) -> Candidates:
    """Who may compete for calls like this one: all that accept it, in the layout it has.

    If the default is one whose time says nothing, nobody does.

    Args:
        op: the op that is called.
        values: one per parameter.
        is_fused: a compiler fuses what can be fused; in this case candidates run once.
        can_compile: what it fuses can be compiled to be timed, and competes.

    Raises:
        NoImplementationError, PredicateError: the call has no default.
    """
    order = op.registry.candidates(op)
    invariant = op.registry.is_batch_invariant()
    default = choose(op, order, values, invariant).selection.provider
    rejections: dict[str, Rejection] = {}
    accepted: list[str] = []
    fused: list[str] = []
    for provider in dict.fromkeys((default, *order, *op.implementations)):
        implementation = op.implementations[provider]
        reason = _refusal(op, (provider, default), values)
        reason = reason or _untimed(implementation, values)
        if reason is None and is_fused and is_fusable(implementation, values):
            fused.append(provider)
            reason = None if can_compile else _FUSED
        if reason is None:
            accepted.append(provider)
        else:
            rejections[provider] = Rejection(provider, reason)
    if default in rejections:
        accepted = []
    is_compiled = can_compile and any(each in fused for each in accepted)
    return Candidates(default, tuple(accepted), tuple(rejections.values()), is_compiled)


def _untimed(implementation: Implementation, values: Sequence[Any]) -> str | None:
    layout = implementation.op.weight_layouts.of(values)
    return _UNPACKS if implementation.provider == NATIVE and layout != PLAIN else None


def _refusal(op: IrOp, pair: tuple[str, str], values: Sequence[Any]) -> str | None:
    """Why the first of a pair does not accept a call that the second accepts."""
    try:
        selection = choose(op, pair, values, op.registry.is_batch_invariant()).selection
    except PredicateError as error:
        return str(error)
    return None if selection.provider == pair[0] else selection.rejections[0].reason
