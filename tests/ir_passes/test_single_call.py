"""Single calls that are compiled to be timed: the wanted implementation, for every token count."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.autotuning.call_compiler import tensors_of
from ir_core.autotuning.recorder import copy_of
from ir_passes.compiling.single_call import SingleCalls
from ir_passes.config import CompilationConfig
from ir_passes.errors import CompileError

COUNTS = (1, 8, 64)
EAGER = CompilationConfig(backend="eager")
Calls = Mapping[int, Sequence[Any]]


def norm_calls() -> Calls:
    torch.manual_seed(0)
    return {count: (torch.randn(count, 16), torch.randn(16), 1e-5, None) for count in COUNTS}


def rotary_calls() -> Calls:
    """Query and key lie as in a model, where they are parts of one tensor."""
    torch.manual_seed(0)
    cache = torch.randn(128, 8)
    calls: dict[int, Sequence[Any]] = {}
    for count in COUNTS:
        query, key = (copy_of(part) for part in torch.randn(count, 24).split([16, 8], -1))
        positions = torch.arange(count)
        calls[count] = (query.view(count, 2, 8), key.view(count, 1, 8), positions, cache, 8, True)
    return calls


@pytest.mark.parametrize(
    ("name", "calls"), [("rms_norm", norm_calls()), ("rotary_embedding", rotary_calls())]
)
def test_compiled_calls_give_what_the_implementation_gives(name: str, calls: Calls) -> None:
    op = ir.registry()[name]
    compiled = SingleCalls(EAGER).compile(op.native, calls)
    assert tuple(compiled) == COUNTS
    for count, values in calls.items():
        copies = [each.clone() if isinstance(each, Tensor) else each for each in values]
        expected = op.native.fn(*copies)
        torch.testing.assert_close(compiled[count](tensors_of(values)), expected)


def test_inductor_makes_one_program_of_loops() -> None:
    calls = norm_calls()
    compiled = SingleCalls(CompilationConfig()).compile(ir.registry()["rms_norm"].native, calls)
    for count, values in calls.items():
        expected = ir.registry()["rms_norm"].native.fn(*values)
        torch.testing.assert_close(compiled[count](tensors_of(values)), expected)


def test_tensors_of_inference_mode_can_be_examples() -> None:
    with torch.inference_mode():
        calls = norm_calls()
    SingleCalls(EAGER).compile(ir.registry()["rms_norm"].native, calls)


def test_an_implementation_that_refuses_the_call_is_an_error() -> None:
    implementation = ir.registry()["rms_norm"].implementations["aiter"]
    with pytest.raises(CompileError, match="by `aiter` was to be compiled, and this was"):
        SingleCalls(EAGER).compile(implementation, norm_calls())


def test_a_number_of_tokens_among_the_arguments_is_an_error() -> None:
    op = ir.registry()["all_gather"]
    calls = {count: (torch.ones(count, 2), count, "tp") for count in COUNTS}
    with pytest.raises(CompileError, match="takes `num_tokens`, a number of tokens"):
        SingleCalls(EAGER).compile(op.native, calls)


def test_nothing_is_compiled_once_the_time_is_up() -> None:
    compiler = SingleCalls(EAGER, limit_s=1e-6)
    compiler.compile(ir.registry()["rms_norm"].native, norm_calls())
    with pytest.raises(ir.TuningTimeError, match="the most that timing may cost"):
        compiler.compile(ir.registry()["rms_norm"].native, norm_calls())


def test_a_description_is_of_what_decides_the_code() -> None:
    first = SingleCalls(CompilationConfig()).description
    assert first.startswith("inductor ")
    assert SingleCalls(CompilationConfig(compile_sizes=(4,))).description == first
    options = {"cpp.simdlen": 256}
    assert SingleCalls(CompilationConfig(inductor_compile_config=options)).description != first
