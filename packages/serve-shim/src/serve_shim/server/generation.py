"""Owns one API request as the engine sees it: a generation for each prompt, merged into one stream.

Closing the stream closes every generation, which aborts it in the engine.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from serve_shim.engine.output import RequestOutput
from serve_shim.engine.protocol import Engine
from serve_shim.sampling.params import SamplingParams
from serve_shim.server.wire.prompt import Prompt

Outputs = AsyncGenerator[tuple[int, RequestOutput], None]


def generate(
    engine: Engine, request_id: str, prompts: Sequence[Prompt], params: SamplingParams
) -> Outputs:
    """Admits every prompt, then yields (index of the prompt, output) as outputs come.

    RequestError, OverloadedError and EngineDeadError are raised by the call itself if one prompt
    is refused; the others are then aborted.
    """
    for prompt in prompts[1:]:  # the engine validates the first before it admits anything
        engine.validate(prompt.token_ids, params)
    streams = [
        engine.generate(f"{request_id}-{index}", prompt.token_ids, params)
        for index, prompt in enumerate(prompts)
    ]
    return _single(streams[0]) if len(streams) == 1 else _merged(streams)


async def _single(stream: AsyncGenerator[RequestOutput, None]) -> Outputs:
    async with aclosing(stream):
        async for output in stream:
            yield 0, output


async def _merged(streams: Sequence[AsyncGenerator[RequestOutput, None]]) -> Outputs:
    pending = {asyncio.ensure_future(anext(stream)): i for i, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                index = pending.pop(future)
                try:
                    output = future.result()
                except StopAsyncIteration:
                    continue
                yield index, output
                pending[asyncio.ensure_future(anext(streams[index]))] = index
    finally:
        for future in pending:
            future.cancel()
        if pending:
            await asyncio.wait(pending)
        for stream in streams:
            await stream.aclose()
