"""Owns a request's sampling parameters and their ranges; refuses what no model could honour.

Ids are compared with the vocabulary, lengths with the context, by `serve_shim.engine.admission`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serve_shim.errors import SamplingParamsError

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow float32."""

_SEED_RANGE = (-(2**63), 2**64 - 1)
_INT_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What one request asks of sampling; checked when it is made.

    Order of effects: `logit_bias`, `min_tokens` mask, repetition penalty (prompt and output),
    frequency and presence penalties (output only), temperature, `min_p`, `top_k`, `top_p`.
    Logprobs are those of the raw logits, before all of these.

    `top_k` of 0 or -1 is off. `stop` may be given as one string. `max_tokens=None` means as many
    as the context holds; 0 computes the prompt and samples nothing. `seed` makes the choice of
    each token a function of (seed, child index, position) and the logits alone.

    Raises `SamplingParamsError`, whose `param` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] | str = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Check every field, then normalise the sequence-valued ones to tuples."""
        self._check_numbers()
        self._check_counts()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            _check_flag(name, getattr(self, name))
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(
            self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids)
        )
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken and no random number is drawn."""
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as the tuple that it is after construction."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    def _check_numbers(self) -> None:
        _check_number("temperature", self.temperature, 0.0, 100.0)
        _check_number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)

    def _check_counts(self) -> None:
        _check_int("n", self.n, 1)
        _check_int("top_k", self.top_k, -1)
        _check_int("min_tokens", self.min_tokens, 0)
        for name in ("max_tokens", "logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0)
        if self.seed is not None:
            _check_int("seed", self.seed, *_SEED_RANGE)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise SamplingParamsError(
                f"`min_tokens` ({self.min_tokens}) exceeds `max_tokens` ({self.max_tokens})",
                param="min_tokens",
            )


def _check_number(
    name: str, value: object, low: float, high: float, *, open_low: bool = False
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SamplingParamsError(f"`{name}` must be a number, not {_kind(value)}", param=name)
    inside = value <= high and (value > low if open_low else value >= low)
    if not (math.isfinite(value) and inside):
        bracket = "(" if open_low else "["
        raise SamplingParamsError(
            f"`{name}` must be in {bracket}{low:g}, {high:g}], got {value!r}"[:200], param=name
        )


def _check_int(name: str, value: object, low: int, high: int = _INT_MAX) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SamplingParamsError(f"`{name}` must be an integer, not {_kind(value)}", param=name)
    if not low <= value <= high:
        bound = f"at least {low}" if value < low else f"at most {high}"
        raise SamplingParamsError(f"`{name}` must be {bound}", param=name)


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise SamplingParamsError(f"`{name}` must be true or false, not {_kind(value)}", param=name)


def _stop_strings(value: object) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence):
        raise SamplingParamsError("`stop` must be a string or a list of strings", param="stop")
    for string in strings:
        if not isinstance(string, str):
            raise SamplingParamsError(
                f"`stop` must hold strings, not {_kind(string)}", param="stop"
            )
        if not string:
            raise SamplingParamsError("`stop` must not hold an empty string", param="stop")
    return tuple(strings)


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SamplingParamsError(f"`{name}` must be a list of token ids", param=name)
    for token_id in value:
        _check_int(name, token_id, 0)
    return tuple(value)


def _logit_bias(value: object) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise SamplingParamsError("`logit_bias` must map token ids to numbers", param="logit_bias")
    for token_id, bias in value.items():
        _check_int("logit_bias", token_id, 0)
        _check_number("logit_bias", bias, -100.0, 100.0)
    return {token_id: float(bias) for token_id, bias in value.items()} or None


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
