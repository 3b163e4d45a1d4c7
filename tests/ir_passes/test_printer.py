"""A graph's text depends on the graph alone."""

import operator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_passes.dialect import Dialect
from ir_passes.printer import GraphPrinter, print_graph
from ir_passes.symbols import SymbolNames
from ir_passes.tracing.model_trace import trace_model

from .conftest import Toy
from .graphs import FakeInputs, check_golden, trace

ROWS, WEIGHT = ("T", 8), (8,)


def _everything(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x.t().contiguous().t() + torch.tensor(3.0)
    out, residual = ir.ops.fused_add_rms_norm.maybe_inplace(h * 2, r, w, 1e-5)
    left, right = out.split([3, 5], dim=1)
    rows = torch.arange(x.shape[0] * 2 + 1)
    mask = (left[:, :1] > 0).to(torch.bfloat16)
    return right.clone(), residual[:2], rows, mask, w.expand(4, 8)


def test_text_of_all_there_is() -> None:
    check_golden("printer", trace(_everything, ROWS, ROWS, WEIGHT, names="x r self.w").module)


def test_text_does_not_depend_on_node_names_or_history() -> None:
    whole = trace(_everything, ROWS, ROWS, WEIGHT, names="x r self.w")
    before = print_graph(whole.module.graph)
    graph = whole.module.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is not operator.getitem:
            with graph.inserting_before(node):
                twin = graph.call_function(node.target, node.args, node.kwargs)
            twin.meta.update(node.meta)
            node.replace_all_uses_with(twin)
            graph.erase_node(node)
    assert print_graph(graph) == before


def test_text_holds_no_path_of_a_file(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        torch._check(x.shape[0] > 2)
        return x * 2

    text = print_graph(trace_model(model, (torch.ones(6, 8),), dynamic_dims={"x": 0}).module.graph)
    assert "/" not in text.replace("//", "")
    assert str(Path(__file__).parent) not in text


def test_ops_of_the_registry_print_under_ir(toy: Toy) -> None:
    whole = trace(lambda x: toy.scale(x, None, 3.0), ROWS, dialect=toy.dialect)
    assert "scale: f32[s0, 8] = ir.scale(in0, None, 3.0)" in print_graph(
        whole.module.graph, toy.dialect
    )


def test_every_node_has_a_name_of_its_own() -> None:
    graph = trace(_everything, ROWS, ROWS, WEIGHT, names="mul_1 clone slice_1").module.graph
    printer = GraphPrinter(graph, Dialect())
    names = [printer.name_of(node) for node in graph.nodes]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("value", "text"), [(3, "3"), (1e-5, "1e-05"), (None, "None")])
def test_plain_values_are_spelled_as_they_are(value: object, text: str) -> None:
    assert SymbolNames().spell(value) == text


def test_symbols_are_named_in_order_of_appearance() -> None:
    names, fakes = SymbolNames(), FakeInputs()
    assert names.spell(fakes.tokens * 2 + 1) == "2*s0 + 1"
    assert names.spell(FakeInputs().tokens) == "s0"
    assert names.spell_sizes([fakes.tokens, 8]) == "s0, 8"
