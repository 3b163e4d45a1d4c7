"""How far an implementation may be from native, per dtype. Knows no op."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ir_core.errors import RegistrationError


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`|a - b| <= atol + rtol * |b|`; `reason` says why an op departs from the default."""

    atol: float
    rtol: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not (0 <= self.atol < float("inf") and 0 <= self.rtol < float("inf")):
            raise RegistrationError(
                f"A tolerance is finite and not negative, got atol={self.atol}, rtol={self.rtol}."
            )


# A few units in the last place of each format; integers may be off by one rounding.
_DEFAULTS = {
    torch.float64: Tolerance(1e-8, 1e-8),
    torch.float32: Tolerance(1e-5, 1.3e-6),
    torch.float16: Tolerance(1e-3, 1e-3),
    torch.bfloat16: Tolerance(1e-3, 1.6e-2),
    torch.float8_e4m3fn: Tolerance(0.1, 0.1),
    torch.float8_e5m2: Tolerance(0.1, 0.1),
    torch.int8: Tolerance(1, 0),
}
_EXACT = Tolerance(0, 0)


def default_tolerance(dtype: torch.dtype) -> Tolerance:
    """Tolerance of a dtype for ops that set none of their own; other integers are exact."""
    known = _DEFAULTS.get(dtype)
    if known is not None:
        return known
    if dtype.is_floating_point:
        return Tolerance(0.1, 0.1)
    return _EXACT
