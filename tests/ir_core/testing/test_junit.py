from dataclasses import replace
from xml.etree import ElementTree

from ir_core.testing import Finding, Outcome, Report, to_junit


def _finding(op: str, outcome: Outcome, detail: str = "") -> Finding:
    return Finding(op, "fast", "matches-native", "one", "float32", outcome, detail, 0.25)


def test_junit_counts_failures_and_what_did_not_run() -> None:
    report = Report(
        (
            _finding("scale", Outcome.PASSED),
            _finding("scale", Outcome.FAILED, "worst at [0]\nmore"),
            _finding("scale", Outcome.REJECTED, "dtype"),
            _finding("other", Outcome.UNAVAILABLE, "no GPU"),
        )
    )
    scale, other = ElementTree.fromstring(to_junit(report))  # noqa: S314
    assert scale.attrib == {
        "name": "scale",
        "tests": "3",
        "failures": "1",
        "skipped": "1",
        "time": "0.750",
    }
    assert (other.get("failures"), other.get("skipped")) == ("0", "1")
    passed, failed, rejected = scale
    assert passed.get("classname") == "scale.fast"
    assert passed.get("name") == "matches-native[one-float32]"
    assert len(passed) == 0
    assert (failed[0].tag, failed[0].get("message")) == ("failure", "worst at [0]")
    assert failed[0].text == "worst at [0]\nmore"
    assert (rejected[0].tag, rejected[0].get("message")) == ("skipped", "rejected: dtype")


def test_junit_names_the_layout_of_the_weights() -> None:
    report = Report((replace(_finding("scale", Outcome.PASSED), layout="panel"),))
    (suite,) = ElementTree.fromstring(to_junit(report))  # noqa: S314
    assert suite[0].get("name") == "matches-native[panel-one-float32]"


def test_junit_is_valid_whatever_the_message_holds() -> None:
    report = Report((_finding("scale", Outcome.FAILED, "\x1b[31m <b> & \x00"),))
    (suite,) = ElementTree.fromstring(to_junit(report))  # noqa: S314
    assert suite[0][0].text == "?[31m <b> & ?"
