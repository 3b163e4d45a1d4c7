"""The calls of a model's ops, as one step makes them. Changes nothing of what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ir_core.autotuning.signature import has_signature, signature_of

if TYPE_CHECKING:
    from ir_core.op import IrOp
    from ir_core.registry import Registry

Values = tuple[Any, ...]
"""The arguments of one call, one per parameter."""

# Layers of one model call alike with weights of their own: so many weights that no cache has them.
_MOST_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Calls of one signature: all have copies of the first's token tensors, and own static ones."""

    op: IrOp
    signature: str
    samples: list[Values] = field(default_factory=list)

    def add(self, values: Values) -> None:
        """Note another call, as long as there are few."""
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

    Left out are ops that cannot be called again without harm: those that write an argument by
    their meaning, and those whose native is opaque, such as collectives.
    """

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        registry.load_plugins()
        self._ops: dict[Any, IrOp] = {}
        for op in registry.values():
            if is_repeatable(op):
                self._ops[op.torch_op] = op
                self._ops[op.torch_maybe_inplace] = op
        self._calls: dict[tuple[str, str], RecordedCalls] = {}

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


def is_repeatable(op: IrOp) -> bool:
    """Whether calling an op again does no harm, alone on one rank."""
    return not op.mutates and not op.native.opaque and has_signature(op)
