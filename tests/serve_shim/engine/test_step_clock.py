import pytest

from serve_shim.engine.step_clock import StepClock, StepPhase


def test_time_goes_to_the_phase_that_ends_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([1.0, 1.5, 3.5, 4.0, 10.0, 10.25])
    monkeypatch.setattr("serve_shim.engine.step_clock.perf_counter", lambda: next(now))
    clock = StepClock()
    clock.start()
    clock.lap(StepPhase.SCHEDULE)
    clock.lap(StepPhase.FORWARD)
    clock.lap(StepPhase.SCHEDULE)
    assert clock.take() == (1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0)
    clock.start()
    clock.lap(StepPhase.DELIVER)
    assert clock.take() == (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25)


def test_a_clock_that_never_started_has_nothing() -> None:
    assert set(StepClock().take()) == {0.0}
