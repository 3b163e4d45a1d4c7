"""Checks of what torch relies on: schema, fake results, `opcheck`, and compiled equal to eager."""

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck  # noqa: TID251  (a check; it defines nothing)

from ir_core.testing.case import Case, Results, copied, forced, results, run
from ir_core.testing.comparison import first_byte_difference
from ir_core.testing.errors import ConformanceError

_BACKENDS = ("eager", "aot_eager")


def has_native_schema(case: Case) -> None:
    """The torch op's schema marks as written exactly what the op mutates, and aliases nothing."""
    schema = case.op.torch_op._schema
    written = {each.name for each in schema.arguments if each.alias_info is not None}
    if written != set(case.op.mutates):
        raise ConformanceError(
            f"the torch op marks {sorted(written)} as written, the op {sorted(case.op.mutates)}"
        )
    if any(each.alias_info is not None for each in schema.returns):
        raise ConformanceError(f"the torch op returns an alias: {schema}")


def agrees_with_fake(case: Case) -> None:
    """Shape, stride, dtype and device of every output are what the op's fake predicts."""
    arguments = case.arguments()
    real = run(case.implementation, copied(arguments)).outputs
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) if isinstance(each, Tensor) else each for each in arguments]
        predicted = results(case.op, case.op.torch_op(*fakes), fakes).outputs
    for at, (got, fake) in enumerate(zip(real, predicted, strict=True)):
        if _facts(got) != _facts(fake):
            raise ConformanceError(f"output {at} is {_facts(got)}, its fake says {_facts(fake)}")


def passes_opcheck(case: Case) -> None:
    """`torch.library.opcheck` accepts the torch op, and that of `maybe_inplace` if it has one.

    `test_schema` leaves out `maybe_inplace` of an in-place implementation: it returns its inputs,
    which is what donation is for and what no torch schema can say.
    """
    _opcheck(case, case.op.torch_op, ())
    if case.op.allow_inplace:
        without = ("test_schema",) if case.implementation.inplace else ()
        _opcheck(case, case.op.torch_maybe_inplace, without)


def compiles_to_the_same(case: Case) -> None:
    """`torch.compile` without a back end of ours gives eager's bytes for any number of tokens."""
    arguments = case.arguments()
    eager = run(case.implementation, copied(arguments))
    for backend in _BACKENDS:
        compiled = torch.compile(_caller(case.op), backend=backend, fullgraph=True)
        try:
            got = run(case.implementation, _dynamic(case, copied(arguments)), compiled)
        except Exception as error:
            raise ConformanceError(f"torch.compile with backend `{backend}`: {error}") from error
        finally:
            torch.compiler.reset()
        _expect_same(eager, got, backend)


def _dynamic(case: Case, arguments: Sequence[Any]) -> Sequence[Any]:
    """The arguments with token dims that become symbols; a model's scalars are constants."""
    for name, argument in zip(case.op.schema.names, arguments, strict=True):
        if isinstance(argument, Tensor):
            dims = sorted(case.op.token_dims.get(name, ()))
            torch._dynamo.maybe_mark_dynamic(argument, dims)
    return arguments


def _opcheck(case: Case, torch_op: Any, without: tuple[str, ...]) -> None:
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    tests += ("test_aot_dispatch_dynamic",)
    chosen = tuple(each for each in tests if each not in without)
    with forced(case.implementation):
        try:
            opcheck(torch_op, case.arguments(), test_utils=chosen)
        except Exception as error:
            raise ConformanceError(f"opcheck of `{torch_op}`: {_innermost(error)}") from error


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _caller(op: Any) -> Callable[..., Any]:
    """A function of its own code object: Dynamo counts recompilations by code."""

    def call(*arguments: Any) -> Any:
        return op(*arguments)

    return functools.wraps(call)(
        types.FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)
    )


def _expect_same(eager: Results, compiled: Results, backend: str) -> None:
    pairs: Sequence[tuple[str, Tensor, Tensor]] = list(
        zip(eager.labels, eager.tensors, compiled.tensors, strict=True)
    )
    for label, one, other in pairs:
        at = first_byte_difference(one, other)
        if at is not None:
            raise ConformanceError(
                f"{label}: compiled with `{backend}` index {list(at)} is {other[at].item():.9g}, "
                f"in eager {one[at].item():.9g}"
            )
