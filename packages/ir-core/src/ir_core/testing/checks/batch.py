"""Checks that a batch cannot be seen: in the choice of an implementation and, if claimed, a row."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ir_core.errors import PredicateError
from ir_core.testing.case import Case, copied, forced, run
from ir_core.testing.comparison import first_byte_difference
from ir_core.testing.errors import CheckDeclined, ConformanceError

_COUNTS = (0, 1, 2, 7, 8, 64)
_NUM_ROWS = 7
# Torch gives a second thread its share from 32768 elements on; outputs may be half as wide as rows.
_SPLIT_ELEMENTS = 4 * 32768


def selects_the_same_for_every_batch(case: Case) -> None:
    """The verdict, its reason included, does not change with the number of tokens, nor in time."""
    seen: dict[tuple[str, str], int] = {}
    for count in _COUNTS:
        arguments = case.arguments(num_tokens=count)
        for _ in range(2):
            seen.setdefault(_verdict(case, arguments), count)
    if len(seen) > 1:
        told = "; ".join(f"{count} tokens: {' '.join(each)}" for each, count in seen.items())
        raise ConformanceError(f"`supports_args` depends on the number of tokens: {told}")


def keeps_rows_apart(case: Case) -> None:
    """A row has the same bytes alone, in another place, and among other rows."""
    arguments = case.arguments(num_tokens=_NUM_ROWS)
    others = case.arguments(num_tokens=_NUM_ROWS, seed=1)
    _require_rows(case, arguments)
    together = run(case.implementation, copied(arguments)).outputs
    for row in (0, _NUM_ROWS // 2, _NUM_ROWS - 1):
        alone = run(case.implementation, _rows(case, arguments, [row])).outputs
        moved = run(case.implementation, _mixed(case, arguments, row, others)).outputs
        for at, output in enumerate(together):
            _expect_row(output[row], alone[at][0], f"output {at}, row {row}: alone")
            _expect_row(output[row], moved[at][-1], f"output {at}, row {row}: among others")


def keeps_threads_apart(case: Case) -> None:
    """Rows have the bytes that they have alone where the work is split between two threads."""
    _require_rows(case, case.arguments(num_tokens=_NUM_ROWS))
    num_rows = _num_split_rows(case)
    arguments = case.arguments(num_tokens=num_rows)
    with _two_threads():
        together = run(case.implementation, copied(arguments)).outputs
        for row in (num_rows // 2 - 1, num_rows // 2, num_rows // 2 + 1):
            alone = run(case.implementation, _rows(case, arguments, [row])).outputs
            for at, output in enumerate(together):
                _expect_row(output[row], alone[at][0], f"output {at}, row {row}: alone")


def _num_split_rows(case: Case) -> int:
    """An odd number, so that the second half begins in the middle of a row."""
    arguments = case.arguments(num_tokens=1)
    named = dict(zip(case.op.schema.names, arguments, strict=True))
    rows = [named[name] for name in case.op.activations]
    row = rows[0] if rows else run(case.implementation, arguments).outputs[0]
    return max(3, _SPLIT_ELEMENTS // max(1, row.numel())) | 1


@contextmanager
def _two_threads() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _verdict(case: Case, arguments: Sequence[Any]) -> tuple[str, str]:
    op = case.op
    try:
        with forced(case.implementation):
            selection = op.registry.select(op, *arguments)
    except PredicateError as error:
        raise ConformanceError(str(error)) from error
    reasons = {each.provider: each.reason for each in selection.rejections}
    if case.provider in reasons:
        return "rejected,", reasons[case.provider]
    return "accepted", ""


def _require_rows(case: Case, arguments: Sequence[Any]) -> None:
    if case.op.mutates:
        raise CheckDeclined("the op's rows share what it writes, so none can be run alone")
    for name, argument in zip(case.op.schema.names, arguments, strict=False):
        dims = case.op.token_dims.get(name, frozenset())
        if 0 in dims and isinstance(argument, Tensor) and argument.shape[0] != _NUM_ROWS:
            raise CheckDeclined(f"`{name}` does not have one row per token")


def _rows(case: Case, arguments: Sequence[Any], rows: list[int]) -> tuple[Any, ...]:
    return tuple(
        argument[rows].clone() if by_row else len(rows) if is_count else argument
        for argument, by_row, is_count in _kinds(case, arguments)
    )


def _mixed(
    case: Case, arguments: Sequence[Any], row: int, others: Sequence[Any]
) -> tuple[Any, ...]:
    """Five other rows, then the row: another place, another count, other neighbours."""
    return tuple(
        torch.cat((other[:5], argument[row : row + 1])) if by_row else 6 if is_count else argument
        for (argument, by_row, is_count), other in zip(_kinds(case, arguments), others, strict=True)
    )


def _kinds(case: Case, arguments: Sequence[Any]) -> Iterator[tuple[Any, bool, bool]]:
    """Each argument, whether it has a row per token, and whether it is the number of tokens."""
    for name, argument in zip(case.op.schema.names, arguments, strict=True):
        by_row = isinstance(argument, Tensor) and 0 in case.op.token_dims.get(name, frozenset())
        yield argument, by_row, isinstance(argument, int) and name in case.op.token_dims


def _expect_row(expected: Tensor, got: Tensor, what: str) -> None:
    at = first_byte_difference(_with_one_nan(expected), _with_one_nan(got))
    if at is not None:
        raise ConformanceError(
            f"{what} it is {got[at].item():.9g} at {list(at)}, in its batch "
            f"{expected[at].item():.9g}; it claims to be batch-invariant"
        )


def _with_one_nan(tensor: Tensor) -> Tensor:
    """The same with one NaN for all: which one an operation gives is nobody's to say."""
    if not tensor.is_floating_point():
        return tensor
    wide = tensor.float() if tensor.itemsize == 1 else tensor  # which torch cannot fill
    return wide.masked_fill(wide.isnan(), torch.nan)
