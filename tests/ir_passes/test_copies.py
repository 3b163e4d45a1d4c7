"""A static copy of a graph has numbers for sizes, and shares memory where the original does."""

from typing import Any

import pytest
import torch
from torch import SymInt, Tensor

from ir_passes.compiling.copies import copy_module, specialize
from ir_passes.errors import CompileError
from ir_passes.metadata import fake_of, storages_of
from ir_passes.splitting.split import split_graph

from .graphs import calls, random_tensors, trace
from .kernel_toy import Kernels

ROWS, CACHE = ("T", 8), (8,)


def token_symbol(whole: Any) -> Any:
    (size,) = {
        size.node.expr
        for node in whole.module.graph.find_nodes(op="placeholder")
        for size in fake_of(node).shape
        if isinstance(size, SymInt)
    }
    return size


def test_copy_is_a_graph_of_its_own_with_the_same_values() -> None:
    whole = trace(lambda x: x * 2 + 1, ROWS)
    copy = copy_module(whole.module)
    for old, new in zip(whole.module.graph.nodes, copy.graph.nodes, strict=True):
        assert old is not new
        assert fake_of(old) is fake_of(new)
    copy.graph.erase_node(copy.graph.output_node())
    assert len(whole.module.graph.nodes) == len(copy.graph.nodes) + 1


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_static_copy_computes_the_same(kernels: Kernels, tokens: int) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return kernels.scale(x, w, 3.0).view(-1) * x.shape[0]

    whole = trace(function, ROWS, CACHE, dialect=kernels.dialect)
    static = specialize(whole.module, {token_symbol(whole): tokens})
    sizes = [fake_of(node) for node in static.graph.nodes if node.op == "call_function"]
    assert not [size for each in sizes for size in each.shape if isinstance(size, SymInt)]
    assert "scale" in calls(static)
    given = random_tensors(ROWS, CACHE, tokens=tokens)
    numbers = [tokens] * (len(static.graph.find_nodes(op="placeholder")) - 2)
    torch.testing.assert_close(static(*given, *numbers)[0], function(*given), rtol=0, atol=0)


def test_views_of_one_buffer_stay_views_of_one_buffer(kernels: Kernels) -> None:
    def function(x: Tensor, cache: Tensor) -> Any:
        both = x + 1
        left, right = both[:, :4], both[:, 4:]
        kernels.store(x, cache)
        return left * right

    whole = trace(function, ROWS, CACHE, dialect=kernels.dialect)
    piece = split_graph(whole.module, kernels.dialect).pieces[1]
    static = specialize(piece.module, {token_symbol(whole): 3})
    tensors = [
        node for node in static.graph.find_nodes(op="placeholder")
        if isinstance(fake_of(node), Tensor)
    ]  # fmt: skip
    assert len({*map(storages_of, tensors)}) == 1
    assert {fake_of(node).storage_offset() for node in tensors} == {0, 4}
    assert [tuple(fake_of(node).stride()) for node in tensors] == [(8, 1), (8, 1)]


def test_symbol_without_a_value_is_an_error() -> None:
    whole = trace(lambda x: x * 2, ROWS)
    with pytest.raises(CompileError, match="is not known for a static program"):
        specialize(whole.module, {})
