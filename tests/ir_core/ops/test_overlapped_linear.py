"""Products merged with a collective: their meaning in a world of one rank, and their metadata."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import ir_core as ir
from ir_core.groups import Group, scoped_groups

X, WEIGHT, BIAS = torch.arange(12.0).reshape(4, 3), torch.arange(6.0).reshape(2, 3), torch.ones(2)
NAMES = ("linear_reduce_scatter", "all_gather_linear")


def call(name: str, x: Tensor, *rest: Any) -> Tensor:
    counts = (x.shape[0],) if name == "all_gather_linear" else ()
    result: Tensor = getattr(ir.ops, name)(x, *counts, *rest)
    return result


@pytest.mark.parametrize("name", NAMES)
def test_product_of_one_rank_is_linear(name: str) -> None:
    assert torch.equal(call(name, X, WEIGHT, BIAS), X @ WEIGHT.T + 1)


def test_padding_is_cut_before_the_product() -> None:
    x = X.clone()
    x[3] = torch.nan
    assert torch.equal(ir.ops.all_gather_linear(x, 3, WEIGHT), X[:3] @ WEIGHT.T)


def test_more_rows_than_there_are_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        ir.ops.all_gather_linear(X, 5, WEIGHT)


@pytest.mark.parametrize("name", NAMES)
def test_packed_weights_mean_the_same(name: str) -> None:
    packed = ir.ops.linear.pack((X, WEIGHT.clone(), None, "plain"), "panel16")
    assert torch.equal(call(name, X, packed[1], BIAS, "panel16"), X @ WEIGHT.T + 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("x", [X[0], X[:, :2], X[0, 0]], ids=["vector", "width", "scalar"])
def test_rows_that_do_not_fit_are_an_error(x: Tensor, name: str) -> None:
    rest = (1, WEIGHT) if name == "all_gather_linear" else (WEIGHT,)
    with pytest.raises(ir.ArgumentError, match=f"`{name}` got `x` of shape .* rows of 3"):
        getattr(ir.ops, name)(x, *rest)


@pytest.mark.parametrize("name", NAMES)
def test_native_refuses_several_ranks(name: str) -> None:
    with (
        scoped_groups(Group("tp", 1, 3)),
        ir.priority({name: ["native"]}),
        pytest.raises(ir.CollectiveError, match=f"`{name}` by native over axis `tp`, rank 1 of 3"),
    ):
        call(name, X, WEIGHT)


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4])
def test_metadata_of_several_ranks_is_that_of_the_two_ops(num_tokens: int) -> None:
    with scoped_groups(Group("tp", 0, 3)), FakeTensorMode():
        x, weight = torch.empty(num_tokens, 5, 3), torch.empty(2, 3)
        scattered = ir.ops.linear_reduce_scatter(x, weight)
        rows = ir.ops.reduce_scatter(ir.ops.linear(x, weight))
        joined = ir.ops.all_gather_linear(rows.new_empty(rows.shape[0], 5, 3), num_tokens, weight)
    assert (scattered.shape, scattered.stride()) == (rows.shape, rows.stride())
    assert (joined.shape, joined.is_contiguous()) == ((num_tokens, 5, 2), True)
