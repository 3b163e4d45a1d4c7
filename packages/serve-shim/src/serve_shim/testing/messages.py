"""What a session and the process that drives its ranks tell each other."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Request:
    """Run a function, pickled by value with its arguments, on so many ranks."""

    num_ranks: int
    call: bytes
    timeout_s: float
    collective_timeout_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """What happened on a rank: `raised` a traceback, `ended` Ray's words, `stuck` its stacks."""

    rank: int
    kind: Literal["raised", "ended", "stuck"]
    text: str
    exception: bytes | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The pickled results in order of ranks; or failures, the first one first; or a refusal.

    A refusal is the reason why the function was never called.
    """

    results: tuple[bytes, ...] = ()
    failures: tuple[Failure, ...] = ()
    refusal: str = ""
