"""Groups of ranks by axis: setting, restoring, asking, and what a change makes ops forget."""

import re
import threading
from typing import Any

import pytest
import torch
from torch._dynamo.decorators import mark_unbacked
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import ir_core as ir
from ir_core import groups
from ir_core.groups import CollectiveError, Group, GroupError, UnknownAxisError

PAIR = Group("tp", 1, 2)
X = torch.arange(12.0).reshape(4, 3)
OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_reduce_add_rms_norm")


def test_an_axis_that_nobody_set_is_a_world_of_one() -> None:
    group = groups.get_group("nobody")
    assert (group.axis, group.rank, group.size) == ("nobody", 0, 1)


def test_a_group_holds_until_it_is_unset() -> None:
    groups.set_group(PAIR)
    try:
        assert groups.get_group("tp") is PAIR
        assert groups.require_group("tp") is PAIR
    finally:
        groups.unset_group("tp")
    assert groups.get_group("tp").size == 1
    groups.unset_group("tp")


def test_scopes_nest_and_restore_what_was_there() -> None:
    with groups.scoped_groups(PAIR, Group("pp", 0, 3)):
        assert groups.axis_sizes() == {"pp": 3, "tp": 2}
        with groups.scoped_groups(Group("tp", 0, 4)):
            assert groups.axis_sizes() == {"pp": 3, "tp": 4}
        assert groups.get_group("tp") is PAIR
    assert groups.axis_sizes() == {}


def test_a_scope_is_left_by_an_error_too() -> None:
    with pytest.raises(ValueError, match="inside"), groups.scoped_groups(PAIR):
        raise ValueError("inside")
    assert groups.axis_sizes() == {}


def test_a_group_is_that_of_all_threads() -> None:
    sizes: list[int] = []
    with groups.scoped_groups(PAIR):
        thread = threading.Thread(target=lambda: sizes.append(groups.get_group("tp").size))
        thread.start()
        thread.join()
    assert sizes == [2]


def test_threads_that_set_axes_at_once_lose_none() -> None:
    axes = [f"axis{number}" for number in range(16)]
    threads = [
        threading.Thread(target=groups.set_group, args=(Group(each, 0, 2),)) for each in axes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert list(groups.axis_sizes()) == sorted(axes)
    finally:
        for axis in axes:
            groups.unset_group(axis)


def test_an_axis_that_is_required_and_missing_is_an_error_that_names_those_set() -> None:
    with pytest.raises(UnknownAxisError, match="`tp`; no axis was set in this process"):
        groups.require_group("tp")
    with (
        groups.scoped_groups(PAIR),
        pytest.raises(UnknownAxisError, match="axis `pt`; Valid: `tp`"),
    ):
        groups.require_group("pt")


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_its_group_is_an_error(rank: int, size: int) -> None:
    with pytest.raises(GroupError, match=f"Axis `tp`: rank {rank} is not one of {size}"):
        Group("tp", rank, size)


def test_a_timeout_that_is_none_is_an_error() -> None:
    with pytest.raises(GroupError, match="timeout of 0 s; it must be positive"):
        Group("tp", 0, 2, timeout_s=0)


def test_a_transport_that_the_launcher_did_not_give_names_those_it_did() -> None:
    group = Group("tp", 0, 2, {"gloo": object()})
    with pytest.raises(GroupError, match=r"`shm` cannot reach the 2 ranks of axis `tp`.* but gloo"):
        group.transport("shm")


@pytest.mark.parametrize("name", OPS)
def test_native_refuses_an_axis_of_several_ranks(name: str) -> None:
    arguments = {"all_gather": (X, 4), "all_reduce_add_rms_norm": (X, X, None, 1e-5)}.get(
        name, (X,)
    )
    with groups.scoped_groups(PAIR), ir.priority({name: ["native"]}):
        expected = re.escape(f"`{name}` by native over axis `tp`, rank 1 of 2")
        with pytest.raises(CollectiveError, match=expected):
            ir.registry()[name](*arguments)
        # Another axis is not concerned.
        assert shape_of(ir.registry()[name](*arguments, group="other")) == X.shape
    assert shape_of(ir.registry()[name](*arguments)) == X.shape


def shape_of(result: Any) -> torch.Size:
    """Of the only tensor, or of the first."""
    return (result if isinstance(result, torch.Tensor) else result[0]).shape


def test_listeners_hear_of_every_change() -> None:
    sizes: list[int] = []
    groups.subscribe(lambda: sizes.append(groups.get_group("heard").size))
    with groups.scoped_groups(Group("heard", 0, 3)):
        pass
    groups.set_group(Group("heard", 0, 2))
    groups.unset_group("heard")
    assert sizes == [3, 1, 2, 1]


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (2, 1), (3, 2), (7, 4), (64, 32), (0, 0)])
def test_fakes_know_the_ranks(tokens: int, rows: int) -> None:
    with groups.scoped_groups(PAIR), FakeTensorMode() as mode:
        x = mode.from_tensor(torch.empty(tokens, 3))
        assert ir.ops.all_reduce(x).shape == (tokens, 3)
        scattered = ir.ops.reduce_scatter(x)
        assert scattered.shape == (rows, 3)
        assert ir.ops.all_gather(scattered, tokens).shape == (tokens, 3)


def test_fakes_give_dense_tensors() -> None:
    with groups.scoped_groups(PAIR), FakeTensorMode() as mode:
        x = mode.from_tensor(torch.empty(3, 4).T)
        calls = (ir.ops.all_reduce(x), ir.ops.reduce_scatter(x), ir.ops.all_gather(x, 8))
        assert all(each.is_contiguous() for each in calls)


def test_a_graph_holds_the_size_of_an_axis_in_shapes_only() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return ir.ops.all_gather(ir.ops.reduce_scatter(x), x.shape[0])

    with groups.scoped_groups(PAIR):
        graph = make_fx(function, tracing_mode="symbolic")(torch.empty(7, 3))
    nodes = {str(node.target): node for node in graph.graph.nodes}
    assert "2" not in [str(each) for node in graph.graph.nodes for each in node.args]
    x, scattered = nodes["x_1"].meta["val"], nodes["ir.reduce_scatter.default"].meta["val"]
    assert str(scattered.shape[0]) == f"(({x.shape[0]} + 1)//2)"
    assert nodes["ir.all_gather.default"].meta["val"].shape == x.shape


def test_a_count_of_which_nothing_is_known_gives_no_guard() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ir.ops.all_gather(ir.ops.reduce_scatter(x), x.shape[0])

    x = torch.empty(7, 3)
    mark_unbacked(x, 0)
    with groups.scoped_groups(PAIR):
        program = torch.export.export(Model(), (x,), strict=False)
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [name for name in names if "sym_size" not in name] == [
        "ir.reduce_scatter.default",
        "ir.all_gather.default",
    ]
