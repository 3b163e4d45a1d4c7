"""A way to compute something, ready to be timed. Times nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Contender:
    """One function over several copies of what it reads, so that no cache holds the next one.

    Attributes:
        name: a provider's name, or what a baseline calls.
        calls: the same call, each on a copy of its own.
        num_bytes: bytes of weights, or of keys and values, that one call has to read.
        layout: how the weights lie; empty where there is only one way.
        is_selected: whether the op's default priority chooses it.
        is_baseline: whether the others are compared with it.
    """

    name: str
    calls: Sequence[Call]
    num_bytes: int
    layout: str = ""
    is_selected: bool = False
    is_baseline: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """Contenders for one piece of work, and those that declined it with their reasons."""

    op: str
    format: str
    size: str
    tokens: int
    contenders: Sequence[Contender]
    declined: Sequence[tuple[str, str]] = ()

    def only(self, providers: Sequence[str]) -> "Case":
        """The case with its baselines and these providers alone; as it is if none is named."""
        if not providers:
            return self
        kept = [each for each in self.contenders if each.is_baseline or each.name in providers]
        return replace(self, contenders=kept)

    @property
    def footprint(self) -> int:
        """Bytes that the copies of one contender hold, of the one that holds most."""
        return max(each.num_bytes * len(each.calls) for each in self.contenders)


def num_copies(num_bytes: int, footprint: int) -> int:
    """Copies that fill `footprint` bytes, at least two."""
    return max(2, -(-footprint // num_bytes))
