"""The graph of one implementation, traced on the fakes of one call. It changes no other graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import SymFloat, SymInt, Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from ir_core.selection import Selection
from ir_passes.errors import LoweringError
from ir_passes.metadata import difference, fake_of, storages_in
from ir_passes.tracing.aten import trace_to_aten


def trace_implementation(
    selection: Selection, values: Sequence[Any], mode: FakeTensorMode
) -> GraphModule:
    """Trace the selected function on one value per parameter: fakes, sizes and constants.

    The graph has a placeholder for each tensor and each symbolic number in `values`, in order.

    Raises:
        LoweringError: the implementation cannot be traced, or has kept a tensor of another trace.
    """
    leaves, spec = pytree.tree_flatten(tuple(values))
    places = [index for index, leaf in enumerate(leaves) if is_traced(leaf)]

    def call(*given: Any) -> Any:
        filled = list(leaves)
        for place, value in zip(places, given, strict=True):
            filled[place] = value
        return selection.implementation.fn(*pytree.tree_unflatten(filled, spec))

    try:
        traced = trace_to_aten(call, [leaves[place] for place in places], mode)
    except Exception as error:
        raise LoweringError(
            f"{_spell(selection)} cannot be traced: {type(error).__name__}: {error}. If it "
            "branches on values or token counts, register it with `opaque=True`."
        ) from error
    _refuse_kept_fakes(selection, traced)
    return traced


def is_traced(value: Any) -> bool:
    """Whether a value of a call becomes a placeholder."""
    return isinstance(value, Tensor | SymInt | SymFloat)


def check_contract(selection: Selection, expected: Any, traced: GraphModule) -> None:
    """Compare the outputs of a traced implementation with the op's own fake.

    Raises:
        LoweringError: another number, dtype, shape or stride of outputs, or one that lies in the
            memory of an argument which the implementation may not reuse; names both sides.
    """
    outputs = traced_outputs(traced)
    found = tuple(fake_of(each) if hasattr(each, "meta") else each for each in outputs)
    wanted = tuple(expected) if isinstance(expected, list | tuple) else (expected,)
    if expected is None:
        wanted = ()
        found = tuple(each for each in found if each is not None)
    problem = difference(wanted, found) if len(wanted) == len(found) else (
        f"{len(wanted)} outputs, not {len(found)}"
    )  # fmt: skip
    if problem is not None:
        raise LoweringError(
            f"{_spell(selection)} breaks the contract of `{selection.op.name}`: the op's fake has "
            f"{problem}, as the implementation returns."
        )
    if selection.implementation.inplace:
        return
    inputs = traced.graph.find_nodes(op="placeholder")
    if storages_in(found) & storages_in([fake_of(each) for each in inputs]):
        raise LoweringError(
            f"{_spell(selection)} returns memory of an argument, but is not registered with "
            "`inplace=True`; return a fresh tensor."
        )


def traced_outputs(traced: GraphModule) -> tuple[Any, ...]:
    """The values that a traced implementation returns, nodes or constants."""
    outputs: Any = traced.graph.output_node().args[0]
    return tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)


def _refuse_kept_fakes(selection: Selection, traced: GraphModule) -> None:
    for node in traced.graph.find_nodes(op="get_attr"):
        value = getattr(traced, str(node.target), None)
        if isinstance(value, FakeTensor):
            raise LoweringError(
                f"{_spell(selection)} has kept a tensor of shape {tuple(value.shape)} that it made "
                "while it was traced, which has no values. Make it beforehand, or register the "
                "implementation with `opaque=True`."
            )


def _spell(selection: Selection) -> str:
    where = selection.implementation.location
    return f"Implementation `{selection.provider}` of `{selection.op.name}` ({where})"
