"""Owns the forms in which a matrix of weights can lie in memory; refuses to hold any weight."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class WeightForm:
    """What stands for each weight: an element of the model's dtype, or an integer and a scale.

    `dense` is the former. `w4a16` and `w8a16` are those of the IR ops `linear_w4a16` and
    `linear_w8a16`: `group_size` weights along a row share a scale, and a minimum where
    `has_minimum`. `w8a8` is that of `linear_w8a8`: a row has one scale, so it can be cut anywhere,
    and activations become integers too.
    """

    kind: Literal["dense", "w4a16", "w8a16", "w8a8"]
    has_minimum: bool = False
    group_size: int = 32

    @property
    def has_lookup(self) -> bool:
        """Whether an op looks up rows of such a matrix."""
        return self.kind in ("dense", "w8a16")

    def __str__(self) -> str:
        return f"{self.kind} with minimum" if self.has_minimum else self.kind


DENSE = WeightForm("dense")
W4A16 = WeightForm("w4a16")
W4A16_MINIMUM = WeightForm("w4a16", has_minimum=True)
W8A16 = WeightForm("w8a16")
W8A8 = WeightForm("w8a8", group_size=1)
