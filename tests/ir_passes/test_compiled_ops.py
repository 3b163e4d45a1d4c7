"""Each shipped op is compiled as it runs: with every provider, dtype and form of a call."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import ir_core as ir
from ir_core import IrOp, testing
from ir_core.testing.case import Case, copied, forced, results
from ir_passes.printer import print_graph
from ir_passes.tracing.whole_graph import WholeGraph, trace_function

from .compiled import compile_whole

OPS = sorted(name for name in ir.registry() if ir.registry()[name].has_input_generator)


def trace_values(function: Callable[..., Any], values: Sequence[Any]) -> WholeGraph:
    """Trace a function of the tensors among some values, with static shapes."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    tensors = [each for each in values if isinstance(each, Tensor)]

    def call(*given: Tensor) -> tuple[Any, ...]:
        result = function(*refilled(values, given))
        return () if result is None else result if isinstance(result, tuple) else (result,)

    return trace_function(call, [mode.from_tensor(each) for each in tensors])


def refilled(values: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """The values with other tensors."""
    given = iter(tensors)
    return [next(given) if isinstance(each, Tensor) else each for each in values]


def accepted_cases(op: IrOp) -> Iterator[Case]:
    """The cases of seven tokens that an implementation takes on this machine."""
    for case in testing.cases([op]):
        if case.workload.name != "odd-count":
            continue
        try:
            testing.require_selected(case.implementation, case.arguments())
        except (testing.CheckDeclined, testing.CheckRejected):
            continue
        yield case


@pytest.mark.parametrize("name", OPS)
def test_op_is_the_same_compiled_for_every_provider_and_dtype(name: str) -> None:
    op = ir.registry()[name]
    done: set[str] = set()
    for case in accepted_cases(op):
        values = case.arguments()
        given, kept = copied(values), copied(values)
        with forced(case.implementation), torch.no_grad():
            _, run = compile_whole(trace_values(op, values))
            returned = run(*(each for each in given if isinstance(each, Tensor)))
            found = results(op, tuple(returned), given)
            wanted = results(op, op(*kept), kept)
        assert found.labels == wanted.labels
        for mine, theirs in zip(found.tensors, wanted.tensors, strict=True):
            assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride()), str(case)
            # Torch takes an activation apart before it is compiled.
            rtol = (
                1e-6
                if case.provider == "native" and name in ("silu_and_mul", "gelu_and_mul")
                else 0
            )
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=rtol, equal_nan=True)
        for parameter, mine, theirs in zip(op.schema.names, given, values, strict=True):
            if isinstance(mine, Tensor) and parameter not in op.mutates:
                torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        done.add(case.provider)
    assert "native" in done


def forms(op: IrOp, call: Callable[..., Any], torch_op: Any) -> dict[str, Callable[..., Any]]:
    """Ways to write one call, as functions of one value per parameter."""
    parameters = op.schema.parameters

    def named(values: Sequence[Any]) -> dict[str, Any]:
        return dict(reversed([*zip(op.schema.names, values, strict=True)]))

    def shortest(*values: Any) -> Any:
        needed = len(values)
        while needed and parameters[needed - 1].has_default:
            value, default = values[needed - 1], parameters[needed - 1].default
            if isinstance(value, Tensor) or value != default:
                break
            needed -= 1
        return call(*values[:needed])

    def mixed(*values: Any) -> Any:
        rest = named(values)
        del rest[op.schema.names[0]]
        return call(values[0], **rest)

    return {
        "in order": call,
        "by name": lambda *values: call(**named(values)),
        "mixed": mixed,
        "without defaults": shortest,
        "torch op": torch_op,
        "torch op by name": lambda *values: torch_op(**named(values)),
    }


@pytest.mark.parametrize("name", OPS)
def test_every_form_of_a_call_gives_one_graph(name: str) -> None:
    op = ir.registry()[name]
    case = next(accepted_cases(op))
    calls: list[tuple[Callable[..., Any], Any]] = [(op, op.torch_op)]
    if op.allow_inplace:
        calls.append((op.maybe_inplace, op.torch_maybe_inplace))
    for call, torch_op in calls:
        texts = {
            form: print_graph(trace_values(function, case.arguments()).module.graph)
            for form, function in forms(op, call, torch_op).items()
        }
        (text, *others) = set(texts.values())
        assert not others, texts
        assert text.count(f"= ir.{name}(") == 1
