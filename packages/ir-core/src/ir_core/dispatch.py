"""The one choice of an implementation: priority and arguments in, selection with reasons out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import SymBool, SymFloat, SymInt, Tensor

from ir_core.argument_view import UNDECLARED, ScalarView, TensorView
from ir_core.errors import NoImplementationError, PredicateError
from ir_core.implementation import Implementation
from ir_core.inquiry import Inquiry
from ir_core.location import location_of
from ir_core.selection import Rejection, Selection

if TYPE_CHECKING:
    from ir_core.op import IrOp


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """The weight layout a call should have, and the selection that a call in it then gets.

    Each rejection says why the provider takes the call in none of the layouts that it reads.
    """

    layout: str
    selection: Selection


@dataclass(frozen=True, slots=True)
class Choice:
    """A selection and the facts it rests on: (parameter, kind) pairs that predicates read.

    `asked` says whether any predicate ran; if none did, the arguments do not matter.
    """

    selection: Selection
    reads: frozenset[tuple[str, str]]
    asked: bool


def choose(op: IrOp, providers: Sequence[str], values: Sequence[Any], invariant: bool) -> Choice:
    """Choose the first of `providers` that can run `op` on `values`, one value per parameter.

    Raises:
        NoImplementationError: all were rejected; lists every reason.
        PredicateError: a predicate misbehaved.
    """
    rejections: list[Rejection] = []
    reads: set[tuple[str, str]] = set()
    asked = False
    layout = op.weight_layouts.of(values)
    for provider in providers:
        implementation = op.implementations[provider]
        reason = static_reason(implementation, invariant) or _layout_reason(implementation, layout)
        if reason is None and implementation.supports_args is not None:
            reason, read = _ask(implementation, values)
            reads |= read
            asked = True
        if reason is None:
            named = layout if op.weights else None
            selection = Selection(op, provider, implementation, tuple(rejections), named)
            return Choice(selection, frozenset(reads), asked)
        rejections.append(Rejection(provider, reason))
    raise _nothing_runs(op, rejections)


def choose_layout(
    op: IrOp, providers: Sequence[str], values: Sequence[Any], invariant: bool
) -> LayoutChoice:
    """Choose the first of `providers` that can run `op` in a layout that it reads, and the layout.

    The layout that `values` name does not matter, nor what lies in the weights.

    Raises:
        NoImplementationError, PredicateError: as `choose`.
    """
    rejections: list[Rejection] = []
    for provider in providers:
        implementation = op.implementations[provider]
        reasons: dict[str, str] = {}
        for layout in implementation.layouts:
            reason = static_reason(implementation, invariant)
            reason = reason or _ask(implementation, op.with_layout(values, layout))[0]
            if reason is None:
                named = layout if op.weights else None
                selection = Selection(op, provider, implementation, tuple(rejections), named)
                return LayoutChoice(layout, selection)
            reasons[reason] = layout
        rejections.append(Rejection(provider, "; ".join(reasons)))
    raise _nothing_runs(op, rejections)


def static_reason(implementation: Implementation, invariant: bool) -> str | None:
    """Why an implementation cannot run whatever the arguments are; None if it can."""
    if not implementation.supported:
        return implementation.unsupported_reason
    if invariant and not implementation.batch_invariant:
        return "not batch-invariant, and batch invariance is on"
    return None


def _layout_reason(implementation: Implementation, layout: str) -> str | None:
    if layout in implementation.layouts:
        return None
    read = " or ".join(f"`{each}`" for each in implementation.layouts)
    weights = implementation.op.weights
    lies = "weight lies" if len(weights) == 1 else "weights lie"
    return f"reads layout {read}, and the {lies} in `{layout}`"


def _nothing_runs(op: IrOp, rejections: Sequence[Rejection]) -> NoImplementationError:
    listed = "\n".join(f"  {each.provider}: {each.reason}" for each in rejections)
    return NoImplementationError(f"No implementation of `{op.name}` can run:\n{listed}")


def _ask(
    implementation: Implementation, values: Sequence[Any]
) -> tuple[str | None, set[tuple[str, str]]]:
    predicate = implementation.supports_args
    if predicate is None:
        return None, set()
    inquiry = Inquiry(implementation.op.name, implementation.provider, predicate)
    views = [
        view_of(inquiry, name, value, implementation.op.token_dims.get(name))
        for name, value in zip(implementation.op.schema.names, values, strict=True)
    ]
    try:
        answer = predicate(*views)
    except Exception as error:
        if inquiry.refusal is None:
            raise PredicateError(
                f"{inquiry.subject} raised {type(error).__name__}: {error} "
                f"({location_of(predicate)})."
            ) from error
        answer = None
    if inquiry.refusal is not None:
        raise inquiry.refusal
    return _reason(inquiry, answer, values, implementation), inquiry.reads


def view_of(inquiry: Inquiry, name: str, value: Any, hidden: frozenset[int] | None) -> Any:
    """What a predicate gets for one argument: a view of a tensor, a scalar as it is if static."""
    if isinstance(value, Tensor):
        return TensorView(inquiry, name, value, hidden or frozenset())
    if isinstance(value, list | tuple):
        return tuple(view_of(inquiry, f"{name}[{i}]", each, None) for i, each in enumerate(value))
    if hidden is not None and value is not None:
        return ScalarView(inquiry, name)
    if isinstance(value, SymInt | SymFloat | SymBool):
        return ScalarView(inquiry, name, UNDECLARED)
    return value


def _reason(
    inquiry: Inquiry, answer: Any, values: Sequence[Any], implementation: Implementation
) -> str | None:
    if answer is True:
        return None
    if isinstance(answer, str) and answer:
        return answer
    if answer:
        raise PredicateError(
            f"{inquiry.subject} returned {answer!r}; return True, False or a reason as str."
        )
    facts = [f"{spelling} = {value}" for spelling, value in inquiry.facts.items()]
    for parameter, value in zip(implementation.op.schema.parameters, values, strict=True):
        if value is None or isinstance(value, bool | int | float | str):
            if parameter.name in implementation.op.token_dims or value == parameter.default:
                continue
            facts.append(f"{parameter.name} = {value!r}")
    return f"`{inquiry.predicate_name}` refused {', '.join(facts) or 'these arguments'}"
