"""Turns `maybe_inplace` into the functional op and marks what was donated, on the whole graph.

It looks at memory, not at names: a use of a donated tensor through a view or an alias is found, and
columns of one buffer that do not meet are independent, whatever the token count is.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from ir_core import DonationError, IrOp
from ir_passes.arguments import bound_arguments
from ir_passes.dialect import Dialect
from ir_passes.donation import mark_donated
from ir_passes.location import line_of
from ir_passes.metadata import fake_of, storages_of, tensors_in
from ir_passes.region import covers, may_overlap

# These read an argument's metadata only.
_METADATA_ONLY = frozenset(
    (
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
        *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
    )
)
# These fill their first argument whatever it held; the functional forms ignore its values.
_OVERWRITES = frozenset({"copy_", "fill_", "zero_"})
_IGNORES_FIRST = frozenset({"copy", "fill", "zero"})


@dataclass(frozen=True, slots=True)
class _Donation:
    by: Node
    argument: str
    tensor: Tensor


def functionalize_donations(graph: Graph, dialect: Dialect, state: Iterable[Node]) -> int:
    """Replace every `maybe_inplace` of a graph of torch ops by `default`; returns how many.

    Args:
        graph: in torch's own order of execution; in-place ops are allowed.
        dialect: whose ops are meant.
        state: placeholders that belong to the model and not to the call.

    Raises:
        DonationError: a donated tensor is used or returned later, is passed twice to one call, or
            belongs to the model. Names the op, the parameter, both lines and what to do.
    """
    kept = [*state, *graph.find_nodes(op="get_attr")]
    check = _Check(dialect, {storage: node for node in kept for storage in storages_of(node)})
    donating = [node for node in graph.nodes if check.visit(node)]
    for node in donating:
        op = dialect.op_of(node)
        if op is not None:
            node.target = op.torch_op
            # It describes the call as it was written, and Inductor would believe it.
            node.meta.pop("eager_input_vals", None)
            mark_donated(node, op.activations)
    return len(donating)


class _Check:
    def __init__(self, dialect: Dialect, state: dict[int, Node]) -> None:
        self._dialect = dialect
        self._state = state
        self._dead: list[_Donation] = []

    def visit(self, node: Node) -> bool:
        """Check one node after all before it; tells whether it donates."""
        if node.op == "get_attr":
            _refuse_body(node, self._dialect)
        if self._dead and not _is_harmless(node):
            self._check_uses(node)
        op = self._dialect.op_of(node)
        if op is None or node.target is not op.torch_maybe_inplace:
            return False
        self._refuse_overlap(node, op)
        for name, tensor in _tensors_of_call(node):
            if name in op.activations:
                self._donate(node, name, tensor)
        return True

    def _check_uses(self, node: Node) -> None:
        tensors = list(_read_tensors(node))
        if _name(node) in _OVERWRITES:
            revived = fake_of(node.args[0])  # type: ignore[arg-type]
            self._dead = [each for each in self._dead if not covers(revived, each.tensor)]
        for tensor in tensors:
            for each in self._dead:
                if may_overlap(tensor, each.tensor):
                    raise DonationError(_use_message(node, tensor, each))

    def _donate(self, node: Node, argument: str, tensor: Tensor) -> None:
        owner = self._state.get(tensor.untyped_storage()._cdata)
        if owner is not None:
            raise DonationError(
                f"`{_op_name(node)}` at {line_of(node)} takes as `{argument}` the memory of "
                f"`{owner.meta.get('ir_input_path', owner.name)}`, which belongs to the model and "
                "is read again by the next call. Clone it first."
            )
        self._dead.append(_Donation(node, argument, tensor))

    def _refuse_overlap(self, node: Node, op: IrOp) -> None:
        for (first, mine), (second, theirs) in combinations(_tensors_of_call(node), 2):
            is_donated = first in op.activations or second in op.activations
            if is_donated and may_overlap(mine, theirs):
                raise DonationError(
                    f"`{_op_name(node)}` at {line_of(node)} takes the same memory as `{first}` and "
                    f"as `{second}`; give it two tensors, or clone one."
                )


def _refuse_body(node: Node, dialect: Dialect) -> None:
    """A donation inside a branch or a loop would have to hold for every path through it."""
    body = getattr(node.graph.owning_module, str(node.target), None)
    if not isinstance(body, GraphModule):
        return
    for inner in body.graph.nodes:
        op = dialect.op_of(inner)
        if op is not None and inner.target is op.torch_maybe_inplace:
            raise DonationError(
                f"`{_op_name(inner)}` at {line_of(inner)} is inside the body of a control-flow op; "
                "call it there without `maybe_inplace`."
            )


def _is_harmless(node: Node) -> bool:
    target = node.target
    if node.op == "output":
        return False
    if node.op != "call_function" or target is operator.getitem:
        return True
    if not isinstance(target, OpOverload):
        return False
    return target.is_view or _name(node) in _METADATA_ONLY or _name(node).startswith("sym_")


def _read_tensors(node: Node) -> Iterator[Tensor]:
    skips_first = _name(node) in _OVERWRITES | _IGNORES_FIRST
    skipped = node.args[0] if skips_first else None
    for each in node.all_input_nodes:
        if each is not skipped:
            yield from tensors_in(fake_of(each))


def _tensors_of_call(node: Node) -> list[tuple[str, Tensor]]:
    return [
        (name, tensor)
        for name, value in bound_arguments(node).items()
        if isinstance(value, Node)
        for tensor in tensors_in(fake_of(value))
    ]


def _use_message(node: Node, tensor: Tensor, donation: _Donation) -> str:
    use = "the model returns" if node.op == "output" else f"`{node.target}` at {line_of(node)} uses"
    return (
        f"{use[0].upper()}{use[1:]} a tensor of shape {tuple(tensor.shape)} whose memory "
        f"`{_op_name(donation.by)}` took as `{donation.argument}` at {line_of(donation.by)}. Use "
        "the result instead, call the op without `maybe_inplace`, or clone first."
    )


def _name(node: Node) -> str:
    return node.target._opname if isinstance(node.target, OpOverload) else ""


def _op_name(node: Node) -> str:
    return node.target._schema.name if isinstance(node.target, OpOverload) else str(node.target)
