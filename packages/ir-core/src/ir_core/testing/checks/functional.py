"""Checks of the functional contract: inputs kept, outputs fresh, donation, every way to call."""

import inspect
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

from torch import Tensor

from ir_core.testing.case import Case, Results, copied, require_selected, run
from ir_core.testing.comparison import (
    first_byte_difference,
    is_overlapping,
    worst_difference,
)
from ir_core.testing.errors import CheckDeclined, ConformanceError
from ir_core.weight_layouts import PLAIN

# Rows with a gap between them, and columns too.
_STEPS = (1, 2)
# Far from any input; a kernel that computes it where it should not gets another number.
_BESIDE = 100


def keeps_its_inputs(case: Case) -> None:
    """The default overload leaves every byte of its inputs, except those that the op mutates."""
    arguments = case.arguments()
    before = copied(arguments)
    run(case.implementation, arguments)
    for name, old, new in zip(case.op.schema.names, before, arguments, strict=False):
        if name in case.op.mutates or not isinstance(old, Tensor):
            continue
        at = first_byte_difference(old, new)
        if at is not None:
            raise ConformanceError(
                f"writes into its input `{name}`: index {list(at)} was {old[at].item():.9g} and is "
                f"{new[at].item():.9g}; declare `inplace=True` if it is meant to"
            )


def gives_fresh_outputs(case: Case) -> None:
    """Outputs of the default overload share no memory with the inputs or with each other."""
    arguments = case.arguments()
    outputs = list(enumerate(run(case.implementation, arguments).outputs))
    for name, argument in zip(case.op.schema.names, arguments, strict=False):
        for at, output in outputs:
            if isinstance(argument, Tensor) and is_overlapping(output, argument):
                raise ConformanceError(f"output {at} shares memory with the input `{name}`")
    for (at, output), (other, another) in combinations(outputs, 2):
        if is_overlapping(output, another):
            raise ConformanceError(f"outputs {at} and {other} share memory")


def gives_the_activation_dtype(case: Case) -> None:
    """Outputs have the first activation's dtype, whatever that of the other arguments is."""
    arguments = case.arguments()
    activation = case.op.activations[0]
    expected = arguments[case.op.schema.names.index(activation)].dtype
    for at, output in enumerate(run(case.implementation, copied(arguments)).outputs):
        if output.dtype != expected:
            raise ConformanceError(f"output {at} is {output.dtype}, `{activation}` is {expected}")


def donates_without_a_trace(case: Case) -> None:
    """`maybe_inplace` on donated copies gives the bytes that the default overload gives."""
    arguments = case.arguments()
    default = run(case.implementation, copied(arguments))
    donated = run(case.implementation, copied(arguments), case.op.maybe_inplace)
    _expect_same(default, donated, "`maybe_inplace` and the default overload")


def runs_as_itself(case: Case) -> None:
    """The op, its torch op, an opaque one's own torch op and the bare function agree bitwise."""
    arguments = case.arguments()
    called = run(case.implementation, copied(arguments))
    through_torch = run(case.implementation, copied(arguments), case.op.torch_op)
    bare = run(case.implementation, copied(arguments), case.implementation)
    _expect_same(called, bare, "the op and the bare implementation")
    _expect_same(called, through_torch, "the op and the torch op")
    if case.implementation.opaque:
        own = run(case.implementation, copied(arguments), case.implementation.torch_op)
        _expect_same(called, own, "the op and the opaque implementation's torch op")


def binds_every_call_form(case: Case) -> None:
    """By position, by keyword, and with defaults left out or spelled out, the call is the same."""
    arguments = case.arguments()
    expected = run(case.implementation, copied(arguments))
    names = case.op.schema.names

    def by_keyword(*given: Any) -> Any:
        return case.op(**dict(zip(names, given, strict=True)))

    def mixed(*given: Any) -> Any:
        return case.op(given[0], **dict(zip(names[1:], given[1:], strict=True)))

    def shortest(*given: Any) -> Any:
        kept = list(given)
        for parameter in reversed(case.op.schema.parameters):
            if not kept or parameter.default is inspect.Parameter.empty:
                break
            if isinstance(kept[-1], Tensor) or kept[-1] != parameter.default:
                break
            kept.pop()
        return case.op(*kept)

    for form in (by_keyword, mixed, shortest):
        got = run(case.implementation, copied(arguments), form)
        _expect_same(expected, got, f"a call by position and one {form.__name__}")


def reads_strides(case: Case) -> None:
    """Slices of wider tensors give the same values, with the same strides; the rest is left alone.

    Packed weights are dense: their layout says where each byte lies.
    """
    arguments = case.arguments()
    movable = _movable(case, arguments)
    dense = run(case.implementation, copied(arguments))
    calls = (case.op, case.op.maybe_inplace) if case.op.allow_inplace else (case.op,)
    for call, step in product(calls, _STEPS):
        strided = tuple(
            _strided(each, step) if name in movable else each
            for name, each in zip(case.op.schema.names, arguments, strict=True)
        )
        require_selected(case.implementation, strided)
        got = run(case.implementation, strided, call)
        for label, ours, expected in zip(got.labels, got.tensors, dense.tensors, strict=True):
            if call is case.op and label.startswith("output"):
                _expect_same_layout(label, ours, expected)
            if worst_difference(ours, expected, case.op.tolerance(ours.dtype)) is not None:
                raise ConformanceError(f"{label} of strided inputs differs from that of dense ones")
        for name, argument in zip(case.op.schema.names, strided, strict=True):
            if name in movable and not _is_surrounded(argument):
                raise ConformanceError(f"writes beside `{name}`, into the tensor it is a slice of")


def _expect_same_layout(label: str, strided: Tensor, dense: Tensor) -> None:
    if strided.shape != dense.shape or strided.stride() != dense.stride():
        raise ConformanceError(
            f"{label} of strided inputs has shape {list(strided.shape)}, stride "
            f"{list(strided.stride())}; that of dense ones {list(dense.shape)}, "
            f"{list(dense.stride())}"
        )


def _movable(case: Case, arguments: Sequence[Any]) -> set[str]:
    """Names of the floating tensors and of the weights, but for packed ones."""
    dense = set[str]() if case.layout == PLAIN else set(case.op.weights)
    return {
        name
        for name, each in zip(case.op.schema.names, arguments, strict=True)
        if isinstance(each, Tensor) and (each.is_floating_point() or name in case.op.weights)
    } - dense


def _strided(argument: Tensor, step: int) -> Tensor:
    """The same values as every `step`th column, and part, of a wider tensor."""
    if argument.dim() == 0:
        raise CheckDeclined("a tensor without dims has no strides")
    wider = argument.new_full((*argument.shape[:-1], step * argument.shape[-1] + 1), _BESIDE)
    view = wider[..., 1::step]
    view.copy_(argument)
    return view


def _is_surrounded(view: Tensor) -> bool:
    """Whether what lies around a tensor made by `_strided` is as it was; erases the tensor."""
    view.fill_(_BESIDE)
    size = view.untyped_storage().nbytes() // view.itemsize
    return bool((view.as_strided((size,), (1,), 0) == _BESIDE).all())


def _expect_same(first: Results, second: Results, what: str) -> None:
    for label, one, other in zip(first.labels, first.tensors, second.tensors, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise ConformanceError(f"{label}: {what} differ in shape or dtype")
        at = first_byte_difference(one, other)
        if at is not None:
            raise ConformanceError(
                f"{label}: {what} differ, first at index {list(at)}: {one[at].item():.9g} and "
                f"{other[at].item():.9g}"
            )
