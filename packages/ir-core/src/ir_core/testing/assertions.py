"""What an author's own test needs: an assertion against native, and a registry of one's own."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ir_core.implementation import Implementation
from ir_core.op import IrOp
from ir_core.ops.workload import Workload
from ir_core.registry import Registry
from ir_core.testing.case import Case, copied, require_selected, run
from ir_core.testing.checks.numerics import expect_close
from ir_core.testing.errors import ConformanceError


def assert_matches_native(implementation: Implementation, *args: Any, **kwargs: Any) -> None:
    """Assert that an implementation gives what native, evaluated in float64, gives on these inputs.

    Within the op's tolerance for each output's dtype; the inputs are copied first.

    Raises:
        ConformanceError: an AssertionError that names op, provider and the worst element.
        CheckDeclined: it cannot run here, or (CheckRejected) its predicate refuses the arguments.
    """
    op = implementation.op
    arguments = op.schema.bind(op.name, args, kwargs)
    require_selected(implementation, arguments)
    workload = Workload("given", "the arguments of this call")
    case = Case(implementation, workload, _dtype_of(op, arguments), op.weight_layouts.of(arguments))
    try:
        expect_close(case, run(implementation, copied(arguments)), arguments)
    except ConformanceError as error:
        raise ConformanceError(f"`{implementation.provider}` of `{op.name}`: {error}") from None


def _dtype_of(op: IrOp, arguments: Sequence[Any]) -> torch.dtype:
    """The activations' dtype; that of the first floating tensor where the op has none."""
    named = dict(zip(op.schema.names, arguments, strict=True))
    tensors = [named[name] for name in op.activations]
    tensors += [each for each in arguments if isinstance(each, Tensor) and each.is_floating_point()]
    return tensors[0].dtype if tensors else torch.float32


def fresh_registry(ops: Iterable[IrOp] = ()) -> Registry:
    """A registry of its own, in a torch namespace of its own, with copies of `ops` as natives.

    What is registered in it is seen by no other registry; plug-ins are not loaded into it.
    """
    registry = Registry(namespace=f"ir_test_{secrets.token_hex(4)}")
    for op in ops:
        _declare_again(registry, op)
    return registry


def _declare_again(registry: Registry, op: IrOp) -> None:
    copy = registry.register_op(
        name=op.name,
        activations=op.activations,
        allow_inplace=op.allow_inplace,
        mutates=op.mutates,
        splits=op.splits,
        opaque=op.native.opaque,
        token_dims={name: tuple(dims) for name, dims in op.token_dims.items()},
        batch_invariant=op.native.batch_invariant,
        weights=op.weights,
    )(op.native.written_fn)
    for layout in op.weight_layouts.packed:
        copy.register_layout(layout.name, pack=layout.pack, unpack=layout.unpack)
    if op.fake is not None:
        copy.register_fake(op.fake)
    if op.input_generator is not None:
        copy.register_input_generator(op.input_generator)
    for dtype, tolerance in op.tolerances.items():
        copy.override_tolerance(
            dtype, atol=tolerance.atol, rtol=tolerance.rtol, reason=tolerance.reason
        )
