"""Cutting keeps the program: every value reaches its users, and sizes come along."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ir_passes.dialect import Dialect
from ir_passes.errors import SplitError
from ir_passes.splitting.split import Piece, split_graph
from ir_passes.splitting.structure import structure_of

from .compiled import compile_whole
from .graphs import random_tensors, trace
from .kernel_toy import Kernels

ROWS, CACHE = ("T", 8), (8,)


def layered(kernels: Kernels, num_layers: int, factors: tuple[float, ...] = (3.0,)) -> Any:
    """A model of equal layers around a cache; factors in turn."""

    def function(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        residual = x * 2
        for layer in range(num_layers):
            x = kernels.scale(x, None, factors[layer % len(factors)])
            kernels.store(x, cache)
            x, residual = kernels.merge.maybe_inplace(x + 1, residual)
        return x, residual

    return function


def check(kernels: Kernels, function: Any, *shapes: Any, pieces: int, distinct: int) -> None:
    """Compile with the interpreter and compare with eager mode, for several token counts."""
    whole = trace(function, *shapes, dialect=kernels.dialect)
    program, run = compile_whole(whole, kernels.dialect)
    assert (len(program.units), len(program.distinct_units)) == (pieces, distinct)
    for tokens in (5, 1, 2):
        given, same = (random_tensors(*shapes, tokens=tokens) for _ in range(2))
        wanted = function(*same)
        torch.testing.assert_close(tuple(run(*given)), wanted, rtol=0, atol=0)
        torch.testing.assert_close(given[-1], same[-1], rtol=0, atol=0)


def test_graph_without_splitting_op_is_one_piece(kernels: Kernels) -> None:
    def function(x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        return (kernels.scale(x) + cache,)

    check(kernels, function, ROWS, CACHE, pieces=1, distinct=1)


@pytest.mark.parametrize("num_layers", [2, 8, 30])
def test_equal_layers_are_three_distinct_pieces(kernels: Kernels, num_layers: int) -> None:
    kernels.prefer(merge=("inplace",))
    check(kernels, layered(kernels, num_layers), ROWS, CACHE, pieces=num_layers + 1, distinct=3)


def test_pieces_that_differ_in_a_constant_are_distinct(kernels: Kernels) -> None:
    check(kernels, layered(kernels, 6, (3.0, 4.0)), ROWS, CACHE, pieces=7, distinct=4)


def test_splitting_ops_in_a_row_need_no_piece_between_them(kernels: Kernels) -> None:
    def function(x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        kernels.store(y, cache)
        kernels.store(y, cache)
        return (y * 2,)

    check(kernels, function, ROWS, CACHE, pieces=2, distinct=2)


def test_splitting_op_first_and_last(kernels: Kernels) -> None:
    def function(x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        kernels.store(x, cache)
        y = x + 1
        kernels.store(y, cache)
        return (y,)

    check(kernels, function, ROWS, CACHE, pieces=1, distinct=1)


def test_sizes_and_views_cross_a_cut(kernels: Kernels) -> None:
    def function(x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        half = x[: x.shape[0] // 2]
        wide = x.view(-1)
        kernels.store(x, cache)
        return half * 2, wide + wide.shape[0], x.new_full((x.shape[0] * 2,), 1.0)

    check(kernels, function, ROWS, CACHE, pieces=2, distinct=2)


def test_outputs_of_a_splitting_op_are_taken_where_it_runs(kernels: Kernels) -> None:
    dialect = Dialect(kernels.registry, ("merge",))

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        first, second = kernels.merge(x + 1, y)
        return first * 2, second

    whole = trace(function, ROWS, ROWS, dialect=dialect)
    program, run = compile_whole(whole, dialect)
    kinds = [isinstance(step, Piece) for step in program.split.steps]
    assert kinds[kinds.index(True) :] == [True, False, False, False, True]
    given = random_tensors(ROWS, ROWS)
    torch.testing.assert_close(tuple(run(*given)), function(*given), rtol=0, atol=0)


def test_outputs_of_a_call_before_the_cut_are_taken_before_it(kernels: Kernels) -> None:
    def function(x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        merged = kernels.merge(x, x * 2)
        kernels.store(x, cache)
        return merged[0] + 1, merged[1]

    check(kernels, function, ROWS, CACHE, pieces=2, distinct=2)


def test_size_that_no_input_gives_is_an_error(kernels: Kernels) -> None:
    def function(x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        kernels.store(x, cache)
        return (x * 2,)

    whole = trace(function, ROWS, CACHE, dialect=kernels.dialect)
    for node in whole.module.graph.nodes:
        if node.op == "placeholder":
            node.meta["val"] = None
    with pytest.raises(SplitError, match="No input of the graph says what the size"):
        split_graph(whole.module, kernels.dialect)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda k, x: k.scale(x, None, 2.0), lambda k, x: k.scale(x, None, 2.5)),
        (lambda k, x: x + 1, lambda k, x: x + 1.0),
        (lambda k, x: x.view(-1, 2, 4), lambda k, x: x.view(-1, 4, 2)),
        (lambda k, x: x.to(torch.float64), lambda k, x: x.to(torch.bfloat16)),
        (lambda k, x: x + torch.ones(8), lambda k, x: x + torch.zeros(8)),
        (lambda k, x: x[:, :4] * 2, lambda k, x: x[:, 4:] * 2),
    ],
)
def test_structure_tells_apart_what_compiles_to_other_code(
    kernels: Kernels, first: Any, second: Any
) -> None:
    def structure(function: Any) -> str:
        whole = trace(lambda x: function(kernels, x), ROWS, dialect=kernels.dialect)
        (piece,) = split_graph(whole.module, kernels.dialect).pieces
        return structure_of(piece, kernels.dialect)

    assert structure(first) == structure(first)
    assert structure(first) != structure(second)


def test_structure_tells_apart_inputs_that_share_memory(kernels: Kernels) -> None:
    def structure(function: Any) -> str:
        whole = trace(function, ROWS, CACHE, dialect=kernels.dialect)
        return structure_of(split_graph(whole.module, kernels.dialect).pieces[1], kernels.dialect)

    def shared(x: Tensor, cache: Tensor) -> Any:
        base = x + 1
        first, second = base.view(-1, 8), base.view(-1, 8)
        kernels.store(x, cache)
        return first * second

    def apart(x: Tensor, cache: Tensor) -> Any:
        first, second = x + 1, x + 2
        kernels.store(x, cache)
        return first * second

    # The product lies in memory of its own.
    assert "memory 2" in structure(apart)
    assert "memory 2" not in structure(shared)


def test_input_may_be_overwritten_only_in_the_piece_of_its_last_use(kernels: Kernels) -> None:
    def function(x: Tensor, cache: Tensor) -> Any:
        early, late = x + 1, x + 2
        kernels.store(x, cache)
        first, second = kernels.merge(early, late)
        kernels.store(first, cache)
        return kernels.merge(second, late)

    whole = trace(function, ROWS, CACHE, dialect=kernels.dialect)
    pieces = split_graph(whole.module, kernels.dialect).pieces
    taken = [[piece.inputs[place].name for place in sorted(piece.overwritable)] for piece in pieces]
    (early, _), (_, late) = [node.name for node in pieces[0].outputs], ["", "add_1"]
    assert taken[1] == [early]
    assert late in taken[2]
    assert len(taken[2]) == 2
