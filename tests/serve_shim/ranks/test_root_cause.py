import pytest

from serve_shim.ranks.root_cause import Cause, Report, Reports


def _root(*reports: Report) -> Report:
    heard = Reports()
    for report in reports:
        heard.add(report)
    return heard.root()


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        (Cause.RAY_ENDED, Cause.PROCESS_ENDED),
        (Cause.PROCESS_ENDED, Cause.RAISED),
        (Cause.RAISED, Cause.SILENT),
        (Cause.SILENT, Cause.CONSEQUENCE),
    ],
)
def test_root_is_what_explains_the_rest_whichever_came_first(nearer: Cause, farther: Cause) -> None:
    root, other = Report(1, nearer, "root"), Report(0, farther, "other")
    assert _root(root, other) == root
    assert _root(other, root) == root


def test_root_of_equals_is_the_first() -> None:
    first, second = Report(2, Cause.RAISED, "first"), Report(0, Cause.RAISED, "second")
    assert _root(first, second) == first


def test_end_of_a_process_explains_its_silence() -> None:
    silent, ended = Report(0, Cause.SILENT, ""), Report(0, Cause.PROCESS_ENDED, "")
    assert _root(silent, ended) == ended


def test_what_a_rank_raised_is_not_forgotten_when_it_ends() -> None:
    raised, ended = Report(0, Cause.RAISED, "why"), Report(0, Cause.PROCESS_ENDED, "")
    assert _root(raised, ended) == raised
