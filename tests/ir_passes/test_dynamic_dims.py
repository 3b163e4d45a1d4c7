"""Dims are marked by the path of their argument, on aliases; wrong paths and sizes are errors."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.fx.experimental import _config

from ir_passes.config import DynamicShapesType
from ir_passes.errors import TraceError
from ir_passes.tracing.dynamic_dims import TOKENS, DynamicDim, mark_dynamic_dims, shapes_mode


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def function(x: Tensor, pair: Pair, options: dict[str, Any], rows: list[Tensor]) -> Tensor:
    return x


def _arguments() -> tuple[Any, ...]:
    x = torch.zeros(6, 3)
    return x, Pair(x[:, 0], x[:2]), {"table": torch.zeros(3, 6)}, [x, x]


@pytest.mark.parametrize("kind", DynamicShapesType)
def test_marks_reach_every_kind_of_container(kind: DynamicShapesType) -> None:
    dims = {"x": 0, "pair.first": [0], "options.table": {1: TOKENS, 0: "rows"}, "rows.1": 0}
    call = mark_dynamic_dims(function, _arguments(), {}, dims, kind)
    x, pair, options, rows = call.args
    mark = (
        "_dynamo_unbacked_indices"
        if kind is DynamicShapesType.UNBACKED
        else "_dynamo_dynamic_indices"
    )
    assert getattr(x, mark) == {0}
    assert getattr(pair.first, mark) == {0}
    is_backed = kind is DynamicShapesType.BACKED
    assert getattr(options["table"], mark) == ({1} if is_backed else {0, 1})
    assert not hasattr(pair.second, mark)
    if is_backed:
        assert options["table"]._dynamo_unbacked_indices == {0}
    assert isinstance(pair, Pair)
    assert not hasattr(rows[0], mark)
    assert hasattr(rows[1], mark)
    assert DynamicDim("options.table", 0, "rows") in call.dims


def test_marked_tensors_share_the_callers_memory_and_leave_no_mark() -> None:
    args = _arguments()
    call = mark_dynamic_dims(function, args, {}, {"x": 0}, DynamicShapesType.BACKED)
    assert call.args[0].data_ptr() == args[0].data_ptr()
    assert not hasattr(args[0], "_dynamo_dynamic_indices")


def test_keyword_arguments_are_found_by_name() -> None:
    x, pair, options, rows = _arguments()
    keywords = {"pair": pair, "options": options, "rows": rows}
    call = mark_dynamic_dims(function, (x,), keywords, {"pair.first": 0}, DynamicShapesType.BACKED)
    assert hasattr(call.args[1].first, "_dynamo_dynamic_indices")


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"y": 0}, "names `y`; Valid: `options`"),
        ({"pair.frist": 0}, "names `pair.frist`; did you mean `first`"),
        ({"options": 0}, "which is a dict"),
        ({"x": 2}, "gives dim 2 of `x`, which has 2"),
        ({"x": -1}, "gives dim -1"),
        ({"x": 0, "pair.second": 0}, "`pair.second` has 2 tokens in dim 0, but `x` has 6"),
    ],
)
def test_wrong_dims_are_errors(dims: dict[str, int], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        mark_dynamic_dims(function, _arguments(), {}, dims, DynamicShapesType.UNBACKED)


@pytest.mark.parametrize("kind", DynamicShapesType)
def test_only_one_kind_is_oblivious_and_only_inside(kind: DynamicShapesType) -> None:
    with shapes_mode(kind):
        is_oblivious = kind is DynamicShapesType.BACKED_SIZE_OBLIVIOUS
        assert _config.backed_size_oblivious is is_oblivious
    assert not _config.backed_size_oblivious
