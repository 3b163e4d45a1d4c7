"""Owns which of the ranks that share a model a process is; refuses to divide anything."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of the `size` ranks that share one model; raises `ValueError` for any other."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(
                f"rank {self.rank} of {self.size} does not exist; ranks are 0 to `size` - 1, and "
                "`size` is at least 1"
            )

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the model."""
        return self.size == 1


WHOLE = Shard()
