"""Arguments by name: however a call is spelled, it is the same call."""

import pytest
import torch
from torch.fx import Graph

from ir_passes.arguments import bind, bound_arguments

ADD = torch.ops.aten.add.Tensor


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1, 2), {}), ((1,), {"other": 2}), ((1, 2), {"alpha": 1}), ((), {"self": 1, "other": 2})],
)
def test_spellings_of_one_call_bind_alike(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    assert bind(ADD, args, kwargs) == {"self": 1, "other": 2, "alpha": 1}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1,), {}, r"misses \['other'\]"),
        ((1, 2, 3, 4), {}, "takes 3 arguments, got 4"),
        ((1, 2), {"self": 1}, "got `self` twice"),
        ((1, 2), {"aplha": 1}, "no parameter `aplha`; did you mean `alpha`"),
    ],
)
def test_call_that_does_not_fit_is_named(
    args: tuple[int, ...], kwargs: dict[str, int], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        bind(ADD, args, kwargs)


def test_node_that_calls_no_op_has_no_arguments_by_name() -> None:
    node = Graph().call_function(torch.add, (1, 2))
    with pytest.raises(TypeError, match="no torch op"):
        bound_arguments(node)
