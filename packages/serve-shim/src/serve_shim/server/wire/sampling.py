"""Owns the sampling fields that both completion routes share, and the server's limits on them.

Null means the default. Ranges are those of `SamplingParams`, which says what is wrong with one.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from serve_shim.errors import RequestError, SamplingParamsError
from serve_shim.sampling.params import SamplingParams
from serve_shim.server.wire.request_model import RequestModel
from serve_shim.settings.tree import LimitsConfig

_MAX_STOP_TOKEN_IDS = 128
_MAX_STOP_CHARS = 1024  # text is held back from a stream for as long as a stop string may come


class StreamOptions(RequestModel):
    """What a stream carries beside its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Whether a stream ends with its usage, and whether each chunk carries it so far."""

    at_end: bool = False
    in_each_chunk: bool = False


class SamplingFields(RequestModel):
    """Fields of both completion routes."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = Field(None, description="Add the ids of prompt and completion.")
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Write the tokens of logprobs as `token_id:ID`."
    )

    def usage_options(self) -> UsageOptions:
        """What `stream_options` asks for; RequestError without `stream`."""
        if self.stream_options is None:
            return UsageOptions()
        if not self.stream:
            raise RequestError(
                "`stream_options` needs `stream` to be true.", param="stream_options"
            )
        options = self.stream_options
        at_end = bool(options.include_usage)
        return UsageOptions(at_end, at_end and bool(options.continuous_usage_stats))

    def sampling_fields(self, limits: LimitsConfig) -> dict[str, Any]:
        """The fields that were set, as keyword arguments of SamplingParams, within the limits."""
        _check_limit("n", self.n, limits.max_n)
        _check_limit("prompt_logprobs", self.prompt_logprobs, limits.max_logprobs)
        _check_count("stop", self.stop, limits.max_stop)
        _check_stop_length(self.stop)
        _check_count("stop_token_ids", self.stop_token_ids, _MAX_STOP_TOKEN_IDS)
        _check_count("logit_bias", self.logit_bias, limits.max_logit_bias)
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError(
                "`prompt_logprobs` is not part of a stream; set `stream` to false.",
                param="prompt_logprobs",
            )
        wanted = self.model_dump(include=_PASSED_ON, exclude_none=True)
        if self.logit_bias is not None:
            wanted["logit_bias"] = _biases(self.logit_bias)
        return wanted


_PASSED_ON = set(SamplingParams.__dataclass_fields__) - {"logprobs", "logit_bias"}


def check_logprobs(name: str, value: int | None, limits: LimitsConfig) -> None:
    """SamplingParamsError if more alternatives are asked for than are given."""
    _check_limit(name, value, limits.max_logprobs)


def _check_limit(name: str, value: int | None, limit: int) -> None:
    if value is not None and value > limit:
        raise SamplingParamsError(f"`{name}` is at most {limit} on this server.", param=name)


def _check_count(name: str, value: str | list[Any] | dict[str, Any] | None, limit: int) -> None:
    if value is not None and not isinstance(value, str) and len(value) > limit:
        raise SamplingParamsError(
            f"`{name}` has {len(value)} entries; at most {limit} are allowed.", param=name
        )


def _check_stop_length(stop: str | list[str] | None) -> None:
    longest = max(map(len, [stop] if isinstance(stop, str) else stop or []), default=0)
    if longest > _MAX_STOP_CHARS:
        raise SamplingParamsError(
            f"`stop` has a string of {longest} characters; at most {_MAX_STOP_CHARS} are allowed.",
            param="stop",
        )


def _biases(value: dict[str, float]) -> dict[int, float]:
    for key in value:
        if not (key.isascii() and key.isdecimal() and len(key) <= 18):
            raise SamplingParamsError(
                f"`logit_bias` has the key `{key[:32]}`; keys are token ids.", param="logit_bias"
            )
    biases = {int(key): bias for key, bias in value.items()}
    if len(biases) != len(value):
        raise SamplingParamsError("`logit_bias` names one token twice.", param="logit_bias")
    return biases
