"""Remembers which function answers which arguments of an op. Chooses nothing: that is `dispatch`.

The key of a memory is exactly what the predicates read, the scalars with their types, the scoped
priority, and where timing chose by ranges of rows the range. The code that builds it is generated,
as dataclasses do, and made anew when a predicate reads more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ir_core.autotuning.rows import rows_place
from ir_core.generated_code import build
from ir_core.schema import Parameter
from ir_core.weight_layouts import LAYOUT

if TYPE_CHECKING:
    from ir_core.dispatch import Choice
    from ir_core.implementation import Implementation
    from ir_core.op import IrOp

Run = Callable[..., Any]

# Scalars that never repeat must not let the memory grow without end.
_MAX_REMEMBERED = 1024

# Most ops see one kind of arguments only: comparing with the first is cheaper than hashing.
_FIND = """
def find({names}):
    try:
        if {is_first}:
            return first_run
        return memory[{key}]
    except (KeyError, TypeError, AttributeError, IndexError):
        return miss({names})
"""
_KEY = """
def key({names}):
    return {key}
"""


class Lookup:
    """The memory of one overload of one op; safe across threads.

    `find(*values)` returns the function to call with these values, one per parameter. `prepare`
    turns a chosen implementation into that function. What is remembered has run once: a choice
    whose call fails is made again.
    """

    __slots__ = (
        "_asked",
        "_generation",
        "_key",
        "_lock",
        "_memory",
        "_op",
        "_prepare",
        "_reads",
        "find",
    )

    def __init__(self, op: IrOp, prepare: Callable[[Implementation], Run]) -> None:
        self._op = op
        self._prepare = prepare
        self._lock = threading.Lock()
        self._generation = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything, because a priority or an implementation has changed."""
        with self._lock:
            self._generation += 1
            self._reads: frozenset[tuple[str, str]] = frozenset()
            self._asked = False
            self._clear()

    def _miss(self, *values: Any) -> Run:
        generation = self._generation
        self._op.check_values(*values)
        choice = self._op.choose(values)
        run = self._prepare(choice.selection.implementation)

        def first_run(*values: Any) -> Any:
            result = run(*values)
            self._op.registry.record(choice.selection)
            with self._lock:
                # A choice made under an older priority is used once, not remembered.
                if generation == self._generation:
                    self._remember(choice, values, run)
            return result

        return first_run

    def _remember(self, choice: Choice, values: Sequence[Any], run: Run) -> None:
        if choice.asked > self._asked or not choice.reads <= self._reads:
            self._reads |= choice.reads
            self._asked |= choice.asked
            self._clear()
        elif len(self._memory) >= _MAX_REMEMBERED:
            self._clear()
        try:
            key = self._key(*values)
            self._memory[key] = run
        except (TypeError, IndexError):
            return
        if len(self._memory) == 1:
            self.find = self._finder(key, run)

    def _clear(self) -> None:
        self._memory: dict[Any, Run] = {}
        self._key: Run = self._build("key", _KEY, {})
        self.find: Callable[..., Run] = self._finder((), None)

    def _finder(self, first: tuple[Any, ...], first_run: Run | None) -> Callable[..., Run]:
        facts = {f"first_{index}": value for index, value in enumerate(first)}
        return self._build("find", _FIND, {"first_run": first_run, **facts})

    def _build(self, name: str, template: str, environment: dict[str, Any]) -> Run:
        parts = ["scope()", *self._key_parts()]
        known = [f"({part}) {_same(part)} first_{index}" for index, part in enumerate(parts)]
        text = template.format(
            names=", ".join(self._op.schema.names),
            key=f"({', '.join(parts)},)",
            is_first=" and ".join(known) if "first_0" in environment else "False",
        )
        environment |= {
            "memory": self._memory,
            "miss": self._miss,
            "scope": self._op.registry.priorities.scope,
        }
        return build(name, text, environment, self._op.name)

    def _key_parts(self) -> list[str]:
        if not self._asked:
            # Whether it is one that the implementation reads, or one at all, always matters.
            return [LAYOUT] if self._op.weights else []
        parts: list[str] = []
        for parameter in self._op.schema.parameters:
            hidden = self._op.token_dims.get(parameter.name)
            if parameter.is_tensor:
                parts += _tensor_parts(parameter, self._reads, hidden or frozenset())
            elif hidden is None:
                parts += _scalar_parts(parameter)
            elif parameter.is_optional:
                parts.append(f"{parameter.name} is None")
        return [*parts, *_range_parts(self._op)]


def _range_parts(op: IrOp) -> list[str]:
    """How many of the ends between ranges a call's rows are beyond; nothing where all are alike."""
    ends, place = op.registry.priorities.row_ends(op), rows_place(op)
    if place is None or not ends:
        return []
    name, dim = place
    return [" + ".join(f"({name}.shape[{dim}] > {end})" for end in ends)]


def _same(part: str) -> str:
    is_unique = part == "scope()" or part.startswith("type(") or part.endswith(".dtype")
    return "is" if is_unique else "=="


def _scalar_parts(parameter: Parameter) -> list[str]:
    name = parameter.name
    if "[" in parameter.type:
        return [f"None if {name} is None else tuple({name})"]
    # 2 == 2.0 and 1 == True, and only one of each pair may fit the schema.
    return [f"type({name})", name]


def _tensor_parts(
    parameter: Parameter, reads: frozenset[tuple[str, str]], hidden: frozenset[int]
) -> list[str]:
    name = parameter.name
    read = {kind for tensor, kind in reads if tensor == name}
    parts = [f"{name}.{each}" for each in ("dtype", "device", "layout", "ndim") if each in read]
    if "sizes" in read:
        parts.append(_visible_sizes(name, hidden))
    if "strides" in read:
        parts.append(f"{name}.stride()")
    if not parameter.is_optional:
        return parts
    return [f"None if {name} is None else {part}" for part in parts] or [f"{name} is None"]


def _visible_sizes(name: str, hidden: frozenset[int]) -> str:
    slices: list[str] = []
    start = 0
    for dim in sorted(hidden):
        if dim > start:
            slices.append(f"{name}.shape[{start}:{dim}]")
        start = dim + 1
    return " + ".join([*slices, f"{name}.shape[{start}:]"])
