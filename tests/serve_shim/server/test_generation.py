"""One request of several prompts: admitted as a whole, merged, and closed as a whole."""

import asyncio
from collections.abc import Sequence

import pytest

from serve_shim.errors import OverloadedError, RequestError
from serve_shim.sampling.params import SamplingParams
from serve_shim.server.generation import generate
from serve_shim.server.wire.prompt import Prompt

from .fake_engine import FakeEngine

PARAMS = SamplingParams(max_tokens=3)


def test_outputs_carry_the_index_of_their_prompt() -> None:
    async def collect() -> dict[int, str]:
        texts: dict[int, str] = {}
        prompts = [Prompt([1]), Prompt([2]), Prompt([3])]
        async for index, output in generate(FakeEngine(), "r", prompts, PARAMS):
            texts[index] = texts.get(index, "") + output.deltas[0].text
        return texts

    texts = asyncio.run(collect())
    assert sorted(texts) == [0, 1, 2]
    assert {len(text) for text in texts.values()} == {3}


def test_closing_the_stream_aborts_every_prompt() -> None:
    async def close_early() -> list[str]:
        engine = FakeEngine(step_s=0.001)
        stream = generate(engine, "r", [Prompt([1]), Prompt([2])], SamplingParams(max_tokens=90))
        await anext(stream)
        await stream.aclose()
        assert engine.running == set()
        return sorted(engine.aborted)

    assert asyncio.run(close_early()) == ["r-0", "r-1"]


def test_one_bad_prompt_keeps_all_out_of_the_engine() -> None:
    engine = FakeEngine()
    with pytest.raises(RequestError):
        generate(engine, "r", [Prompt([1]), Prompt([])], PARAMS)
    assert engine.seen == []


def test_a_full_queue_refuses_the_whole_request() -> None:
    with pytest.raises(OverloadedError):
        generate(FakeEngine(capacity=1), "r", [Prompt([1]), Prompt([2])], PARAMS)


def test_a_failure_of_one_prompt_fails_the_request() -> None:
    async def fail() -> FakeEngine:
        engine = FakeEngine(step_s=0.001)
        stream = generate(engine, "r", [Prompt([1]), Prompt([2])], SamplingParams(max_tokens=90))
        await anext(stream)
        engine.death = "boom"
        with pytest.raises(Exception, match="boom"):
            async for _ in stream:
                pass
        return engine

    assert asyncio.run(fail()).running == set()


def test_a_single_prompt_is_validated_once() -> None:
    class CountingEngine(FakeEngine):
        num_validations = 0

        def validate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
            self.num_validations += 1
            super().validate(prompt_token_ids, params)

    engine = CountingEngine()
    generate(engine, "r", [Prompt([1])], PARAMS)
    assert engine.num_validations == 1


def test_a_bad_first_prompt_keeps_all_out_of_the_engine() -> None:
    engine = FakeEngine()
    with pytest.raises(RequestError):
        generate(engine, "r", [Prompt([]), Prompt([1])], PARAMS)
    assert engine.seen == []
