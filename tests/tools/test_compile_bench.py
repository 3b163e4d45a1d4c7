"""The bench of compiling measures real models and reports every phase."""

import json
from pathlib import Path

import pytest

from tools.bench.compile import main


def test_depth_is_measured_with_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--child", "4", "--backend", "eager", "--dtype", "float32", "--streams", "1,3"]
    assert main(arguments) == 0
    depth = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (depth["layers"], depth["pieces"], depth["distinct"]) == (4, 5, 3)
    assert set(depth["seconds"]) == {"dynamo", "trace", "passes", "pieces"}
    assert [each["streams"] for each in depth["steps"]] == [1, 3]
    assert all(each["eager_ms"] > 0 and each["compiled_ms"] > 0 for each in depth["steps"])


def test_report_has_a_row_for_each_depth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    arguments = ["--layers", "1", "--backend", "eager", "--streams", "1", "--json", str(path)]
    assert main(arguments) == 0
    assert "| layers |" in capsys.readouterr().out
    assert [each["layers"] for each in json.loads(path.read_text())["depths"]] == [1]
