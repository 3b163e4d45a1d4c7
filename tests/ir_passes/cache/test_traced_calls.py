"""A trace that rests on Python code which nothing guards is not stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ir_passes.cache.dynamo_guards import portable_guards
from ir_passes.cache.traced_calls import refuse_hidden_python
from ir_passes.errors import CannotStoreError
from ir_passes.tracing.model_trace import ModelTrace, trace_call

SCALE = 2.0


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def constant() -> float:
    return SCALE


class Holder:
    """Methods of each kind whose results are assumed."""

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def method(self) -> float:
        return SCALE

    @classmethod
    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def of_class(cls) -> float:
        return SCALE


HELD: dict[str, Any] = {"function": constant, "holder": Holder()}


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def allowed(x: Tensor) -> Tensor:
    return x * SCALE


@torch._dynamo.nonstrict_trace
def not_strict(x: Tensor) -> Tensor:
    return x * SCALE


@pytest.fixture(scope="module", autouse=True)
def ops() -> Iterator[None]:
    with torch.library._scoped_library("toy_traced_calls", "DEF") as library:  # noqa: TID251
        library.define("composite(Tensor x) -> Tensor")
        library.impl("composite", lambda x: x * SCALE, "CompositeImplicitAutograd")
        library.define("kernel(Tensor x) -> Tensor")
        library.impl("kernel", lambda x: x * SCALE, "CPU")
        library.impl("kernel", torch.empty_like, "Meta")
        yield


def example() -> tuple[Tensor]:
    return (torch.ones(4, 4),)


def traced(function: Callable[..., Any]) -> ModelTrace:
    return trace_call(function, example())


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x * constant(), "constant"),
        (lambda x: x * HELD["function"](), "constant"),
        (lambda x: x * HELD["holder"].method(), "Holder.method"),
        (lambda x: x * Holder.of_class(), "Holder"),
    ],
)
def test_result_assumed_to_be_constant(function: Callable[..., Any], name: str) -> None:
    with pytest.raises(CannotStoreError, match=rf"`{name}.*` is assumed to be constant"):
        portable_guards(traced(function))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: allowed(x) + 1, "`allowed`, whose Python code"),
        (lambda x: not_strict(x) + 1, "whose Python code was not inlined"),
        (lambda x: torch.ops.toy_traced_calls.composite(x) + 1, "`toy_traced_calls.composite`"),
        (
            lambda x: torch.ops.toy_traced_calls.composite.default(x) + 1,
            "`toy_traced_calls.composite`",
        ),
    ],
)
def test_code_behind_a_call_is_named(function: Callable[..., Any], name: str) -> None:
    with pytest.raises(CannotStoreError, match=name):
        portable_guards(traced(function))


def many_calls(x: Tensor) -> Tensor:
    first, second = x.split(2)
    y = functional.silu(x) + functional.softmax(x, -1) + functional.layer_norm(x, (4,))
    y = y + torch.cat([first, second]).clamp(0) + functional.adaptive_avg_pool2d(x[None], 4)[0]
    return y + functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]


def with_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(numpy.sin(x.numpy()))


@pytest.mark.parametrize(
    "function",
    [
        many_calls,
        with_numpy,
        nn.Sequential(nn.Linear(4, 4), nn.GELU()),
        lambda x: torch.ops.toy_traced_calls.kernel(x) + 1,
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    ],
)
def test_calls_that_show_all_they_do_are_stored(function: Callable[..., Any]) -> None:
    refuse_hidden_python(traced(function))
