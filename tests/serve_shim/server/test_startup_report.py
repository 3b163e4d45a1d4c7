"""The table at the end of a start, and the same as JSON."""

from typing import cast

import pytest

from ir_passes.programs.report import CacheOutcome, CacheStatus, CompileReport
from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.server.startup_report import startup_facts, startup_report

from .client import Client
from .fake_engine import FakeEngine


def started(*phases: Phase) -> StartupStatus:
    status = StartupStatus()
    for phase in (*phases, Phase.READY):
        status.advance(phase)
    return status


def compiled(status: CacheStatus) -> CompileReport:
    return CompileReport("inductor", (), (), (), {"load": 0.5}, CacheOutcome(status))


def test_each_phase_of_the_start_has_a_line_and_they_add_up() -> None:
    lines = startup_report(started(Phase.LOAD, Phase.WARMUP), FakeEngine()).splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["init", "load", "warmup", "total"]
    seconds = [float(line.split()[1]) for line in lines[2:6]]
    assert abs(sum(seconds[:-1]) - seconds[-1]) < 0.03
    assert "64 KV blocks" in lines[-1]


@pytest.mark.parametrize("status", list(CacheStatus))
def test_the_compile_phase_says_what_the_cache_did(status: CacheStatus) -> None:
    engine = FakeEngine()
    engine.compile_report = compiled(status)
    [line] = [
        line
        for line in startup_report(started(Phase.COMPILE), engine).splitlines()
        if line.split()[0] == "compile"
    ]
    assert line.endswith(f"  cache: {status.value}")


def test_memory_is_that_of_this_process() -> None:
    peak = cast("int", startup_facts(started())["peak_memory_bytes"])
    assert 10 << 20 < peak < 1 << 40
    assert f"peak memory {peak >> 20} MiB"[:13] in startup_report(started(), FakeEngine())


def test_what_the_start_cost_is_told_to_who_asks(client: Client, engine: FakeEngine) -> None:
    engine.compile_report = CompileReport(
        "inductor", (), (), (), {}, CacheOutcome(CacheStatus.MISS, "/c", ("a differs",))
    )
    facts = client.get("/debug/ir").json()
    assert set(facts["startup"]["seconds"]) == {"init"}
    assert facts["startup"]["peak_memory_bytes"] > 0
    assert facts["compiled"]["cache"] == {
        "status": "miss",
        "directory": "/c",
        "reasons": ["a differs"],
    }
