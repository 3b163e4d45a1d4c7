"""The table at the end of a start."""

from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.server.startup_report import startup_report

from .fake_engine import FakeEngine


def test_each_phase_of_the_start_has_a_line_and_they_add_up() -> None:
    status = StartupStatus()
    for phase in (Phase.LOAD, Phase.WARMUP, Phase.READY):
        status.advance(phase)
    lines = startup_report(status, FakeEngine()).splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["init", "load", "warmup", "total"]
    seconds = [float(line.split()[1]) for line in lines[2:6]]
    assert abs(sum(seconds[:-1]) - seconds[-1]) < 0.03
    assert "64 KV blocks" in lines[-1]
