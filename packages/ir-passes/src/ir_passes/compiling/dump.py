"""Texts that show a program at each of its stages: for people, never read back.

They go to files where a directory is given, and into torch's structured trace where that is on
(`TORCH_TRACE`), as artifacts that tlparse shows.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torch._logging import trace_structured

from ir_passes.base import SizeRange
from ir_passes.compiling.program import RangeProgram
from ir_passes.dialect import Dialect
from ir_passes.printer import print_graph
from ir_passes.programs.report import selection_lines
from ir_passes.splitting.split import Piece
from ir_passes.tracing.model_trace import ModelTrace


def dump_trace(directory: Path | None, trace: ModelTrace) -> None:
    """Show what Dynamo made of the model: `transformed_code.py`."""
    _show(directory, "ir", {"transformed_code.py": partial(transformed_code, trace)})


def dump_program(directory: Path | None, program: RangeProgram, dialect: Dialect) -> None:
    """Show the graph that was split, its pieces before and after lowering, and the selections."""
    _show(directory, f"ir_{describe_range(program.sizes)}", _stages(program, dialect))


def describe_range(sizes: SizeRange) -> str:
    """A range as part of a file's name."""
    last = "" if sizes.last is None else f"_to_{sizes.last}"
    return f"tokens_{sizes.first}{last}"


def transformed_code(trace: ModelTrace) -> str:
    """Dynamo's function, which takes the model's tensors apart and calls the graph, as Python.

    Torch writes it as Python only where `torch._dynamo.config.generate_pycode` is set; else its
    bytecode stands in comments.
    """
    code = trace.bytecode
    name = getattr(code, "co_qualname", code.co_name)
    pycode: list[list[str] | None] = trace.capture.graph_capture_output.pycode
    body = [line for part in pycode for line in part or ()]
    title = f"# What Dynamo made of {name}, for a graph of {len(trace.whole.inputs)} inputs.\n"
    if not body:
        lines = dis.Bytecode(code).dis().splitlines()
        return title + "".join(f"# {line}".rstrip() + "\n" for line in lines)
    parameters = ", ".join(code.co_varnames[: code.co_argcount])
    lines = [f"def {code.co_name}({parameters}):", *(f"    {line}" for line in body)]
    return title + "\n".join([*lines, "    return __ret"]) + "\n"


def computation_graph(program: RangeProgram) -> str:
    """Python text: a function for each distinct piece with shapes in comments, and the program."""
    names = {id(unit): unit.piece.name for unit in program.distinct_units}
    parts: list[str] = []
    for unit in program.distinct_units:
        code = unit.piece.module.print_readable(
            print_output=False, include_stride=True, include_device=False
        )
        parts.append(f"# {unit.piece.name}\n{code}")
    for step in program.split.steps:
        if isinstance(step, Piece):
            same = names[id(program.units[step.name])]
            if same != step.name:
                parts.append(f"{step.name} = {same}")
    parts.append(program.program.stitching().source({}))
    return "\n\n".join(parts)


def _stages(program: RangeProgram, dialect: Dialect) -> Mapping[str, Callable[[], str]]:
    """By file name what makes the text, so that nobody pays for a text that nobody asked for."""
    stages: dict[str, Callable[[], str]] = {
        "whole_graph.txt": partial(print_graph, program.split.module.graph, dialect),
        "computation_graph.py": partial(computation_graph, program),
    }
    for unit in program.distinct_units:
        name = unit.piece.name
        before, after = unit.piece.module.graph, unit.lowered.module.graph
        stages[f"{name}.functional.txt"] = partial(print_graph, before, dialect)
        stages[f"{name}.lowered.txt"] = partial(print_graph, after, dialect)
    stages["selections.txt"] = partial(_selections, program)
    return stages


def _selections(program: RangeProgram) -> str:
    return "\n".join(selection_lines(program.report())) + "\n"


def _show(directory: Path | None, prefix: str, texts: Mapping[str, Callable[[], str]]) -> None:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if directory is not None:
            (directory / name).write_text(text())
        # It asks for the text only where structured tracing is on.
        trace_structured(
            "artifact",
            metadata_fn=partial(dict, name=f"{prefix}_{name}", encoding="string"),
            payload_fn=text,
            expect_trace_id=False,
        )
