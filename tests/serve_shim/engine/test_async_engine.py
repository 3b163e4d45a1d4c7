import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from toy_engine import EOS, POISON, ToyModel, ToyTokenizer, toy_parts

from serve_shim.engine.async_engine import AsyncEngine
from serve_shim.engine.output import RequestOutput
from serve_shim.engine.protocol import Engine
from serve_shim.engine.stats_sink import NullSink, RequestStats
from serve_shim.errors import (
    EngineDeadError,
    GenerationError,
    OverloadedError,
    RequestError,
    UnavailableError,
)
from serve_shim.sampling.params import SamplingParams

pytestmark = pytest.mark.anyio
DEADLINE_S = 10.0


class Outcomes(NullSink):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_request_finished(self, stats: RequestStats) -> None:
        self.reasons.append(stats.finish_reason)


class Slow(ToyModel):
    """Steps wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()

    def __call__(self, *arguments: object) -> object:  # pyright: ignore
        self.entered.set()
        assert self.gate.wait(DEADLINE_S)
        return super().__call__(*arguments)  # pyright: ignore


@asynccontextmanager
async def serving(
    model: ToyModel | None = None, sink: Outcomes | None = None, **bounds: int
) -> AsyncGenerator[AsyncEngine]:
    parts = toy_parts(model, ToyTokenizer(), **bounds)
    if sink is not None:
        parts.core.observe(sink)
    engine = AsyncEngine(parts)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield engine
    finally:
        if isinstance(model, Slow):
            model.gate.set()
        await asyncio.wait_for(engine.shutdown(), DEADLINE_S)
    parts.core.check_accounts()


def greedy(**params: object) -> SamplingParams:
    defaults: dict[str, object] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 8}
    return SamplingParams(**{**defaults, **params})  # pyright: ignore[reportArgumentType]


async def collect(stream: AsyncIterator[RequestOutput]) -> list[int]:
    return [t async for output in stream for delta in output.deltas for t in delta.token_ids]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


def is_idle(engine: AsyncEngine) -> bool:
    stats = engine.stats()
    return stats.num_running == stats.num_waiting == 0 and stats.num_free_blocks == stats.num_blocks


async def test_many_requests_at_once_get_their_own_tokens() -> None:
    model = ToyModel()
    async with serving(model) as engine:
        prompts = [[5 + n % 50, 7, n % 50 + 2] for n in range(40)]
        results = await asyncio.gather(
            *(collect(engine.generate("same-id", prompt, greedy())) for prompt in prompts)
        )
    assert results == [model.greedy(prompt, 8) for prompt in prompts]


async def test_engine_satisfies_the_protocol() -> None:
    async with serving() as engine:
        known: Engine = engine
        assert (known.model_name, known.max_model_len) == ("toy", 128)
        assert known.config.vocab_size == 64
        assert known.tokenizer is not None


@pytest.mark.parametrize(
    ("prompt", "params", "code"),
    [
        ([], {}, "empty_prompt"),
        ([-1], {}, "invalid_token_id"),
        ([64], {}, "invalid_token_id"),
        ([2**40], {}, "invalid_token_id"),
        ([5] * 200, {}, "context_length_exceeded"),
        ([5], {"stop_token_ids": (64,)}, "invalid_token_id"),
        ([5], {"max_tokens": None, "min_tokens": 2**60}, "context_length_exceeded"),
    ],
)
async def test_bad_request_is_refused_by_the_call_and_the_next_is_served(
    prompt: list[int], params: dict[str, object], code: str
) -> None:
    model = ToyModel()
    async with serving(model) as engine:
        with pytest.raises(RequestError) as caught:
            engine.generate("bad", prompt, greedy(**params))
        assert caught.value.code == code
        assert await collect(engine.generate("good", [5, 6], greedy())) == model.greedy([5, 6], 8)


async def test_request_that_fails_in_a_step_fails_alone() -> None:
    model, sink = ToyModel(), Outcomes()
    async with serving(model, sink) as engine:
        bad = engine.generate("bad", [POISON], greedy())
        good = engine.generate("good", [5, 6], greedy())
        with pytest.raises(GenerationError, match="NaN"):
            await collect(bad)
        assert await collect(good) == model.greedy([5, 6], 8)
        assert engine.is_healthy() == (True, "")
    assert sorted(sink.reasons) == ["error", "length"]


async def test_engine_takes_only_so_many_and_more_once_some_are_done() -> None:
    model = Slow()
    async with serving(model, max_num_seqs=2, max_queue=3, max_num_batched_tokens=4) as engine:
        held = [engine.generate(str(n), [5], greedy(n=2)) for n in range(2)]
        with pytest.raises(OverloadedError, match="the most that this server takes is 5"):
            engine.generate("too many", [5], greedy(n=2))
        held.append(engine.generate("just fits", [5], greedy()))
        with pytest.raises(OverloadedError):
            engine.generate("one more", [5], greedy())
        await held[0].aclose()
        held.append(engine.generate("room again", [5], greedy(n=2)))
        model.gate.set()
        for stream in held[1:]:
            assert len(await collect(stream)) in (8, 16)


async def test_more_completions_than_the_engine_can_hold_are_refused() -> None:
    async with serving(max_num_seqs=2, max_queue=3) as engine:
        with pytest.raises(RequestError) as caught:
            engine.validate([5], greedy(n=6))
        assert caught.value.param == "n"


@pytest.mark.parametrize("how", ["close", "cancel", "forget"])
async def test_consumer_that_leaves_frees_everything(how: str) -> None:
    sink = Outcomes()
    async with serving(sink=sink) as engine:
        stream = engine.generate("r", [5] * 20, greedy(max_tokens=100, n=2))
        await anext(stream)
        if how == "close":
            await stream.aclose()
        elif how == "cancel":
            task = asyncio.create_task(collect(stream))
            await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        del stream
        gc.collect()
        await until(lambda: is_idle(engine))
        await until(lambda: sink.reasons == ["abort"])
        assert await collect(engine.generate("next", [5], greedy())) == ToyModel().greedy([5], 8)


async def test_stream_that_was_never_started_can_be_closed() -> None:
    async with serving(Slow()) as engine:
        stream = engine.generate("r", [5], greedy())
        await stream.aclose()
        assert engine._num_sequences == 0


async def test_thousand_clients_that_leave_leak_nothing() -> None:
    async with serving(max_queue=2000) as engine:

        async def visit(number: int) -> None:
            stream = engine.generate("r", [5 + number % 7] * (number % 30 + 1), greedy())
            for _ in range(number % 4):
                with suppress(StopAsyncIteration):
                    await anext(stream)
            await stream.aclose()

        await asyncio.gather(*(visit(number) for number in range(1000)))
        await until(lambda: is_idle(engine))
        assert engine._num_sequences == 0
        assert engine._consumers == {}


async def test_dead_engine_fails_all_in_flight_and_all_that_come() -> None:
    model, sink = Slow(), Outcomes()
    async with serving(model, sink) as engine:
        streams = [engine.generate(str(n), [5], greedy()) for n in range(3)]
        await asyncio.to_thread(model.entered.wait, DEADLINE_S)
        model.failure = ValueError("bits rotted")
        model.gate.set()
        for stream in streams:
            with pytest.raises(EngineDeadError, match="ValueError: bits rotted"):
                await collect(stream)
        healthy, reason = engine.is_healthy()
        assert not healthy
        assert "bits rotted" in reason
        with pytest.raises(EngineDeadError):
            engine.generate("late", [5], greedy())
    assert sink.reasons == ["error"] * 3


async def test_consumers_are_told_although_the_sink_fails() -> None:
    class Broken(Outcomes):
        def on_request_finished(self, stats: RequestStats) -> None:
            super().on_request_finished(stats)
            raise OSError("disk full")

    model, sink = Slow(), Broken()
    async with serving(model, sink) as engine:
        streams = [engine.generate(str(n), [5], greedy(max_tokens=1)) for n in range(3)]
        model.gate.set()
        for stream in streams:
            with pytest.raises(EngineDeadError, match="disk full"):
                await collect(stream)
        await until(lambda: sink.reasons[1:] == ["error"] * 3)


async def test_shutdown_fails_what_is_in_flight_and_refuses_the_rest() -> None:
    sink = Outcomes()
    async with serving(sink=sink, max_model_len=4096, num_blocks=2048) as engine:
        stream = engine.generate("r", [5], greedy(max_tokens=4000))
        await anext(stream)
        await engine.shutdown()
        with pytest.raises(UnavailableError, match="shutting down"):
            await collect(stream)
        with pytest.raises(UnavailableError):
            engine.generate("late", [5], greedy())
        await engine.shutdown()
    assert sink.reasons == ["abort"]


async def test_consumers_on_several_event_loops_are_served() -> None:
    model = ToyModel()
    async with serving(model) as engine:

        def elsewhere() -> list[int]:
            async def visit() -> list[int]:
                return await collect(engine.generate("far", [9, 9], greedy()))

            return asyncio.run(visit())

        far, near = await asyncio.gather(
            asyncio.to_thread(elsewhere), collect(engine.generate("near", [5], greedy()))
        )
    assert (far, near) == (model.greedy([9, 9], 8), model.greedy([5], 8))


async def test_event_loop_that_is_gone_aborts_its_requests() -> None:
    model = Slow()
    async with serving(model) as engine:
        kept: list[object] = []

        def elsewhere() -> None:
            async def visit() -> None:
                kept.append(engine.generate("far", [5], greedy(max_tokens=100)))

            asyncio.run(visit())

        await asyncio.to_thread(elsewhere)
        model.gate.set()
        await until(lambda: engine._num_sequences == 0 and is_idle(engine))


async def test_slow_consumer_gets_merged_deltas() -> None:
    async with serving() as engine:
        stream = engine.generate("r", [5, 6], greedy(max_tokens=30, logprobs=0))
        await until(lambda: engine.stats().num_steps >= 30)
        outputs = [output async for output in stream]
    (delta,) = outputs[0].deltas
    assert len(outputs) == 1
    assert len(delta.token_ids) == len(delta.logprobs or ()) == 30
    assert delta.finish_reason == "length"


async def test_end_of_sequence_is_delivered_with_its_text_left_out() -> None:
    async with serving(ToyModel(script=[0, 2, 3, EOS])) as engine:
        stream = engine.generate("r", [5], greedy(ignore_eos=False))
        outputs = [output async for output in stream]
    deltas = [delta for output in outputs for delta in output.deltas]
    assert "".join(delta.text for delta in deltas) == "AB"
    assert [t for delta in deltas for t in delta.token_ids] == [2, 3, EOS]
    assert deltas[-1].finish_reason == "stop"
