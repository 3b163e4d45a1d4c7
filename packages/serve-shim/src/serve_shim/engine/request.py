"""Owns a request and its sequences while the engine works on them; refuses any decision.

A request has one sequence per completion (`n`). Only the engine's thread touches these objects
once they are submitted.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from serve_shim.engine.output import TokenLogprobs
from serve_shim.engine.text_stream import TextStream
from serve_shim.sampling.params import SamplingParams

NO_SLOT = -1


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """One completion in the making.

    `num_tokens` counts prompt and output; `num_computed` those whose KV entries are in `blocks`.
    `chain` names the contents of the leading full blocks, `num_published` of which the pool
    knows. `slot` is its row in the batch table, `NO_SLOT` while it waits.
    """

    request: "Request"
    index: int
    key: int
    text: TextStream
    num_tokens: int
    num_computed: int = 0
    num_published: int = 0
    slot: int = NO_SLOT
    blocks: list[int] = field(default_factory=list[int])
    chain: list[bytes] = field(default_factory=list[bytes])
    output_ids: list[int] = field(default_factory=list[int])
    last_token_at: float = 0.0
    is_done: bool = False

    @property
    def scores_prompt(self) -> bool:
        """Whether this sequence must compute the whole prompt for its logprobs."""
        request = self.request
        if self.index or request.params.prompt_logprobs is None:
            return False
        done = request.prompt_logprobs
        return done is None or len(done) < len(request.prompt_ids)

    def token_at(self, position: int) -> int:
        """One of its tokens, prompt or output."""
        index = position - len(self.request.prompt_ids)
        return self.output_ids[index] if index >= 0 else self.request.prompt_ids[position]

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """Prompt and output, int32."""
        if not self.output_ids:
            return self.request.prompt_array
        return np.concatenate(
            [self.request.prompt_array, np.asarray(self.output_ids, dtype=np.int32)]
        )


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """A prompt, what is asked of it, and its times (seconds, monotonic; 0.0 = not yet).

    Identity, not `request_id`, tells requests apart: ids come from clients and may repeat.
    `max_tokens` is resolved: never None. `stop_ids` end a sequence; those in `eos_ids` do so
    without being named as the reason. `root` starts the hash chain of its blocks.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    eos_ids: frozenset[int]
    stop_ids: frozenset[int]
    arrived_at: float
    root: bytes
    prompt_array: npt.NDArray[np.int32] = field(init=False)
    sequences: list[Sequence] = field(default_factory=list[Sequence])
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    num_unfinished: int = 0
    is_submitted: bool = False
    is_delivered: bool = False
    is_closed: bool = False
    admitted_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0

    def __post_init__(self) -> None:
        """Keep the prompt as an array too, for hashing and copying."""
        self.prompt_array = np.asarray(self.prompt_ids, dtype=np.int32)
