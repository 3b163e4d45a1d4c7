"""The choice of a token per row of logits, greedy or at random: owns its meaning.

Random numbers are hashes of arguments, so a choice is a function of its arguments alone.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ir_core.default_registry import register_op
from ir_core.errors import ArgumentError
from ir_core.ops.workload import Workload, workloads

NO_TOKEN = -1
"""The choice for a row that has no largest logit: a NaN, an infinite one, or nothing else."""

NUM_DRAWS = 16
"""Random numbers that a row has: all but the last for tokens of the whole row."""

_ROW_PARAMETERS = ("temperature", "min_p", "top_k", "top_p", "key", "position")
_MASK = 2**64 - 1


@register_op(token_dims=dict.fromkeys(_ROW_PARAMETERS, 0), batch_invariant=True, opaque=True)
def sample_tokens(
    x: Tensor,
    temperature: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    key: Tensor,
    position: Tensor,
) -> Tensor:
    """One id per row of the logits `x` [N, V], V at least 1: int64 [N].

    Where `temperature` float32 [N] is 0, the first of the largest logits. Elsewhere a token is
    drawn with probability proportional to `exp(x / temperature)` among those that three cuts
    leave, each of what the one before it left: `min_p` float32 [N], a share of the largest
    probability, 0 for none; `top_k` int64 [N], 0 for none; `top_p` float64 [N], the mass of the
    likeliest tokens that is enough, 1 for none. Tokens as likely as the last one kept are kept too.

    The draws of a row are hashes of its `key` and `position`, both int64 [N], by the finaliser of
    SplitMix64 (Steele, Lea, Flood 2014). Tokens stand in the order of their ids, and the first draw
    gives the one at its quantile; if that one is outside of `top_p` the next draw does, and so on;
    the last of the 16 is for the tokens inside alone. Weights are float32, sums float64. A row
    with a NaN or without a finite largest logit gives -1.
    """
    parameters = (temperature, min_p, top_k, top_p, key, position)
    _check(x, parameters)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    rows = zip(wide, *(each.tolist() for each in parameters), strict=True)
    return torch.tensor([_sample_row(*row) for row in rows], dtype=torch.int64)


@sample_tokens.register_fake
def _fake(
    x: Tensor,
    temperature: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    key: Tensor,
    position: Tensor,
) -> Tensor:
    return x.new_empty(x.shape[0], dtype=torch.int64)


def uniform(key: int, position: int, number: int) -> float:
    """Draw `number` of a key and a position: in [0, 1), with 53 random bits."""
    z = (key + (position + 1 + (number << 40)) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def _check(x: Tensor, parameters: Sequence[Tensor]) -> None:
    if x.dim() != 2 or x.shape[1] == 0:
        raise ArgumentError(
            f"sample_tokens: `x` must be [N, V] with V at least 1, not {list(x.shape)}"
        )
    for name, values in zip(_ROW_PARAMETERS, parameters, strict=True):
        if values.shape != x.shape[:1]:
            raise ArgumentError(
                f"sample_tokens: `{name}` must have an element for each row, {x.shape[0]}; its "
                f"shape is {list(values.shape)}"
            )


def _sample_row(
    x: Tensor,
    temperature: float,
    min_p: float,
    top_k: int,
    top_p: float,
    key: int,
    position: int,
) -> int:
    largest, first = x.max(0)
    if not largest.isfinite():
        return NO_TOKEN
    if temperature == 0.0:
        return int(first)
    edge = largest + temperature * math.log(min_p) if min_p > 0.0 else -math.inf
    if 0 < top_k < len(x):
        edge = max(edge, x.topk(top_k).values[-1])
    weights = torch.exp((x - largest) / temperature).masked_fill(x < edge, 0.0)
    mass = weights.cumsum(0, dtype=torch.float64)
    if top_p >= 1.0:
        return _find(mass, uniform(key, position, 0))
    nucleus = x >= _nucleus_edge(x, weights, top_p * mass[-1])
    for number in range(NUM_DRAWS - 1):
        token = _find(mass, uniform(key, position, number))
        if nucleus[token]:
            return token
    inside = weights.masked_fill(~nucleus, 0.0).cumsum(0, dtype=torch.float64)
    return _find(inside, uniform(key, position, NUM_DRAWS - 1))


def _find(mass: Tensor, quantile: float) -> int:
    """The first token whose running mass exceeds the quantile, never one that adds nothing."""
    found = torch.searchsorted(mass, quantile * mass[-1], right=True)
    return int(min(found, torch.searchsorted(mass, mass[-1])))


def _nucleus_edge(x: Tensor, weights: Tensor, enough: Tensor) -> Tensor:
    """The smallest logit of the smallest set of likeliest tokens with `enough` mass."""
    likeliest_first = x.argsort(descending=True)
    mass = weights[likeliest_first].cumsum(0, dtype=torch.float64)
    last = min(int(torch.searchsorted(mass, enough)), len(x) - 1)
    return x[likeliest_first[last]]


_STEP = {"temperature": 0.8, "size": 49152}


@sample_tokens.register_input_generator
@workloads(
    *(
        Workload(
            f"{name}-{num_tokens}",
            reason,
            {**_STEP, **cuts, "num_tokens": num_tokens},
            checked=False,
            bench=True,
        )
        for num_tokens in (1, 32)
        for name, reason, cuts in (
            ("greedy", "a benchmark's choice", {"temperature": 0.0}),
            ("random", "no cut", {}),
            ("top-p", "likely tokens by mass", {"top_p": 0.9}),
            ("top-k", "likely tokens by number", {"top_k": 40}),
            (
                "all-cuts",
                "each cuts what the one before left",
                {"min_p": 0.01, "top_k": 64, "top_p": 0.9},
            ),
        )
    ),
    Workload(
        "odd-size",
        "no vector width and no block divides it",
        {"num_tokens": 9, "size": 799},
    ),
    Workload("one-block", "a row shorter than a block", {"num_tokens": 9, "size": 37}),
    Workload("mixed", "each row is its own", {"num_tokens": 40, "mixed": True}),
    Workload("mixed-flat", "large nuclei", {"num_tokens": 40, "mixed": True, "spread": 0.3}),
    Workload("cold", "weights that underflow", {"num_tokens": 9, "temperature": 0.02}),
    Workload("masked", "minus infinity", {"num_tokens": 9, "masked": 0.9}),
    Workload("many-kept", "more than there are blocks", {"num_tokens": 9, "top_k": 300}),
    Workload(
        "small-nucleus",
        "the first draws miss it",
        {"num_tokens": 20, "top_p": 0.05, "spread": 0.3},
    ),
)
def _inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    size: int = 600,
    spread: float = 3.0,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    mixed: bool = False,
    masked: float = 0.0,
    seed: int = 0,
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random, dtype=torch.float64)

    def each(value: float, mixed_values: Tensor, kind: torch.dtype) -> Tensor:
        values = torch.where(draw(num_tokens) < 0.5, mixed_values, value)
        return (values if mixed else torch.full((num_tokens,), value)).to(kind)

    x = (spread * torch.randn(num_tokens, size, generator=random)).to(dtype)
    x[:, 1:] = x[:, 1:].masked_fill(draw(num_tokens, size - 1) < masked, -torch.inf)
    return (
        x,
        each(temperature, 3 * draw(num_tokens), torch.float32),
        each(min_p, 0.3 * draw(num_tokens), torch.float32),
        each(top_k, size * draw(num_tokens), torch.int64),
        each(top_p, 0.01 + 0.99 * draw(num_tokens), torch.float64),
        torch.randint(-(2**63), 2**63 - 1, (num_tokens,), generator=random),
        torch.arange(num_tokens),
    )
