import json
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.cli import main
from ir_core.cli.explanation import explain
from ir_core.op import IrOp
from ir_core.testing import fresh_registry

BF16 = torch.bfloat16


@pytest.fixture
def op() -> IrOp:
    registry = fresh_registry()

    @registry.register_op
    def scale(x: Tensor, factor: float) -> Tensor:
        return x * factor

    def half(x, factor):  # type: ignore[no-untyped-def]
        return x.dtype == torch.float16 or f"needs float16, got {x.dtype}"

    scale.register_impl("half", supports_args=half)(scale.native.fn)
    scale.register_impl("far", supported=(False, "no such device"))(scale.native.fn)
    scale.register_impl("late")(scale.native.fn)
    return scale


def test_explanation_gives_every_provider_a_verdict_in_order(op: IrOp) -> None:
    with op.registry.priorities.override({"scale": ["far", "half", "native"]}):
        explanation = explain(op, (torch.ones(2), 2.0))
    assert explanation.selected == "native"
    assert [(each.provider, each.source, each.reason) for each in explanation.verdicts] == [
        ("far", "user", "no such device"),
        ("half", "user", "needs float16, got torch.float32"),
        ("native", "user", ""),
        ("late", "not in the priority", ""),
    ]


def test_explanation_is_the_selection_of_a_call(op: IrOp) -> None:
    with op.registry.priorities.override({"scale": ["half"]}):
        for dtype in (torch.float16, torch.float32):
            x = torch.ones(2, dtype=dtype)
            explained = explain(op, (x, 2.0)).selected
            assert explained == op.select(x, 2.0).provider
            op(x, 2.0)
            torch.compile(op, backend="eager", fullgraph=True)(x, 2.0)
    torch.compiler.reset()
    assert [row.provider for row in op.registry.selections()] == ["half", "native"]


def test_text_marks_the_chosen_provider(op: IrOp) -> None:
    with op.registry.priorities.override({"scale": ["far", "half"]}):
        lines = explain(op, (torch.ones(2, dtype=torch.float16), 2.0)).to_text().splitlines()
    assert lines[0].startswith("scale on ")
    assert lines[1] == "  x = float16[2] on cpu"
    assert "   far     user" in lines[3]
    assert lines[4].startswith("-> half    user")
    assert lines[-1] == "selected: half"


def test_no_implementation_is_explained_too(op: IrOp) -> None:
    op.registry.set_batch_invariant(True)
    explanation = explain(op, (torch.ones(2), 2.0))
    assert explanation.selected is None
    assert all("batch-invariant" in each.reason for each in explanation.verdicts[:1])
    assert explanation.to_text().endswith("selected: none, the call is an error")


def test_command_prints_the_same_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["explain", "rms_norm", "--dtype", "bf16", "--shape", "8x4096"]
    assert main([*argv, "--priority", "native", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["selected"] == "native"
    assert data["arguments"]["x"] == "bfloat16[8x4096] on cpu"
    assert data["verdicts"][0] == {
        "provider": "native",
        "source": "user",
        "accepts": True,
        "reason": "",
        "origin": "ir_core",
        "layouts": [],
    }
    assert data["layout"] is None


def test_mode_shows_the_defaults_of_a_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(["explain", "silu_and_mul", "--mode", "inductor"]) == 0
    finally:
        ir.set_execution_mode("eager")
    assert "inductor defaults" in capsys.readouterr().out


def test_weights_are_explained_as_a_loader_would_pack_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def explained(*options: str) -> dict[str, Any]:
        assert main(["explain", "linear", "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)

    chosen = ir.ops.linear.choose_layout(*ir.ops.linear.generate_inputs(num_tokens=8, dtype=BF16))
    data = explained()
    assert (data["layout"], data["selected"]) == (chosen.layout, chosen.selection.provider)
    assert data["arguments"]["layout"] == repr(chosen.layout)
    assert data["layouts"] == list(ir.ops.linear.layouts)
    assert explained("--priority", "rowwise")["layout"] == "plain"
    packed = explained("--priority", "rowwise", "--arg", "layout=panel16")
    assert packed["layout"] == "panel16"
    assert packed["verdicts"][0]["layouts"] == ["plain"]
    assert packed["verdicts"][0]["reason"] == (
        "reads layout `plain`, and the weight lies in `panel16`"
    )


def test_text_shows_the_layout_and_who_reads_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "embedding", "--arg", "layout=plain", "--priority", "native"]) == 0
    shown = capsys.readouterr().out
    assert "accepts, reads plain and panel16" in shown
    assert "layout: plain, of plain, panel16" in shown


def test_an_unknown_layout_is_an_error_with_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "linear", "--arg", "layout=panel"]) == 2
    assert "no layout `panel`; did you mean `panel16`?" in capsys.readouterr().err
