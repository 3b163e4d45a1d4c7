"""Weight layouts: how the elements of an op's weights lie in memory. Knows no layout but `plain`.

A layout permutes the bytes within each weight: shape, dtype and size stay, so packing costs no
memory, fakes do not change, and equal layers stay equal. The layout of a call is the op's attribute
`layout`, which every implementation that is asked can refuse; native unpacks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ir_core.errors import (
    ArgumentError,
    DuplicateRegistrationError,
    LayoutError,
    RegistrationError,
)
from ir_core.generated_code import build
from ir_core.location import location_of
from ir_core.schema import Schema
from ir_core.suggestion import suggest

PLAIN = "plain"
"""The layout of a weight as a checkpoint has it: row-major."""
LAYOUT = "layout"
"""The parameter that names the layout of an op's weights."""

Permutation = Callable[..., tuple[Tensor | None, ...]]

_READS_ANY = """
def native({names}):
    if layout == {plain!r}:
        return fn({names})
    return fn(*unpack(({names},)))
"""


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """One layout of one op's weights; both functions take the weights and return as many.

    `pack` takes plain weights and may reuse their memory; `unpack` returns fresh plain tensors.
    """

    name: str
    pack: Permutation
    unpack: Permutation

    @property
    def location(self) -> str:
        """ "file:line" of `pack`."""
        return location_of(self.pack)


class WeightLayouts:
    """The layouts of one op's weights by name; an op without weights knows `plain` alone."""

    def __init__(self, op: str, schema: Schema, weights: Sequence[str]) -> None:
        self._op = op
        self._schema = schema
        self._weights = tuple(schema.names.index(name) for name in weights)
        self._layouts: dict[str, WeightLayout] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all layouts, `plain` first."""
        return (PLAIN, *self._layouts)

    @property
    def packed(self) -> tuple[WeightLayout, ...]:
        """All layouts but `plain`."""
        return tuple(self._layouts.values())

    def add(self, layout: WeightLayout) -> None:
        """Enter a layout; the same one imported again takes its own place.

        Raises:
            RegistrationError: the op has no weights, or the name is `plain`.
            DuplicateRegistrationError: another place has registered this name.
        """
        if not self._weights:
            raise RegistrationError(
                f"Op `{self._op}` has no weights to lay out; declare them with `weights=(…)`."
            )
        if layout.name == PLAIN:
            raise RegistrationError(f"Layout name `{PLAIN}` (op `{self._op}`) is reserved.")
        known = self._layouts.get(layout.name)
        if known is not None and known.location != layout.location:
            raise DuplicateRegistrationError(
                f"Layout `{layout.name}` of `{self._op}` is registered twice: at "
                f"{known.location} and at {layout.location}."
            )
        # A fresh dict: readers in other threads keep iterating over theirs.
        self._layouts = {**self._layouts, layout.name: layout}

    def of(self, values: Sequence[Any]) -> str:
        """The layout that a call with these values names."""
        return values[self._schema.names.index(LAYOUT)] if self._weights else PLAIN

    def check(self, values: Sequence[Any]) -> None:
        """Raise ArgumentError, listing the layouts there are, if a call names another one."""
        if self._weights and self.of(values) not in self.names:
            self._refuse_name(self.of(values))

    def labelled(self, values: Sequence[Any], layout: str) -> tuple[Any, ...]:
        """The same values with another layout's name, the weights as they are."""
        if not self._weights:
            return tuple(values)
        at = self._schema.names.index(LAYOUT)
        return (*values[:at], layout, *values[at + 1 :])

    def pack(self, values: Sequence[Any], layout: str) -> tuple[Any, ...]:
        """The values of a call with plain weights, with packed ones, whose memory may be reused.

        Raises:
            ArgumentError: no such layout, or the weights are packed already.
            LayoutError: the layout's `pack` changed a shape or dtype.
        """
        if layout != PLAIN and layout not in self._layouts:
            self._refuse_name(layout)
        if layout == self.of(values):
            return tuple(values)
        if self.of(values) != PLAIN:
            raise ArgumentError(
                f"The weights of `{self._op}` lie in `{self.of(values)}`; unpack them before they "
                f"are packed in `{layout}`."
            )
        packed = self._permuted(values, self._layouts[layout].pack, layout)
        return self.labelled(packed, layout)

    def unpack(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The values of a call with fresh plain weights; as they are if the weights are plain.

        Raises:
            ArgumentError: the call names no layout there is.
            LayoutError: the layout's `unpack` changed a shape or dtype.
        """
        self.check(values)
        layout = self.of(values)
        if layout == PLAIN:
            return tuple(values)
        plain = self._permuted(values, self._layouts[layout].unpack, layout)
        return self.labelled(plain, PLAIN)

    def reading_any(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """The native function as one that reads every layout: it only ever sees plain weights."""
        if not self._weights:
            return native
        text = _READS_ANY.format(names=", ".join(self._schema.names), plain=PLAIN)
        environment = {"fn": native, "unpack": self.unpack}
        wrapper = build("native", text, environment, self._op, self._schema.defaults)
        return functools.update_wrapper(wrapper, native)

    def _permuted(
        self, values: Sequence[Any], permutation: Permutation, layout: str
    ) -> tuple[Any, ...]:
        weights = [values[at] for at in self._weights]
        with torch.no_grad():
            result: Any = permutation(*weights)
        if not isinstance(result, tuple) or len(result) != len(weights):
            raise LayoutError(
                f"Layout `{layout}` of `{self._op}` ({location_of(permutation)}) returned "
                f"{type(result).__name__}; it must return a tuple of {len(weights)} weights."
            )
        permuted = list(values)
        for at, before, after in zip(self._weights, weights, result, strict=True):
            self._require_same(layout, permutation, self._schema.names[at], (before, after))
            permuted[at] = after
        return tuple(permuted)

    def _require_same(
        self, layout: str, permutation: Permutation, name: str, pair: tuple[Any, Any]
    ) -> None:
        before, after = (_facts(each) for each in pair)
        if before != after:
            raise LayoutError(
                f"Layout `{layout}` of `{self._op}` ({location_of(permutation)}) made `{name}`, "
                f"{before}, into {after}; a layout keeps shape, dtype and device."
            )

    def _refuse_name(self, layout: object) -> None:
        raise ArgumentError(
            f"`{self._op}` has no layout `{layout}`; {suggest(str(layout), self.names)}"
        )


def _facts(weight: Any) -> str:
    if not isinstance(weight, Tensor):
        return f"{weight!r}"
    return f"{weight.dtype}{list(weight.shape)} on {weight.device}"
