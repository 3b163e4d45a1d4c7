"""Owns the body of `POST /v1/completions`: prompts in four shapes, echo, and its limits."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, PlainValidator, WithJsonSchema

from serve_shim.errors import RequestError, SamplingParamsError
from serve_shim.sampling.params import SamplingParams
from serve_shim.server.wire.sampling import SamplingFields, check_logprobs
from serve_shim.settings.tree import LimitsConfig

_DEFAULT_MAX_TOKENS = 16
_PROMPT_SHAPE = "a string, a list of strings, a list of token ids or a list of such lists"


def to_prompts(value: object) -> tuple[str | list[int], ...]:
    """The prompts of one request, each a text or token ids; ValueError for any other shape."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be {_PROMPT_SHAPE}, and not empty")
    if _is_ids(value):
        return (value,)
    if all(isinstance(item, str) for item in value) or all(_is_ids(item) for item in value):
        return tuple(value)
    raise ValueError(f"must be {_PROMPT_SHAPE}")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _null_is_empty(value: object) -> object:
    return "" if value is None else value


_PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}
Prompts = Annotated[
    tuple[str | list[int], ...],
    PlainValidator(to_prompts),
    BeforeValidator(_null_is_empty),
    WithJsonSchema(_PROMPT_SCHEMA),
]


class CompletionRequest(SamplingFields):
    """The body; fields it shares with chat are in SamplingFields."""

    supported: ClassVar[frozenset[str]] = frozenset({"echo"})

    prompt: Prompts
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    def to_params(
        self, limits: LimitsConfig, defaults: Mapping[str, float | int] | None = None
    ) -> SamplingParams:
        """The request's parameters over the model's; SamplingParamsError beyond the limits."""
        check_logprobs("logprobs", self.logprobs, limits)
        wanted: dict[str, Any] = {**(defaults or {}), **self.sampling_fields(limits)}
        self._check_size(limits)
        max_tokens = wanted.setdefault("max_tokens", _DEFAULT_MAX_TOKENS)
        if max_tokens == 0 and not self.echo:
            raise SamplingParamsError(
                "`max_tokens` is 0, which needs `echo` to be true.", param="max_tokens"
            )
        if self.echo and self.logprobs is not None:
            wanted["prompt_logprobs"] = max(self.logprobs, wanted.get("prompt_logprobs", 0))
        return SamplingParams(**wanted, logprobs=self.logprobs)

    def _check_size(self, limits: LimitsConfig) -> None:
        num_prompts = len(self.prompt)
        if num_prompts > limits.max_prompts:
            raise RequestError(
                f"`prompt` has {num_prompts} prompts; at most {limits.max_prompts} are taken.",
                param="prompt",
            )
        num_sequences = num_prompts * max(1, self.n or 1)
        if num_sequences > limits.max_sequences:
            raise RequestError(
                f"{num_prompts} prompts times `n` are {num_sequences} completions; at most "
                f"{limits.max_sequences} are made in one request.",
                param="n",
            )
