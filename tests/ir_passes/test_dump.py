"""Texts of each stage: files for people, and artifacts in torch's structured trace."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo.config
from torch import Tensor
from torch._logging._internal import trace_log

import ir_core as ir
import ir_passes
from ir_passes.compiling.dump import transformed_code
from ir_passes.config import CompilationConfig
from ir_passes.tracing.model_trace import trace_call

from .test_model_trace import DIMS, Model, arguments

_SCRIPT = """
import torch
import ir_core as ir
import ir_passes
from ir_passes.config import CompilationConfig

def model(x, weight):
    return ir.ops.silu_and_mul(ir.ops.rms_norm(x, weight, 1e-6))

config = CompilationConfig(backend="eager", compile_sizes=(4,))
ir_passes.compile(
    model, (torch.ones(6, 8), torch.ones(8)), dynamic_dims={"x": 0}, limits={"tokens": 16},
    config=config,
)
"""


def compile_model(dump_path: Path | None = None) -> None:
    config = CompilationConfig(backend="eager", debug_dump_path=dump_path)
    ir_passes.compile(
        Model(2), arguments(6), dynamic_dims=DIMS, limits={"tokens": 16}, config=config
    )


def artifacts(directory: Path) -> dict[str, str]:
    """Payloads by name, of a log as tlparse reads it: a line of JSON, then lines after a tab."""
    found: dict[str, str] = {}
    name = None
    for line in "".join(each.read_text() for each in directory.iterdir()).splitlines():
        head = re.match(r"V\d+ \S+ \d+ \S+\] (\{.*)", line)
        if head is not None:
            name = json.loads(head[1]).get("artifact", {}).get("name")
        elif name is not None:
            found[name] = f"{found.get(name, '')}{line.removeprefix(chr(9))}\n"
    return found


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("trace")
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env={**os.environ, "TORCH_TRACE": str(directory)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return artifacts(directory)


def test_each_stage_of_each_program_is_an_artifact(traced: dict[str, str]) -> None:
    ours = {name for name in traced if name.startswith("ir_")}
    of_a_program = {
        "whole_graph.txt",
        "computation_graph.py",
        "piece_0.functional.txt",
        "piece_0.lowered.txt",
        "selections.txt",
    }
    assert ours == {"ir_transformed_code.py"} | {
        f"ir_tokens_{sizes}_{name}" for sizes in ("4_to_4", "1_to_16") for name in of_a_program
    }


def test_artifacts_hold_the_graphs_before_and_after_lowering(traced: dict[str, str]) -> None:
    before = traced["ir_tokens_1_to_16_piece_0.functional.txt"]
    after = traced["ir_tokens_1_to_16_piece_0.lowered.txt"]
    assert "ir.rms_norm(" in before
    assert "ir.silu_and_mul(" in before
    assert "ir." not in after
    assert re.search(r"^rms_norm +\w+ +1 ", traced["ir_tokens_1_to_16_selections.txt"], re.M)


def test_no_text_is_made_that_nobody_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> str:
        raise AssertionError("a text was made")

    # Handlers that collect records for tests count as tracing.
    monkeypatch.setattr(trace_log, "handlers", [])
    for name in ("print_graph", "computation_graph", "transformed_code"):
        monkeypatch.setattr(f"ir_passes.compiling.dump.{name}", fail)
    compile_model()
    with pytest.raises(AssertionError, match="a text was made"):
        compile_model(tmp_path)


def test_files_stand_by_range_beside_what_dynamo_made(tmp_path: Path) -> None:
    compile_model(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"transformed_code.py", "tokens_1_to_16"}
    names = {each.name for each in (tmp_path / "tokens_1_to_16").iterdir()}
    assert {"whole_graph.txt", "piece_0.functional.txt", "piece_0.lowered.txt"} <= names
    for name in ("transformed_code.py", "tokens_1_to_16/computation_graph.py"):
        compile((tmp_path / name).read_text(), name, "exec")


def test_dynamo_s_function_is_shown_as_bytecode_where_it_is_not_python() -> None:
    trace = trace_call(Model(1), arguments(6), dynamic_dims=DIMS)
    title, *lines = transformed_code(trace).splitlines()
    assert re.fullmatch(r"# What Dynamo made of \S*forward, for a graph of \d+ inputs\.", title)
    assert all(line.startswith("#") for line in lines)
    assert any(re.search(r"CALL|RETURN_VALUE", line) for line in lines)


def test_dynamo_s_function_is_shown_as_python_where_torch_writes_it() -> None:
    def gate(x: Tensor) -> Tensor:
        return ir.ops.silu_and_mul(x)

    with torch._dynamo.config.patch(generate_pycode=True):
        text = transformed_code(trace_call(gate, (torch.ones(6, 8),)))
    compile(text, "transformed_code.py", "exec")
    assert "\ndef gate(x):\n    " in text
    assert text.endswith("    return __ret\n")
