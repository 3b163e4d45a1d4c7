"""The calls of a model's ops, as one step makes them. Changes nothing of what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ir_core.autotuning.rows import token_sizes
from ir_core.autotuning.signature import has_signature, signature_of

if TYPE_CHECKING:
    from ir_core.op import IrOp
    from ir_core.registry import Registry

Values = tuple[Any, ...]
"""The arguments of one call, one per parameter."""

_GROUP = "group"

# Layers of one model call alike with weights of their own: so many weights that no cache has them.
_MOST_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Calls of one signature: all have copies of the first's token tensors, and own static ones.

    `sizes` are those that count tokens in any of the calls, sampled or not; None is among them if
    an argument is such a count.
    """

    op: IrOp
    signature: str
    samples: list[Values] = field(default_factory=list)
    sizes: set[int | None] = field(default_factory=set[int | None])

    def add(self, values: Values) -> None:
        """Note another call: its sizes, and itself as long as there are few."""
        self.sizes.update(token_sizes(self.op, values))
        if not self.samples:
            self.samples.append(tuple(self._own(values)))
        elif len(self.samples) < _MOST_SAMPLES:
            pairs = zip(self.op.schema.names, values, self.samples[0], strict=True)
            self.samples.append(
                tuple(own if name in self.op.token_dims else each for name, each, own in pairs)
            )

    def _own(self, values: Values) -> Sequence[Any]:
        pairs = zip(self.op.schema.names, values, strict=True)
        return [
            copy_of(each) if isinstance(each, Tensor) and name in self.op.token_dims else each
            for name, each in pairs
        ]


class CallRecorder(TorchDispatchMode):
    """Within `with`, notes the calls of a registry's ops on this thread, by op and signature.

    Left out are ops that cannot be called again without harm, as `why_once` says.
    """

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        registry.load_plugins()
        self._ops: dict[Any, IrOp] = {}
        self._once: dict[Any, tuple[str, str]] = {}
        for op in registry.values():
            reason = why_once(op)
            for torch_op in (op.torch_op, op.torch_maybe_inplace):
                if reason is None:
                    self._ops[torch_op] = op
                else:
                    self._once[torch_op] = op.name, reason
        self._calls: dict[tuple[str, str], RecordedCalls] = {}
        self.left_out: dict[str, str] = {}
        """Why calls of an op, by its name, are not among `calls`."""

    @property
    def calls(self) -> Mapping[tuple[str, str], RecordedCalls]:
        """What was noted, in order of first call."""
        return self._calls

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Torch would import Dynamo for it, which costs a start a second, and nothing traces here.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        op = self._ops.get(func)
        if func in self._once:
            self.left_out.update([self._once[func]])
        if op is not None:
            # The dispatcher leaves out trailing values that are the default.
            values = op.schema.bind(op.name, args, dict(kwargs or {}))
            signature = signature_of(op, values)
            found = self._calls.setdefault((op.name, signature), RecordedCalls(op, signature))
            found.add(values)
        return func(*args, **(kwargs or {}))


def copy_of(tensor: Tensor) -> Tensor:
    """A copy with the same strides, unless elements share memory; it is contiguous then."""
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < extent:
            return tensor.clone(memory_format=torch.contiguous_format)
        extent = max(extent, stride * size)
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def why_once(op: IrOp) -> str | None:
    """Why a call of an op cannot be repeated, alone on one rank; None if that does no harm."""
    if _GROUP in op.schema.names:
        return "the ranks compute it together, and one that repeats a call would wait for the rest"
    if op.mutates:
        return f"it writes to `{'` and `'.join(op.mutates)}`, which a repeated call would spoil"
    if op.native.opaque:
        return "its native is opaque, and may do more than return a value"
    if not has_signature(op):
        return "it takes a list of tensors, and nothing tells which of their sizes are tokens"
    return None
