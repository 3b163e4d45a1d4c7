"""Owns the interface between a front end and an engine; refuses any implementation."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from serve_shim.engine.output import RequestOutput
from serve_shim.sampling.params import SamplingParams

if TYPE_CHECKING:
    from ir_passes import CompileReport
    from serve_shim.models.model_config import ModelConfig
    from serve_shim.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine; sequences (`n` completions count `n` times) and KV blocks.

    `kv_usage` is the used share of blocks, 0..1. Cached blocks are free blocks whose content may
    still be reused, so `num_free_blocks` includes `num_cached_blocks`.
    `num_rank_compilations` is what torch compiled on ranks since they serve, of which the server's
    process knows nothing by itself.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_rank_compilations: int = 0


class Engine(Protocol):
    """What a server needs of an engine."""

    @property
    def model_name(self) -> str:
        """The name that the model was loaded under."""
        ...

    @property
    def config(self) -> "ModelConfig":
        """The model's shape."""
        ...

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """The model's tokenizer, None where the checkpoint has none."""
        ...

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its completion may have together."""
        ...

    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        """What the model asks for where a request says nothing, as `SamplingParams` names it."""
        ...

    @property
    def compile_report(self) -> "CompileReport | None":
        """What was compiled and why, None where the model runs eagerly."""
        ...

    def validate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise `RequestError` if this request can never be served; safe from any thread."""
        ...

    def generate(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        """Admit a request and return its deltas as they come.

        The call itself raises `RequestError`, `OverloadedError` or `EngineDeadError`, before
        anything is iterated; an iterator raises `GenerationError` if only its request failed
        and `EngineDeadError` if the engine did. Outputs that were not consumed in time are merged.
        `aclose()`, cancellation while iterating, and dropping the iterator abort the request.
        """
        ...

    def stats(self) -> EngineStats:
        """A snapshot; safe from any thread."""
        ...

    def is_healthy(self) -> tuple[bool, str]:
        """Whether the step loop lives and makes progress while it has work, and why not."""
        ...

    async def shutdown(self) -> None:
        """Abort everything in flight and end the step loop."""
        ...
