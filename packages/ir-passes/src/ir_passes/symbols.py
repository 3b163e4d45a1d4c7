"""Names of symbols in printed graphs: s0, s1, … in order of appearance, in every shapes mode."""

from __future__ import annotations

from typing import Any

import sympy
from torch import SymBool, SymFloat, SymInt


class SymbolNames:
    """Spells sizes; one object for one text, so that a symbol keeps its name throughout."""

    def __init__(self) -> None:
        self._names: dict[sympy.Symbol, sympy.Symbol] = {}

    def spell(self, value: Any) -> str:
        """A number as it is, a symbolic one by its expression in canonical names."""
        if not isinstance(value, SymInt | SymFloat | SymBool):
            return str(value)
        expression = value.node.expr
        for symbol in sorted(expression.free_symbols, key=str):
            self._names.setdefault(symbol, sympy.Symbol(f"s{len(self._names)}", integer=True))
        return str(expression.xreplace(self._names))

    def spell_sizes(self, sizes: Any) -> str:
        """Sizes with commas between them."""
        return ", ".join(self.spell(each) for each in sizes)
