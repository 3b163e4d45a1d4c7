import threading

from serve_shim.engine.status import Phase, StartupStatus


def test_status_starts_at_init_without_progress() -> None:
    status = StartupStatus()
    assert (status.phase, status.done, status.total, status.error) == (Phase.INIT, 0, 0, None)


def test_progress_is_of_the_current_phase() -> None:
    status = StartupStatus()
    status.advance(Phase.LOAD, 2, 5)
    assert (status.phase, status.done, status.total) == (Phase.LOAD, 2, 5)
    status.advance(Phase.WARMUP)
    assert (status.done, status.total) == (0, 0)


def test_report_has_each_entered_phase_and_adds_up() -> None:
    status = StartupStatus()
    for phase in (Phase.LOAD, Phase.WARMUP, Phase.LOAD, Phase.READY):
        status.advance(phase)
    report = status.report()
    assert list(report) == [Phase.INIT, Phase.LOAD, Phase.WARMUP, Phase.READY]
    assert all(seconds >= 0.0 for seconds in report.values())
    assert sum(report.values()) <= status.elapsed_s


def test_first_failure_is_the_reason() -> None:
    status = StartupStatus()
    status.fail("no such file")
    status.fail("and then this")
    assert (status.phase, status.error) == (Phase.FAILED, "no such file")


def test_status_can_be_advanced_from_many_threads() -> None:
    status = StartupStatus()
    phases = (Phase.LOAD, Phase.WARMUP)
    threads = [
        threading.Thread(target=lambda: [status.advance(p, 1, 2) for p in phases * 50])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert set(status.report()) == {Phase.INIT, *phases}
