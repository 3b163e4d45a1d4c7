"""Owns the steps that run before the first request; refuses to leave anything of them behind.

Kernels, threads and memory that are set up on first use are so set up before ready.
"""

from collections.abc import Callable
from typing import NamedTuple

from serve_shim.engine.parts import EngineParts
from serve_shim.sampling.params import SamplingParams

_PROMPT_LENGTH = 32
"""Enough for the kernels of long inputs; a whole step budget would cost seconds of start-up."""


class _Round(NamedTuple):
    """So many requests at once, each with a prompt of so many tokens."""

    num_requests: int
    prompt_length: int


def warm_up(parts: EngineParts, progress: Callable[[int, int], None]) -> None:
    """Prefill and decode at several sizes, greedily and at random; `progress(done, total)`."""
    rounds = _rounds(parts)
    for done, each in enumerate(rounds):
        progress(done, len(rounds))
        _run(parts, each)
    progress(len(rounds), len(rounds))
    parts.core.forget_prefixes()


def _rounds(parts: EngineParts) -> list[_Round]:
    config = parts.config
    longest = max(1, min(_PROMPT_LENGTH, config.max_num_batched_tokens, config.max_model_len - 2))
    many = min(config.max_num_seqs, config.num_blocks)
    sizes = [_Round(1, 1), _Round(1, longest), _Round(2, min(4, longest)), _Round(many, 1)]
    return list(dict.fromkeys(sizes))


def _run(parts: EngineParts, each: _Round) -> None:
    room = parts.config.max_model_len - each.prompt_length
    for number in range(each.num_requests):
        params = SamplingParams(
            temperature=float(number % 2),
            top_p=0.9,
            logprobs=1 if number == 0 else None,
            max_tokens=max(0, min(2, room)),
            ignore_eos=True,
            seed=number,
        )
        prompt = [number % parts.model_config.vocab_size] * each.prompt_length
        parts.core.submit(parts.factory.make("warm-up", prompt, params))
    while parts.core.has_work:
        parts.core.step()
