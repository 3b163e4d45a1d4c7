"""Workloads: named argument sets that tests and benches share. Makes no tensors itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Workload:
    """One argument set of an op: keyword arguments for its input generator, and why it is here.

    `max_differing` is the share of elements that may differ from native in a 16-bit dtype. It is
    set where the op's meaning fixes the rounding points, and finds an implementation that rounds
    somewhere else, which no tolerance can see. None leaves it to the tolerance. `checked` says
    whether the conformance suite runs it, `bench` whether the benches do. `moves_all_bytes` says
    that what bounds it is moving every byte of its tensors once, so that the share of the machine's
    bandwidth tells how good an implementation is.
    """

    name: str
    reason: str
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_differing: float | None = None
    checked: bool = True
    bench: bool = False
    moves_all_bytes: bool = False


@dataclass(frozen=True, slots=True)
class InputGenerator:
    """An input generator together with the workloads that call it; itself a callable generator."""

    generate: Callable[..., tuple[Any, ...]]
    workloads: tuple[Workload, ...]

    def __call__(self, **inputs: Any) -> tuple[Any, ...]:
        """Positional arguments of the op for these keyword arguments."""
        return self.generate(**inputs)


def workloads(*cases: Workload) -> Callable[[Callable[..., tuple[Any, ...]]], InputGenerator]:
    """Attach `cases` to the input generator below; a repeated name is a ValueError."""
    names = [case.name for case in cases]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"workload name `{repeated[0]}` is used twice; give each its own")

    def attach(generate: Callable[..., tuple[Any, ...]]) -> InputGenerator:
        return InputGenerator(generate, cases)

    return attach
