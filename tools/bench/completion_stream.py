"""One streamed completion of an OpenAI-compatible server, over a connection of its own.

Bytes are only time-stamped while they arrive and read as events afterwards: the client shares its
cores with the server that it measures. Plain HTTP/1.1, no TLS, no redirects.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_READ_BYTES = 1 << 16
_Chunk = tuple[float, bytes]


@dataclass(slots=True)
class Exchange:
    """A request's answer as it came: seconds of `time.perf_counter` and raw bytes."""

    start: float
    chunks: list[_Chunk] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What an exchange says.

    Attributes:
        start: when the request was sent.
        token_times: when each event that carries text arrived.
        num_tokens: the server's count of generated tokens, or the events' where it gives none.
        num_prompt_tokens: the server's count, 0 where it gives none.
        text: what was generated.
        error: why it counts for nothing; None if it does.
    """

    start: float
    token_times: tuple[float, ...] = ()
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    text: str = ""
    error: str | None = None


async def exchange(port: int, body: Mapping[str, Any], timeout: float) -> Exchange:
    """Post `body` to /v1/completions on this machine's `port` and keep what comes back."""
    result = Exchange(time.perf_counter())
    try:
        async with asyncio.timeout(timeout):
            await _exchange(port, json.dumps(body).encode(), result)
    except TimeoutError:
        result.error = f"no end of the answer within {timeout:g} s"
    except OSError as error:
        result.error = f"{type(error).__name__}: {error}"
    return result


def read_completion(answer: Exchange) -> Completion:
    """The tokens and counts in an exchange; never raises, malformed answers are errors."""
    if answer.error is not None:
        return Completion(answer.start, error=answer.error)
    try:
        return _read_events(answer.start, _body(answer.chunks))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Completion(answer.start, error=f"malformed answer: {error}")


async def _exchange(port: int, body: bytes, result: Exchange) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        while data := await reader.read(_READ_BYTES):
            result.chunks.append((time.perf_counter(), data))
    finally:
        writer.close()


def _body(chunks: list[_Chunk]) -> list[_Chunk]:
    """The body's bytes with their times, without head and chunk sizes; ValueError unless 200."""
    at = 0
    head = b""
    while b"\r\n\r\n" not in head:
        if at == len(chunks):
            raise ValueError("the connection was closed before the end of the head")
        head, at = head + chunks[at][1], at + 1
    head, _, rest = head.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    body = [(chunks[at - 1][0], rest), *chunks[at:]]
    if any(_is_chunked(line) for line in lines):
        body = list(_without_sizes(body))
    if status.split()[1:2] != ["200"]:
        raise ValueError(f"{status}: {b''.join(data for _, data in body)[:300]!r}")
    return body


def _is_chunked(line: str) -> bool:
    name, _, value = line.partition(":")
    return name.strip().lower() == "transfer-encoding" and "chunked" in value.lower()


def _without_sizes(parts: list[_Chunk]) -> Iterator[_Chunk]:
    """What chunked transfer carries; ValueError if the last chunk, of size 0, never came."""
    pending, left = b"", 0  # `left` bytes of the current chunk and its line end are to come
    for when, data in parts:
        pending += data
        while pending:
            if left > 2:
                taken = pending[: left - 2]
                pending, left = pending[len(taken) :], left - len(taken)
                yield when, taken
            elif left:
                skipped = min(left, len(pending))
                pending, left = pending[skipped:], left - skipped
            else:
                line, ended, rest = pending.partition(b"\r\n")
                if not ended:
                    break
                size = int(line.split(b";")[0], 16)
                if size == 0:
                    return
                pending, left = rest, size + 2
    raise ValueError("the connection was closed in the middle of the answer")


def _read_events(start: float, body: list[_Chunk]) -> Completion:
    times: list[float] = []
    texts: list[str] = []
    usage: dict[str, Any] = {}
    for when, event in _events(body):
        if "error" in event:
            return Completion(start, error=str(event["error"])[:300])
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            # A last event with nothing but a finish reason carries no token.
            if choice.get("text") or not choice.get("finish_reason"):
                times.append(when)
                texts.append(choice.get("text") or "")
    return Completion(
        start,
        tuple(times),
        usage.get("completion_tokens") or len(times),
        usage.get("prompt_tokens") or 0,
        "".join(texts),
        None if times else "no token in the answer",
    )


def _events(body: list[_Chunk]) -> Iterator[tuple[float, dict[str, Any]]]:
    pending = b""
    for when, data in body:
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (payload := line[5:].strip()) != b"[DONE]":
                yield when, json.loads(payload)
