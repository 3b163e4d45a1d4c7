"""The load a server is measured under: fixed prompts, closed loops of streams. Sends nothing.

Prompts are the same in every run and for every engine, of mixed lengths, and each starts
differently, so that a prefix cache gives nothing away.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

_TEXT = (
    "The harbour town had grown slowly around a single stone pier, and most of its "
    "people still measured the year by the boats: when they were painted, when they "
    "left, and when the first of them came back low in the water. In winter the "
    "carpenters moved indoors and built chairs, clocks and instruments, and the school "
    "taught arithmetic with the price of rope. Visitors often asked why nobody had "
    "built a second pier, and were given a different answer by every person they asked. "
)
_WORDS = _TEXT.split()
_PROMPT_WORDS = (8, 24, 64, 128, 16, 256, 48, 96)  # one cycle of mixed lengths


class Load(BaseModel):
    """What every engine is asked in every round.

    Attributes:
        streams: numbers of requests kept in flight, one level after the other.
        requests_per_stream: requests of a level for each of its streams.
        min_requests: requests of a level at least.
        max_tokens: tokens generated for each request.
        warmup: requests before the first level; only the time to the first's first token is kept.
        timeout: seconds one request may take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    streams: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1, 4, 16, 32)
    requests_per_stream: PositiveInt = 3
    min_requests: PositiveInt = 8
    max_tokens: PositiveInt = 64
    warmup: PositiveInt = 3
    timeout: PositiveFloat = 600.0

    def levels(self) -> Iterator[tuple[int, range]]:
        """Each number of streams with the numbers of its prompts; no prompt is used twice."""
        first = self.warmup
        for streams in self.streams:
            count = max(self.min_requests, self.requests_per_stream * streams)
            yield streams, range(first, first + count)
            first += count


def make_prompt(index: int) -> str:
    """The prompt of that number."""
    length = _PROMPT_WORDS[index % len(_PROMPT_WORDS)]
    words = [_WORDS[(index * 7 + at) % len(_WORDS)] for at in range(length)]
    return f"{index} letters from the harbour. " + " ".join(words)
