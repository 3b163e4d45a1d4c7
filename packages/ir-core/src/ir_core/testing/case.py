"""Cases: an implementation on a workload in a dtype and a weight layout. Judges nothing."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ir_core.implementation import Implementation
from ir_core.op import IrOp
from ir_core.ops.workload import InputGenerator, Workload
from ir_core.selection import Selection
from ir_core.testing.errors import CheckDeclined, CheckRejected
from ir_core.weight_layouts import PLAIN

# bfloat16 is what models run in; float16 overflows where it does not; float32 finds aliasing
# that a conversion hides.
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

STANDARD_WORKLOADS = (
    Workload("one-token", "decode of one request", {"num_tokens": 1}),
    Workload("odd-count", "a count that no vector width divides", {"num_tokens": 7}),
    Workload("no-tokens", "a step in which this rank has none", {"num_tokens": 0}),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One implementation on one workload in one dtype, its weights in one layout."""

    implementation: Implementation
    workload: Workload
    dtype: torch.dtype
    layout: str = PLAIN

    @property
    def op(self) -> IrOp:
        """The op that the implementation implements."""
        return self.implementation.op

    @property
    def provider(self) -> str:
        """The implementation's provider."""
        return self.implementation.provider

    @property
    def dtype_name(self) -> str:
        """The dtype without torch's prefix, `bfloat16`."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def layout_name(self) -> str:
        """The layout of the op's weights; "" for an op without weights."""
        return self.layout if self.op.weights else ""

    @property
    def has_several_tokens(self) -> bool:
        """Whether there is a batch to be seen: a token beside another."""
        return self.workload.inputs.get("num_tokens", 0) > 1

    def __str__(self) -> str:
        names = (self.op.name, self.provider, self.layout_name, self.workload.name, self.dtype_name)
        return "-".join(name for name in names if name)

    def arguments(self, **changed: Any) -> tuple[Any, ...]:
        """Fresh arguments, one per parameter; `changed` replaces some of the workload's own.

        Weights are packed in the case's layout.
        """
        inputs = {**self.workload.inputs, "dtype": self.dtype, **changed}
        plain = self.op.schema.bind(self.op.name, self.op.generate_inputs(**inputs), {})
        return self.op.pack(plain, self.layout)


@dataclass(frozen=True, slots=True)
class Results:
    """What a call gave: its outputs, then the arguments that the op writes by its meaning."""

    labels: tuple[str, ...]
    tensors: tuple[Tensor, ...]

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Returned tensors only."""
        return tuple(
            tensor
            for label, tensor in zip(self.labels, self.tensors, strict=True)
            if label.startswith("output")
        )


def workloads_of(op: IrOp) -> tuple[Workload, ...]:
    """The workloads an op's input generator carries, and the standard token counts."""
    generator = op.input_generator
    own = generator.workloads if isinstance(generator, InputGenerator) else ()
    names = {workload.name for workload in own}
    return (*(each for each in STANDARD_WORKLOADS if each.name not in names), *own)


def cases(
    ops: Iterable[IrOp],
    *,
    providers: Sequence[str] | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> list[Case]:
    """Every implementation of `ops` on every workload, in every layout that it reads.

    Made for `pytest.mark.parametrize`. Also lists cases that the implementation will reject or that
    cannot run here. An op without an input generator has none.
    """
    return [
        Case(implementation, workload, dtype, layout)
        for op in ops
        if op.has_input_generator
        for provider, implementation in op.implementations.items()
        if providers is None or provider in providers
        for layout in implementation.layouts
        for workload in workloads_of(op)
        if workload.checked
        for dtype in dtypes
    ]


@contextmanager
def forced(implementation: Implementation) -> Generator[None]:
    """Put the implementation first in its op's priority for this block."""
    with implementation.op.registry.priorities.override(
        {implementation.op.name: [implementation.provider]}
    ):
        yield


def require_selected(implementation: Implementation, arguments: Sequence[Any]) -> Selection:
    """The selection for `arguments` with the implementation forced.

    Raises:
        CheckDeclined: it cannot run on this machine.
        CheckRejected: its predicate refuses the arguments.
    """
    if not implementation.supported:
        raise CheckDeclined(implementation.unsupported_reason)
    op = implementation.op
    with forced(implementation):
        selection = op.registry.select(op, *arguments)
    if selection.provider == implementation.provider:
        return selection
    reasons = {each.provider: each.reason for each in selection.rejections}
    raise CheckRejected(reasons.get(implementation.provider, "not in the priority list"))


def run(
    implementation: Implementation,
    arguments: Sequence[Any],
    call: Callable[..., Any] | None = None,
) -> Results:
    """Call the op (or `call`) with the implementation forced, without gradients."""
    with forced(implementation), torch.no_grad():
        returned = (call or implementation.op)(*arguments)
    return results(implementation.op, returned, arguments)


def results(op: IrOp, returned: Any, arguments: Sequence[Any]) -> Results:
    """Label what a call returned and what it wrote."""
    outputs = () if returned is None else (returned,) if isinstance(returned, Tensor) else returned
    named = {f"output {at}": tensor for at, tensor in enumerate(outputs)}
    by_name = dict(zip(op.schema.names, arguments, strict=False))
    named.update({f"`{name}` after the call": by_name[name] for name in op.mutates})
    return Results(tuple(named), tuple(named.values()))


def copied(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with every tensor cloned, strides kept."""
    return tuple(each.clone() if isinstance(each, Tensor) else each for each in arguments)
