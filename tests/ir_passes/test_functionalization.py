"""Models that write tensors in place become functional by AOTAutograd, and mean the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_passes.dialect import Dialect, written_arguments
from ir_passes.donation import donated_arguments
from ir_passes.errors import TraceError
from ir_passes.tracing.whole_graph import Route, WholeGraph, trace_function
from ir_passes.verifier import is_write_back, verify

from .conftest import Toy
from .graphs import FakeInputs, calls, node_calling, random_tensors, trace

ROWS = ("T", 8)


def _assert_agrees(whole: WholeGraph, model: Callable[..., Any], tokens: int = 5) -> None:
    """Outputs and changed inputs are those of the model."""
    mine, theirs = (random_tensors(*[ROWS] * len(whole.inputs), tokens=tokens) for _ in range(2))
    got = whole.bind(whole.module)(*mine)
    wanted = model(*theirs)
    torch.testing.assert_close(tuple(got), wanted if isinstance(wanted, tuple) else (wanted,))
    torch.testing.assert_close(mine, theirs)


def _in_place(x: Tensor, r: Tensor) -> Tensor:
    h = x * 2
    h.mul_(r)
    h[:, 1:3] = 0
    return h + 1


def _writes_input(x: Tensor, r: Tensor) -> Tensor:
    x.add_(r)
    return x * 2


def _writes_view_of_input(x: Tensor, r: Tensor) -> Tensor:
    x[:, :4].mul_(r[:, 4:])
    return x + r


def _returns_view_of_written(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    view = h.view(-1)
    h.add_(r)
    return view * 1, h


MODELS = [_in_place, _writes_input, _writes_view_of_input, _returns_view_of_written]


@pytest.mark.parametrize("model", MODELS)
def test_in_place_code_becomes_functional(model: Callable[..., Any]) -> None:
    whole = trace(model, ROWS, ROWS)
    assert whole.route is Route.AOT_AUTOGRAD
    verify(whole.module.graph, Dialect())
    for node in whole.module.graph.nodes:
        assert not written_arguments(node) or is_write_back(node), node
    for tokens in (1, 2, 5):
        _assert_agrees(whole, model, tokens)


def test_code_without_writes_needs_one_trace() -> None:
    whole = trace(lambda x, r: x + r, ROWS, ROWS)
    assert (whole.route, whole.needs_wrapper) == (Route.MAKE_FX, False)


def test_constants_are_constants_again() -> None:
    def model(x: Tensor) -> Tensor:
        h = x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        return h.mul_(2)

    whole = trace(model, ROWS)
    assert len(whole.module.graph.find_nodes(op="placeholder")) == 1
    _assert_agrees(whole, model)


def test_output_that_aliases_an_input_needs_the_wrapper() -> None:
    def model(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        h = (x * 2).mul_(r)
        return h, x.view(-1)

    whole = trace(model, ROWS, ROWS)
    assert whole.needs_wrapper
    x, r = random_tensors(ROWS, ROWS)
    _, view = whole.bind(whole.module)(x, r)
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_mark_survives_functionalization_on_the_op_alone() -> None:
    def model(x: Tensor, r: Tensor) -> Tensor:
        h = (x * 2).add_(1)
        return ir.ops.fused_add_rms_norm.maybe_inplace(h, r, None, 1e-5)[0]

    whole = trace(model, ROWS, ROWS)
    assert whole.route is Route.AOT_AUTOGRAD
    marked = [n.name for n in whole.module.graph.nodes if donated_arguments(n, Dialect())]
    assert marked == ["fused_add_rms_norm"]
    x, r = random_tensors(ROWS, ROWS)
    torch.testing.assert_close(whole.module(x, r.clone()), (model(x, r),))


def test_inputs_that_overlap_and_are_written_are_an_error() -> None:
    fakes = FakeInputs()
    x = fakes.tensor((6, 8))
    with fakes.mode:
        alias = x[1:]

    def model(x: Tensor, alias: Tensor) -> tuple[Tensor]:
        alias.add_(1)
        return (x * 2,)

    with pytest.raises(TraceError, match="shares memory with another input"):
        trace_function(model, [x, alias])


def test_declared_write_stays_in_its_own_form(toy: Toy) -> None:
    def model(x: Tensor, cache: Tensor) -> Tensor:
        toy.store(x, cache)
        return cache + x

    whole = trace(model, ROWS, ROWS, dialect=toy.dialect)
    assert whole.route is Route.MAKE_FX
    assert calls(whole.module) == ["store", "add"]
    _assert_agrees(whole, model)


def test_declared_write_gets_its_form_back_without_a_copy(toy: Toy) -> None:
    def model(x: Tensor, cache: Tensor) -> Tensor:
        h = (x * 2).add_(1)
        toy.store(h, cache)
        out = torch.empty_like(h)
        out.fill_(1)
        toy.store(h, out)
        toy.store(h, cache)
        return out * 2

    whole = trace(model, ROWS, ROWS, dialect=toy.dialect)
    assert whole.route is Route.AOT_AUTOGRAD
    called = calls(whole.module)
    assert called.count("store") == 3
    assert not {"clone", "copy_", "auto_functionalized_v2"} & set(called)
    verify(whole.module.graph, toy.dialect)
    _assert_agrees(whole, model)


def test_value_that_is_read_after_a_declared_write_is_cloned(toy: Toy) -> None:
    def model(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        h = (x * 2).add_(1)
        before = h.view(-1) * 1
        copy = h.clone()
        toy.store(x, copy)
        return copy, h + before.view(-1, 8)

    whole = trace(model, ROWS, ROWS, dialect=toy.dialect)
    verify(whole.module.graph, toy.dialect)
    _assert_agrees(whole, model)


def test_declared_write_to_a_view_is_seen_through_its_base(toy: Toy) -> None:
    def model(x: Tensor, cache: Tensor) -> Tensor:
        h = (x * 2).add_(1)
        toy.store(h[:, :4], cache[:, 4:])
        toy.store(h.view(-1, 2, 4)[:, 0], cache.view(-1, 2, 4)[:, 1])
        return cache * 2

    whole = trace(model, ROWS, ROWS, dialect=toy.dialect)
    verify(whole.module.graph, toy.dialect)
    assert "clone" not in calls(whole.module)
    _assert_agrees(whole, model)


def test_declared_write_over_its_own_operand_reads_the_old_value(toy: Toy) -> None:
    def model(x: Tensor, cache: Tensor) -> Tensor:
        h = (x * 2).add_(1)
        toy.store(h.view(-1, 8), h)
        return h + cache

    whole = trace(model, ROWS, ROWS, dialect=toy.dialect)
    assert node_calling(whole.module, "store")
    _assert_agrees(whole, model)
