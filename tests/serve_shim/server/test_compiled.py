"""What the server tells about the model that it compiled."""

import json

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
from ir_passes import CompileReport, compile  # noqa: A004
from ir_passes.config import CompilationConfig
from serve_shim.server.compiled import compiled_facts, compiled_report

from .client import Client
from .fake_engine import FakeEngine


class Block(nn.Module):
    """A norm, a gate and a branch on the token count."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        x = ir.ops.rms_norm(x, self.weight, 1e-6)
        if x.shape[0] > 4:
            x = ir.ops.rms_norm(x, self.weight, 1e-6)
        return ir.ops.silu_and_mul(x)


@pytest.fixture(scope="module")
def report() -> CompileReport:
    config = CompilationConfig.model_validate(
        {
            "backend": "eager",
            "compile_sizes": [8],
            "dynamic_shapes_config": {"type": "backed", "guards": "rebuild"},
        }
    )
    with ir.priority({"rms_norm": ["aiter", "native"]}), torch.no_grad():
        compiled = compile(
            Block(), (torch.ones(6, 8),), dynamic_dims={"x": 0}, limits={"tokens": 12},
            config=config,
        )  # fmt: skip
    return compiled.report()


def test_facts_say_what_was_compiled_for_which_sizes(report: CompileReport) -> None:
    facts = json.loads(json.dumps(compiled_facts(report)))
    assert facts["backend"] == "eager"
    assert {"dynamo", "trace", "passes", "pieces"} <= set(facts["seconds"])
    sizes = [(each["first"], each["last"]) for each in facts["programs"]]
    assert sizes == [(8, 8), (1, 12), (1, 1), (2, 2), (3, 3), (4, 4)]
    (first, *_) = facts["programs"]
    assert [row["name"] for row in first["passes"]] == [
        each.name for each in report.programs[0].passes.passes
    ]
    assert {row["effect"] for row in first["passes"]} <= {"ran", "disabled", "does not apply"}


def test_facts_count_the_nodes_of_equal_selections(report: CompileReport) -> None:
    programs = compiled_facts(report)["programs"]
    for program in programs:
        nodes: dict[str, int] = {}
        for piece in program["pieces"]:
            for row in piece["selections"]:
                nodes[row["op"]] = nodes.get(row["op"], 0) + row["nodes"]
        norms = 2 if program["last"] > 4 else 1
        assert nodes == {"rms_norm": norms, "silu_and_mul": 1}


def test_facts_give_the_reason_of_each_rejection(report: CompileReport) -> None:
    (piece,) = compiled_facts(report)["programs"][0]["pieces"]
    (norm,) = [row for row in piece["selections"] if row["op"] == "rms_norm"]
    assert norm["provider"] == "native"
    (rejection,) = norm["rejections"]
    assert rejection["provider"] == "aiter"
    assert rejection["reason"]


def test_facts_name_guards_with_their_lines_and_the_sizes_that_break_them(
    report: CompileReport,
) -> None:
    facts = compiled_facts(report)
    assert any("test_compiled.py" in guard["location"] for guard in facts["guards"])
    assert {guard["sizes"]["tokens"] for guard in facts["broken_guards"]} == {1, 2, 3, 4}


def test_the_log_has_a_line_for_each_program_and_choice(report: CompileReport) -> None:
    lines = [" ".join(line.split()) for line in compiled_report(report).splitlines()]
    assert lines[0].startswith("Compiled with eager in ")
    assert "token counts 1..12: 1 pieces, 1 distinct" in lines
    (norm,) = [line for line in lines if line.startswith("rms_norm")]
    assert norm.startswith("rms_norm native 8 aiter: ")
    assert norm.removeprefix("rms_norm native 8 aiter: ")


def test_selections_of_the_compiled_model_stand_beside_those_that_ran(
    client: Client, engine: FakeEngine, report: CompileReport
) -> None:
    assert client.get("/debug/ir").json()["compiled"] is None
    engine.compile_report = report
    assert client.get("/debug/ir").json()["compiled"] == compiled_facts(report)
