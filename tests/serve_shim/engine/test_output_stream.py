import asyncio
import gc

import pytest

from serve_shim.engine.output import CompletionDelta, RequestOutput, TokenLogprob, TokenLogprobs
from serve_shim.engine.output_stream import OutputStream, merge_outputs

pytestmark = pytest.mark.anyio


def output(text: str, token_id: int, *, index: int = 0, finished: bool = False) -> RequestOutput:
    reason = "stop" if finished else None
    entry = TokenLogprobs(token_id, -1.0, (TokenLogprob(token_id, -1.0, 1),))
    delta = CompletionDelta(index, text, (token_id,), (entry,), reason)
    return RequestOutput("r", (1,), (delta,), None, 3, finished)


class Rig:
    """A stream on the running loop, and how often it asked for an abort."""

    def __init__(self) -> None:
        self.num_aborts = 0
        self.stream = OutputStream(asyncio.get_running_loop(), self._abort)

    def _abort(self) -> None:
        self.num_aborts += 1


async def test_outputs_come_in_order_then_the_end() -> None:
    rig = Rig()
    rig.stream.put(output("a", 1))
    assert (await anext(rig.stream)).deltas[0].text == "a"
    rig.stream.put(output("b", 2, finished=True))
    assert [o.deltas[0].text async for o in rig.stream] == ["b"]
    assert rig.num_aborts == 0


async def test_slow_consumer_gets_everything_in_one_output() -> None:
    rig = Rig()
    for number, text in enumerate("abc"):
        rig.stream.put(output(text, number, finished=text == "c"))
    (merged,) = [o async for o in rig.stream]
    (delta,) = merged.deltas
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("abc", (0, 1, 2), "stop")
    assert [e.token_id for e in delta.logprobs or ()] == [0, 1, 2]
    assert merged.finished
    assert merged.num_cached_tokens == 3


async def test_waiting_consumer_is_woken() -> None:
    rig = Rig()
    asyncio.get_running_loop().call_later(0.01, rig.stream.put, output("a", 1))
    assert (await asyncio.wait_for(anext(rig.stream), 5)).deltas[0].text == "a"


async def test_error_comes_after_what_was_delivered_before() -> None:
    rig = Rig()
    rig.stream.put(output("a", 1))
    rig.stream.fail(ValueError("broken"))
    rig.stream.fail(ValueError("again"))
    assert (await anext(rig.stream)).deltas[0].text == "a"
    with pytest.raises(ValueError, match="broken"):
        await anext(rig.stream)
    with pytest.raises(StopAsyncIteration):
        await anext(rig.stream)
    assert rig.num_aborts == 0


async def test_closing_aborts_once_and_ends_the_iteration() -> None:
    rig = Rig()
    rig.stream.put(output("a", 1))
    await rig.stream.aclose()
    await rig.stream.aclose()
    assert rig.num_aborts == 1
    assert [o async for o in rig.stream] == []


async def test_closing_a_finished_stream_aborts_nothing() -> None:
    rig = Rig()
    rig.stream.put(output("a", 1, finished=True))
    await rig.stream.aclose()
    assert rig.num_aborts == 0


async def test_cancelled_consumer_aborts() -> None:
    rig = Rig()
    task = asyncio.create_task(anext(rig.stream))  # pyright: ignore[reportArgumentType]
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.num_aborts == 1


async def test_exception_thrown_in_aborts() -> None:
    rig = Rig()
    with pytest.raises(KeyError):
        await rig.stream.athrow(KeyError("x"))
    assert rig.num_aborts == 1


async def test_forgotten_stream_aborts() -> None:
    rig = Rig()
    del rig.stream
    gc.collect()
    assert rig.num_aborts == 1


async def test_merging_keeps_completions_apart_and_the_first_prompt_logprobs() -> None:
    first = RequestOutput("r", (1,), output("a", 1).deltas, (None,), 3, False)
    merged = merge_outputs([first, output("x", 9, index=1), output("b", 2)])
    assert [(d.index, d.text, d.token_ids) for d in merged.deltas] == [
        (0, "ab", (1, 2)),
        (1, "x", (9,)),
    ]
    assert merged.prompt_logprobs == (None,)
    assert not merged.finished
