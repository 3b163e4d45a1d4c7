import json
from dataclasses import replace

from ir_core.testing import Finding, Outcome, Report


def _finding(outcome: Outcome, detail: str = "", provider: str = "fast") -> Finding:
    return Finding("scale", provider, "matches-native", "one", "float32", outcome, detail, 0.5)


def test_report_with_a_failure_is_not_ok() -> None:
    report = Report((_finding(Outcome.PASSED), _finding(Outcome.FAILED, "worst at [0]")))
    assert not report.ok
    assert [each.detail for each in report.failures] == ["worst at [0]"]


def test_report_in_which_nothing_passed_is_not_ok() -> None:
    assert not Report(()).ok
    assert not Report((_finding(Outcome.REJECTED, "dtype"),)).ok


def test_text_names_the_implementation_its_counts_and_each_reason_once() -> None:
    report = Report(
        (
            _finding(Outcome.PASSED),
            _finding(Outcome.REJECTED, "weight dtype"),
            _finding(Outcome.REJECTED, "weight dtype"),
            _finding(Outcome.UNAVAILABLE, "needs a GPU", provider="far"),
        )
    )
    assert report.to_text().splitlines() == [
        "ok    scale  fast  1 passed, 2 rejected",
        "        rejected: weight dtype (2 times)",
        "-     scale  far  1 unavailable",
        "        unavailable: needs a GPU",
        "",
        "1 passed, 2 rejected, 1 unavailable",
    ]


def test_text_has_a_line_for_each_layout_of_the_weights() -> None:
    packed = [replace(_finding(Outcome.PASSED), layout=name) for name in ("plain", "panel")]
    assert Report(tuple(packed)).to_text().splitlines()[:2] == [
        "ok    scale  fast (plain)  1 passed",
        "ok    scale  fast (panel)  1 passed",
    ]


def test_text_ends_each_failure_with_its_detail() -> None:
    text = Report((_finding(Outcome.FAILED, "worst at index [3]"),)).to_text()
    assert "FAIL  scale  fast  1 failed" in text
    assert "FAILED matches-native: scale fast [one float32]\nworst at index [3]" in text


def test_json_holds_totals_and_every_finding() -> None:
    data = json.loads(json.dumps(Report((_finding(Outcome.REJECTED, "dtype"),)).to_json()))
    assert data["ok"] is False
    assert data["totals"] == {
        "passed": 0,
        "failed": 0,
        "rejected": 1,
        "unavailable": 0,
        "skipped": 0,
    }
    assert data["findings"][0]["detail"] == "dtype"
    assert data["findings"][0]["outcome"] == "rejected"
