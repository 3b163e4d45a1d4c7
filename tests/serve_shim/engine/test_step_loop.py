import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from toy_engine import ToyModel, toy_parts

from serve_shim.engine.core import EngineCore
from serve_shim.engine.delivery import Delivery
from serve_shim.engine.parts import EngineParts
from serve_shim.engine.request import Request
from serve_shim.engine.step_loop import StepLoop
from serve_shim.sampling.params import SamplingParams

DEADLINE_S = 10.0


class Slow(ToyModel):
    """Each step waits until it is let through; `entered` says that one has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()

    def __call__(self, *arguments: object) -> object:  # pyright: ignore
        self.entered.set()
        assert self.gate.wait(DEADLINE_S)
        return super().__call__(*arguments)  # pyright: ignore


class Rig:
    def __init__(self, parts: EngineParts, watchdog_s: float = 60.0) -> None:
        self.parts = parts
        self.deliveries: list[Delivery] = []
        self.threads: set[str] = set()
        self.endings: list[BaseException | None] = []
        self.loop = StepLoop(
            parts.core,
            deliver=self._deliver,
            on_end=self.endings.append,
            watchdog_timeout_s=watchdog_s,
        )

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self.threads.add(threading.current_thread().name)
        self.deliveries.extend(deliveries)

    def submit(self, prompt: list[int], max_tokens: int = 5) -> Request:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        request = self.parts.factory.make("r", prompt, params)
        self.loop.submit(request)
        return request


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.001)


@contextmanager
def running(model: ToyModel | None = None, watchdog_s: float = 60.0) -> Generator[Rig]:
    rig = Rig(toy_parts(model), watchdog_s)
    rig.loop.start()
    try:
        yield rig
    finally:
        assert rig.loop.stop(DEADLINE_S)


def test_requests_are_served_on_one_thread() -> None:
    with running() as rig:
        request = rig.submit([5, 6])
        until(lambda: request.is_closed)
        until(lambda: len(rig.deliveries) == 5)
    assert rig.threads == {"engine-step-loop"}
    assert rig.endings == [None]


def test_idle_loop_sleeps_and_is_healthy_however_long() -> None:
    with running(watchdog_s=0.02) as rig:
        request = rig.submit([5], max_tokens=1)
        until(lambda: request.is_closed)
        before = rig.loop.stats().num_steps
        time.sleep(0.05)
        assert rig.loop.stats().num_steps == before
        assert rig.loop.is_healthy() == (True, "")


def test_abort_takes_effect_before_the_next_step() -> None:
    model = Slow()
    with running(model) as rig:
        request = rig.submit([5], max_tokens=100)
        assert model.entered.wait(DEADLINE_S)
        rig.loop.abort(request)
        model.gate.set()
        until(lambda: request.is_closed)
        until(lambda: rig.loop.stats().num_running == 0)
        assert model.num_computed == 1
        assert rig.loop.stats().num_free_blocks == rig.parts.config.num_blocks


def test_request_that_is_aborted_before_it_starts_never_runs() -> None:
    model = Slow()
    with running(model) as rig:
        first = rig.submit([5], max_tokens=1)
        assert model.entered.wait(DEADLINE_S)
        second = rig.submit([6, 7, 8], max_tokens=1)
        rig.loop.abort(second)
        model.gate.set()
        until(lambda: first.is_closed and second.is_closed)
        assert model.num_computed == 1


def test_order_made_on_the_loops_own_thread_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a forgotten stream's finaliser does, right before the loop goes to sleep."""
    rig, requests = Rig(toy_parts()), list[Request]()

    def has_work(core: EngineCore) -> bool:
        found = core._scheduler.has_work
        if not requests and threading.current_thread().name == "engine-step-loop":
            requests.append(rig.submit([5], max_tokens=1))
        return found

    monkeypatch.setattr(EngineCore, "has_work", property(has_work))
    rig.loop.start()
    until(lambda: bool(requests) and requests[0].is_closed)
    assert rig.loop.stop(DEADLINE_S)


def test_failure_ends_the_loop_and_says_why() -> None:
    model = ToyModel()
    model.failure = MemoryError("no more")
    rig = Rig(toy_parts(model))
    rig.loop.start()
    rig.submit([5])
    until(lambda: bool(rig.endings))
    assert isinstance(rig.endings[0], MemoryError)
    healthy, reason = rig.loop.is_healthy()
    assert not healthy
    assert "MemoryError: no more" in reason
    assert rig.loop.stop(DEADLINE_S)


def test_stalled_step_is_unhealthy_until_it_moves_on() -> None:
    model = Slow()
    with running(model, watchdog_s=0.05) as rig:
        assert rig.loop.is_healthy()[0]
        request = rig.submit([5], max_tokens=1)
        until(lambda: not rig.loop.is_healthy()[0])
        assert "no progress" in rig.loop.is_healthy()[1]
        model.gate.set()
        until(lambda: request.is_closed)
        until(lambda: rig.loop.is_healthy()[0])


def test_wall_clock_jump_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Slow()
    with running(model) as rig:
        rig.submit([5], max_tokens=1)
        assert model.entered.wait(DEADLINE_S)
        monkeypatch.setattr(time, "time", lambda: 4e9)
        assert rig.loop.is_healthy() == (True, "")
        model.gate.set()


def test_loop_that_was_never_started_or_has_stopped_is_unhealthy() -> None:
    rig = Rig(toy_parts())
    assert rig.loop.is_healthy() == (False, "the step loop is not running")
    rig.loop.start()
    assert rig.loop.stop(DEADLINE_S)
    assert not rig.loop.is_healthy()[0]


def test_stopping_gives_up_after_its_time() -> None:
    model = Slow()
    with running(model) as rig:
        rig.submit([5])
        assert model.entered.wait(DEADLINE_S)
        assert not rig.loop.stop(0.01)
        model.gate.set()
