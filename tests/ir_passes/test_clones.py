"""A clone goes only where the memory it copies is provably dead; the results never change."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph

from ir_passes.errors import LoweringError
from ir_passes.evaluation import refresh_fakes
from ir_passes.lowering.clones import check_outputs_apart
from ir_passes.metadata import fake_mode_of, storages_of

from .compiled import compile_whole, lower_whole
from .graphs import calls, random_tensors, trace
from .kernel_toy import Kernels

ROWS = ("T", 8)
WIDE = ("T", 16)


def lower_merging(
    kernels: Kernels,
    function: Callable[..., Any],
    *shapes: Any,
    overwritable: str = "",
    kept: int,
) -> list[str]:
    """Lower with the in-place kernel, compare with eager, and return the reasons of kept clones."""
    kernels.prefer(merge=("inplace",))
    names = [f"in{index}" for index in range(len(shapes))]
    whole = trace(function, *shapes, names=" ".join(names), dialect=kernels.dialect)
    _, rows = lower_whole(whole, kernels.dialect, overwritable.split())
    shared = shared_memory(whole.module.graph)
    refresh_fakes(whole.module.graph, fake_mode_of(whole.module.graph))
    assert shared == shared_memory(whole.module.graph), "as if all were made anew"
    reasons = [row.reason for row in rows if row.is_kept]
    assert len(reasons) == kept, rows
    assert calls(whole.module).count("clone") >= kept
    for tokens in (5, 2, 1):
        inputs = random_tensors(*shapes, tokens=tokens)
        wanted = function(*(each.clone() for each in inputs))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        before = [each.clone() for each in inputs]
        torch.testing.assert_close(tuple(whole.module(*inputs)), wanted, rtol=0, atol=0)
        for name, each, old in zip(names, inputs, before, strict=True):
            if name not in overwritable.split():
                torch.testing.assert_close(each, old, rtol=0, atol=0)
    return reasons


def shared_memory(graph: Graph) -> set[tuple[str, str]]:
    """The pairs of values that lie in the same memory, by their fakes."""
    pairs = combinations((node for node in graph.nodes if node.op != "output"), 2)
    return {(a.name, b.name) for a, b in pairs if storages_of(a) & storages_of(b)}


def test_values_made_in_the_graph_and_dead_are_overwritten(kernels: Kernels) -> None:
    lower_merging(kernels, lambda x, y: kernels.merge(x + 1, y * 2), ROWS, ROWS, kept=0)


def test_input_is_overwritten_only_if_it_may_be(kernels: Kernels) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        return kernels.merge(x, y)

    reasons = lower_merging(kernels, function, ROWS, ROWS, kept=2)
    assert all("belongs to the caller" in reason for reason in reasons)
    lower_merging(kernels, function, ROWS, ROWS, overwritable="in0", kept=1)
    lower_merging(kernels, function, ROWS, ROWS, overwritable="in0 in1", kept=0)


def test_value_read_later_keeps_its_clone(kernels: Kernels) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        left = x + 1
        merged, rest = kernels.merge(left, y * 2)
        return merged, rest + left

    (reason,) = lower_merging(kernels, function, ROWS, ROWS, kept=1)
    assert "lies in the same memory" in reason


def test_value_returned_keeps_its_clone(kernels: Kernels) -> None:
    def function(x: Tensor) -> Any:
        left = x + 1
        return (*kernels.merge(left, x * 2), left)

    (reason,) = lower_merging(kernels, function, ROWS, kept=1)
    assert reason.startswith("`output` returns")


def test_view_read_later_keeps_the_clone_of_its_base(kernels: Kernels) -> None:
    def function(x: Tensor) -> Any:
        left = x + 1
        row = left[:, 2:4]
        return (*kernels.merge(left, x * 2), row * 2)

    lower_merging(kernels, function, ROWS, kept=1)


def test_clone_of_a_view_whose_base_lives_on_stays(kernels: Kernels) -> None:
    def function(x: Tensor) -> Any:
        base = x + 1
        flat = base.view(-1, 2, 8)
        first, second = kernels.merge(flat, flat * 2)
        return first, second, base * 3

    lower_merging(kernels, function, WIDE, kept=1)


def test_one_value_given_twice_keeps_one_clone_at_least(kernels: Kernels) -> None:
    def function(x: Tensor) -> Any:
        left = x + 1
        return kernels.merge(left, left)

    lower_merging(kernels, function, ROWS, kept=1)


def test_two_calls_on_one_value_keep_the_first_clone(kernels: Kernels) -> None:
    def function(x: Tensor) -> Any:
        left = x + 1
        return (*kernels.merge(left, x * 2), *kernels.merge(left, x * 3))

    (reason,) = lower_merging(kernels, function, ROWS, kept=1)
    assert "clone" in reason


def test_strided_value_keeps_its_clone_since_results_are_contiguous(kernels: Kernels) -> None:
    def function(x: Tensor) -> Any:
        both = x + 1
        return kernels.merge(both[:, :8], both[:, 8:])

    reasons = lower_merging(kernels, function, WIDE, kept=2)
    assert all("laid out otherwise" in reason for reason in reasons)


def test_expanded_value_keeps_its_clone(kernels: Kernels) -> None:
    def function(x: Tensor) -> Any:
        return kernels.merge((x[:, :1] + 1).expand(-1, 8), x * 2)

    lower_merging(kernels, function, ROWS, kept=1)


def test_halves_of_one_buffer_are_overwritten_apart(kernels: Kernels) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        both = torch.stack((x, y))
        return kernels.merge(both[0], both[1])

    # Where the second half begins depends on the token count, so it is not proven to be apart.
    lower_merging(kernels, function, ROWS, ROWS, kept=1)


def test_chain_of_in_place_calls_needs_no_clone(kernels: Kernels) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        first, second = kernels.merge(x, y)
        first, second = kernels.merge(first * 2, second)
        return kernels.merge(first, second)

    lower_merging(kernels, function, ROWS, ROWS, overwritable="in0 in1", kept=0)


def test_clone_that_nothing_writes_is_left_alone(kernels: Kernels) -> None:
    whole = trace(lambda x: x.clone(), ROWS, dialect=kernels.dialect)
    lower_whole(whole, kernels.dialect, ["in0"])
    assert calls(whole.module) == ["clone"]


def test_outputs_that_come_to_share_memory_are_an_error() -> None:
    apart = [torch.zeros(4), torch.zeros(4)]
    base = torch.zeros(8)
    check_outputs_apart(apart, [base[:4], base[4:]])
    check_outputs_apart([base[:4], base[2:]], [base[:4], base[2:]])
    with pytest.raises(LoweringError, match="Outputs 0 and 1"):
        check_outputs_apart(apart, [base[:5], base[4:]])


def test_op_that_becomes_one_tensor_for_two_outputs_is_an_error(kernels: Kernels) -> None:
    @kernels.merge.register_impl("twin")
    def twin(x: Tensor, x_other: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        total = x + x_other
        return total, total

    kernels.prefer(merge=("twin",))
    whole = trace(lambda x: kernels.merge(x, x * 2), ROWS, dialect=kernels.dialect)
    with pytest.raises(LoweringError, match="Outputs 0 and 1"):
        compile_whole(whole, kernels.dialect)
