import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ir_core as ir
from ir_core.cli import main
from ir_core.cli.checking import select_implementations
from ir_core.testing import Finding, Outcome, Report


def test_names_select_ops_and_distributions() -> None:
    by_op = select_implementations(["rms_norm", "linear"], ["native"])
    assert [(each.op.name, each.provider) for each in by_op] == [
        ("rms_norm", "native"),
        ("linear", "native"),
    ]
    by_origin = select_implementations(["IR-core"], None)
    assert {each.origin for each in by_origin} == {"ir_core"}
    assert {each.op.name for each in by_origin} >= {"rms_norm", "paged_attention"}
    both = select_implementations(["ir_core", "rms_norm"], ["native"])
    assert len(both) == len(set(both)) == len(by_origin)


def test_no_name_selects_everything() -> None:
    count = sum(len(op.implementations) for op in ir.registry().values())
    assert len(select_implementations([], None)) == count


def test_failure_is_exit_code_1_and_data_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding(
        "linear", "native", "matches-native", "one", "float32", Outcome.FAILED, "worst at [0]"
    )
    monkeypatch.setattr(
        "ir_core.cli.checking.check_implementations", lambda chosen, dtypes: Report((finding,))
    )
    assert main(["check", "linear", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["totals"]["failed"] == 1
    assert data["findings"][0]["detail"] == "worst at [0]"


@pytest.mark.skipif(torch.version.hip is not None, reason="a ROCm machine")
def test_run_that_checks_nothing_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "rms_norm", "--provider", "aiter"]) == 3
    said = capsys.readouterr()
    assert "unavailable: needs a ROCm GPU" in said.out
    assert "nothing was checked" in said.err


def test_dtypes_limit_what_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["check", "all_reduce", "--provider", "native", "--json"]
    assert main([*names, "--dtype", "bf16", "--dtype", "float16"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {each["dtype"] for each in findings} == {"bfloat16", "float16"}


_SCRIPT = """
import torch
from torch import Tensor
import ir_core as ir
from ir_core.cli import main

@ir.register_op
def probe(x: Tensor) -> Tensor:
    return x + 1

@probe.register_input_generator
def inputs(num_tokens, dtype):
    return (torch.ones(num_tokens, 2, dtype=dtype),)

@probe.register_impl("off_by_one")
def off_by_one(x: Tensor) -> Tensor:
    return x + 2

raise SystemExit(main(["check", "probe", "--provider", "off_by_one"]))
"""


def test_wrong_implementation_ends_the_process_with_1(tmp_path: Path) -> None:
    script = tmp_path / "probe.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "FAIL  probe  off_by_one" in done.stdout
    assert "output 0: worst at index [0, 0]: got 3, expected 2" in done.stdout
