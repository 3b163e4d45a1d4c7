"""Tells what becomes of one layer: text before and after each pass, then its pieces, lowered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch.fx import GraphModule

from ir_passes import (
    PassContext,
    PassReport,
    RunOptions,
    format_matches,
    format_report,
    run_pipeline,
)
from ir_passes.base import SizeRange
from ir_passes.compiling.compiler import Compiler
from ir_passes.compiling.copies import copy_module
from ir_passes.compiling.program import RangeProgram
from ir_passes.compiling.units import Unit
from ir_passes.lowering.selections import NodeSelection
from ir_passes.pipeline import Entry, Pipeline
from ir_passes.printer import GraphPrinter, print_graph
from ir_passes.report import Effect
from ir_passes.shape_guard import ShapeGuard
from ir_passes.table import align
from ir_passes.tracing.dynamic_dims import TOKENS, shapes_mode
from tools.graph.layer import layer_lines, nodes_of_layer
from tools.graph.subject import Subject


def tell(subject: Subject, layer: int) -> Iterator[str]:
    """The story, line by line.

    Raises SettingsError for a layer that is not there, and what passes, lowering and the backend
    raise.
    """
    subject.check_layer(layer)
    yield (
        f"Layer {layer} of {subject.num_layers} of {subject.name}, "
        f"{str(subject.dtype).removeprefix('torch.')}, shapes {subject.shapes}"
    )
    yield from _passes(subject, layer)
    compiler = Compiler(
        subject.trace.whole,
        subject.recipe,
        subject.trace.symbols.get(TOKENS, frozenset()),
    )
    with shapes_mode(subject.shapes):
        program = compiler.compile(SizeRange())
    yield from _heading("Requested and effective passes, whole model")
    yield format_report(program.passes)
    yield from _pieces(program, layer, subject)
    yield from _guards(compiler.guards([program]))


def _heading(text: str) -> Iterator[str]:
    yield ""
    yield f"== {text}"


def _passes(subject: Subject, layer: int) -> Iterator[str]:
    module = copy_module(subject.trace.whole.module)
    shown = _lines(module, layer, subject)
    yield from _heading("As traced")
    yield from shown
    reports: list[PassReport] = []
    for entry in subject.recipe.pipeline:
        report = _step(module, entry, layer, subject)
        if report.effect is not Effect.RAN:
            continue
        reports.append(report)
        yield from _heading(f"After {entry.name}")
        before, shown = shown, _lines(module, layer, subject)
        is_same = _unnumbered(before) == _unnumbered(shown)
        yield from ["  The layer is as it was."] if is_same else shown
    yield from _heading("What the passes looked at in the layer")
    yield format_matches(reports)


def _step(module: GraphModule, entry: Entry, layer: int, subject: Subject) -> PassReport:
    """Run one pass on the whole model; its report keeps only the layer's rows."""
    dialect = subject.recipe.dialect
    printer = GraphPrinter(module.graph, dialect)
    names = {printer.name_of(node) for node in nodes_of_layer(module.graph, layer)}
    context = PassContext(dialect, axes=subject.recipe.axes)
    (report,) = run_pipeline(Pipeline((entry,)), module, context, RunOptions()).passes
    matches = tuple(row for row in report.result.matches if row.node in names)
    return replace(report, result=replace(report.result, matches=matches))


def _lines(module: GraphModule, layer: int, subject: Subject) -> list[str]:
    nodes = nodes_of_layer(module.graph, layer)
    return layer_lines(module.graph, nodes, subject.recipe.dialect)


def _unnumbered(lines: Iterable[str]) -> list[str]:
    """Without the numbers of names, which a change elsewhere in the model moves."""
    return [re.sub(r"_\d+\b", "", line) for line in lines]


def _pieces(program: RangeProgram, layer: int, subject: Subject) -> Iterator[str]:
    names = {node.name for node in nodes_of_layer(program.split.module.graph, layer)}
    shown: list[Unit] = []
    for piece in program.split.pieces:
        unit = program.units[piece.name]
        inside = {node.name for node in piece.module.graph.nodes if node.op == "call_function"}
        if not inside & names or any(unit is each for each in shown):
            continue
        shown.append(unit)
        uses = sum(each is unit for each in program.units.values())
        yield from _heading(
            f"{piece.name}, lowered once for {uses} of {len(program.units)} pieces that are equal; "
            f"names are those of {unit.piece.name}"
        )
        yield print_graph(unit.lowered.module.graph, subject.recipe.dialect).rstrip()
        yield from _choices(unit)
    splitting = [row for row in program.splitting if row.node in names]
    yield from _heading("Between the pieces")
    yield from _selection_lines(splitting)


def _choices(unit: Unit) -> Iterator[str]:
    yield ""
    yield from _selection_lines(unit.lowered.selections)
    rows = [("clone", "line", "outcome")]
    rows += [(row.node, row.line, row.reason or "removed") for row in unit.lowered.clones]
    yield ""
    yield from align(rows) if len(rows) > 1 else ("No implementation works in place here.",)


def _selection_lines(selections: Iterable[NodeSelection]) -> Iterator[str]:
    rows = [("node", "line", "op", "used", "rejected")]
    for row in selections:
        reasons = "; ".join(f"{each.provider}: {each.reason}" for each in row.rejections)
        rows.append((row.node, row.line, row.op, row.used, reasons or "-"))
    yield from align(rows) if len(rows) > 1 else ("No IR op.",)


def _guards(guards: Iterable[ShapeGuard]) -> Iterator[str]:
    yield from _heading("Guards, whole model")
    rows = [(each.expression, each.cause, each.location) for each in guards]
    yield from align([("guard", "cause", "line"), *rows]) if rows else ("None.",)
