"""Owns how large the result of a text operation will be.

Upper bounds, worked out before the operation, since one C call cannot be stopped half-way.
"""

import re
from collections.abc import Sequence

from serve_shim.tokenization.render_budget import BudgetExceededError, RenderBudget

_WIDTH = re.compile(r"\d{4}|[*]|\{[^{}]*\{")
_MAX_INT_BITS = 4096


def joined_size(budget: RenderBudget, separator: object, items: Sequence[object]) -> int:
    """Return the length of `separator.join(items)`."""
    return len(str(separator)) * len(items) + sum(budget.weigh(item) for item in items)


def replaced_size(text: str, old: str, new: str) -> int:
    """Return the largest length of `text.replace(old, new)`."""
    return len(text) + len(new) * (len(text) // max(len(old), 1) + 1)


def formatted_size(budget: RenderBudget, pattern: str, values: object) -> int:
    """Return the largest length of `values` put into `pattern`, which may be of either style.

    Raises `BudgetExceededError` for widths of four digits or more, and for computed ones.
    """
    if _WIDTH.search(pattern):
        raise BudgetExceededError("a format width that is too large or computed")
    num_fields = pattern.count("%") + pattern.count("{")
    return len(pattern) + num_fields * (1000 + budget.weigh(values))


def repeated_size(left: object, right: object) -> int:
    """Return the length of `left * right`; integers may have at most 4096 bits."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(count, int):
            return len(sequence) * max(count, 0)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    return 0


def check_power(base: object, exponent: object) -> None:
    """Raise `BudgetExceededError` where `base ** exponent` has more than 4096 bits."""
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits(base.bit_length() * abs(exponent))


def _check_bits(bits: int) -> None:
    if bits > _MAX_INT_BITS:
        raise BudgetExceededError(f"an integer of more than {_MAX_INT_BITS} bits")
