"""Owns one rank's part of one dimension; refuses to know what the dimension counts."""

from dataclasses import dataclass

from serve_shim.models.shard import Shard


@dataclass(frozen=True, slots=True)
class Span:
    """A rank holds `start` to `stop` of a dimension, then zeros up to `width`.

    Every rank has the same width. A rank may hold nothing but zeros.
    """

    start: int
    stop: int
    width: int

    @classmethod
    def whole(cls, size: int) -> "Span":
        """All of a dimension."""
        return cls(0, size, size)

    @classmethod
    def zeros(cls, width: int) -> "Span":
        """Nothing of a dimension."""
        return cls(0, 0, width)

    @classmethod
    def share(cls, size: int, shard: Shard, step: int = 1) -> "Span":
        """The rank's share of a dimension that is cut at multiples of `step` only."""
        width = step * -(-size // (step * shard.size))
        start = min(shard.rank * width, size)
        return cls(start, min(start + width, size), width)

    @property
    def length(self) -> int:
        """How much of the dimension it holds."""
        return self.stop - self.start

    @property
    def is_padded(self) -> bool:
        """Whether it holds zeros too."""
        return self.length < self.width

    def times(self, factor: int) -> "Span":
        """The same part where each place is `factor` places, as the rows of heads."""
        return Span(self.start * factor, self.stop * factor, self.width * factor)
