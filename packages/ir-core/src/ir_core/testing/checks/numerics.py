"""Checks of values: against native in float64, rounding points, and what is not finite."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ir_core.testing.case import Case, Results, copied, require_selected, results, run
from ir_core.testing.comparison import share_differing, worst_difference
from ir_core.testing.errors import CheckDeclined, ConformanceError

_SUBNORMAL = 0.5


def matches_native(case: Case) -> None:
    """Every result is within the op's tolerance of native evaluated in float64."""
    arguments = case.arguments()
    expect_close(case, run(case.implementation, copied(arguments)), arguments)


def rounds_like_native(case: Case) -> None:
    """In a 16-bit dtype hardly any element differs from native's at all.

    An implementation that rounds elsewhere than the op's meaning says stays within every tolerance,
    but about a third of its elements are one unit off.
    """
    limit = case.workload.max_differing
    if limit is None:
        raise CheckDeclined("the workload sets no `max_differing`")
    arguments = case.arguments()
    got = run(case.implementation, copied(arguments))
    expected = _native(case, copied(arguments))
    for label, ours, native in zip(got.labels, got.tensors, expected.tensors, strict=True):
        share = share_differing(ours, native)
        if share > limit:
            raise ConformanceError(
                f"{label}: {share:.1%} of the elements differ from native in {case.dtype_name}, "
                f"at most {limit:.1%} may: it rounds somewhere else than native does. "
                + _first_differing(case, ours, native, arguments)
            )


def passes_on_non_finite(case: Case) -> None:
    """NaN, infinities and subnormal numbers in the activations give what they give in native.

    They lie in all rows but the last, so a case has several.
    """
    if case.op.mutates:
        # Attention: torch's own gives 0 or NaN for a query of NaN, by the number of its keys.
        raise CheckDeclined("rows reach others through what the op writes, so native is no measure")
    arguments = _poisoned(case, case.arguments())
    require_selected(case.implementation, arguments)
    got = run(case.implementation, copied(arguments))
    expected = _native(case, copied(arguments))
    for label, ours, native in zip(got.labels, got.tensors, expected.tensors, strict=True):
        _expect_close(case, label, ours, native, arguments)


def expect_close(case: Case, got: Results, arguments: Sequence[Any]) -> None:
    """Raise ConformanceError, naming the worst element, unless `got` is close to the truth."""
    # A layout goes by bytes, so wider weights are packed otherwise.
    plain = case.op.unpack(copied(arguments))
    expected = _native(case, [_widened(each) for each in plain])
    if len(got.tensors) != len(expected.tensors):
        raise ConformanceError(
            f"gives {len(got.outputs)} outputs, native gives {len(expected.outputs)}"
        )
    for label, ours, truth in zip(got.labels, got.tensors, expected.tensors, strict=True):
        _expect_close(case, label, ours, truth, arguments)


def _expect_close(
    case: Case, label: str, got: Tensor, expected: Tensor, arguments: Sequence[Any]
) -> None:
    if got.shape != expected.shape:
        raise ConformanceError(f"{label}: shape {list(got.shape)}, not {list(expected.shape)}")
    difference = worst_difference(got, expected, case.op.tolerance(got.dtype))
    if difference is not None:
        inputs = _inputs_at(case, difference.index, got.shape, arguments)
        raise ConformanceError(f"{label}: {difference}{inputs}")


def _native(case: Case, arguments: Sequence[Any]) -> Results:
    with torch.no_grad():
        return results(case.op, case.op.native(*arguments), arguments)


def _widened(argument: Any) -> Any:
    if isinstance(argument, Tensor) and argument.is_floating_point():
        return argument.to(torch.float64)
    return argument


def _poisoned(case: Case, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with odd values scattered over the activations; the last row stays clean."""
    tiny = torch.finfo(case.dtype).tiny * _SUBNORMAL
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, tiny, -tiny, -0.0], dtype=case.dtype)
    poisoned = list(arguments)
    for at, name in enumerate(case.op.schema.names):
        if name not in case.op.activations or not isinstance(arguments[at], Tensor):
            continue
        tensor = arguments[at].clone()
        rows = tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]
        for row in range(len(rows) - 1):
            rows[row, row % rows.shape[1]] = odd[row % len(odd)]
        poisoned[at] = tensor
    return tuple(poisoned)


def _first_differing(case: Case, got: Tensor, native: Tensor, arguments: Sequence[Any]) -> str:
    at = tuple(int(each) for each in torch.nonzero(got != native)[0])
    return (
        f"First at index {list(at)}: got {got[at].item():.9g}, expected {native[at].item():.9g}"
        + _inputs_at(case, at, got.shape, arguments)
    )


def _inputs_at(
    case: Case, index: tuple[int, ...], shape: torch.Size, arguments: Sequence[Any]
) -> str:
    """The element of each tensor argument that has the result's shape."""
    values = [
        f"{name}={argument[index].item():.9g}"
        for name, argument in zip(case.op.schema.names, arguments, strict=False)
        if isinstance(argument, Tensor) and argument.shape == shape
    ]
    return f"; input there: {', '.join(values)}" if values else ""
