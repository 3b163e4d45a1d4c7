"""What timing has chosen: a row for each kind of call, and the order of providers it leads to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ir_core.autotuning.ranges import LaterRange, RowRange, later_from, ranges_of
from ir_core.autotuning.rows import Bounds, KnownSizes, row_bounds
from ir_core.autotuning.signature import signature_of
from ir_core.errors import RowRangeError
from ir_core.selection import Rejection

if TYPE_CHECKING:
    from ir_core.op import IrOp

_NAMES = ("op", "signature", "default", "provider")


@dataclass(frozen=True, slots=True)
class Timing:
    """Median microseconds per call of one provider, by the number of tokens."""

    provider: str
    microseconds: Mapping[int, float]

    def to_json(self) -> list[Any]:
        """Plain JSON types."""
        return [self.provider, [[count, time] for count, time in self.microseconds.items()]]

    @classmethod
    def from_json(cls, value: Any) -> Timing:
        """The timing that `to_json` wrote. Raises TypeError or ValueError for others."""
        name, times = value
        return cls(str(name), _times(times))


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """What timing says about the calls of one signature.

    Attributes:
        op: the op's name.
        signature: as `signature_of` spells it.
        default: the provider that the priority gives such a call.
        provider: the one that it gets; `default` unless another is faster beyond doubt. If there
            are later ranges, this is the provider of the first.
        timings: of the providers that were timed, in their order; none if nothing competed.
        rejections: the providers that could not be chosen, and why.
        as_written: of the same, as eager mode runs them, where `timings` are of compiled code; they
            have decided nothing.
        later: the ranges of rows after the first, ascending; none if one provider is for all.
        remark: why there are fewer ranges than times speak for; "" if there are not.
    """

    op: str
    signature: str
    default: str
    provider: str
    timings: tuple[Timing, ...]
    rejections: tuple[Rejection, ...]
    as_written: tuple[Timing, ...] = ()
    later: tuple[LaterRange, ...] = ()
    remark: str = ""

    @property
    def is_changed(self) -> bool:
        """Whether some of such calls get another provider than the priority's."""
        return any(each.provider != self.default for each in self.ranges)

    @property
    def ranges(self) -> tuple[RowRange, ...]:
        """Who gets which calls; together from one row to any number."""
        return ranges_of(self.provider, self.later)

    @property
    def winners(self) -> str:
        """The provider, or those of the ranges, as `1..8: vllm_c, 9..: native`."""
        return ", ".join(map(str, self.ranges)) if self.later else self.provider

    def provider_for(self, bounds: Bounds) -> str:
        """The provider of a call with so many rows.

        Raises:
            RowRangeError: the number is not known, and may lie in several ranges.
        """
        fewest, most = bounds
        first, *others = [each for each in self.ranges if each.meets(fewest, most)]
        if others:
            rows = f"{fewest}..{'' if most is None else most}"
            raise RowRangeError(
                f"Op `{self.op}` is called with {rows} rows, and timing chose by their number: "
                f"{self.winners}. A compiled program is for one of these ranges: let one end at "
                f"{first.last}, or give a priority for `{self.op}`."
            )
        return first.provider

    def to_text(self) -> str:
        """The times, as `1 token: vllm_c 12.1 µs, native 40.3 µs; 64 tokens: …`."""
        return format_timings(self.timings) or "nothing was timed"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "op": self.op,
            "signature": self.signature,
            "default": self.default,
            "provider": self.provider,
            "timings": [each.to_json() for each in self.timings],
            "as_written": [each.to_json() for each in self.as_written],
            "rejections": [[each.provider, each.reason] for each in self.rejections],
            "later": [[each.first, each.provider] for each in self.later],
            "remark": self.remark,
        }

    @classmethod
    def from_json(cls, value: Any) -> TunedChoice:
        """The choice that `to_json` wrote. Raises KeyError, TypeError or ValueError for others."""
        op, signature, default, provider = (value[name] for name in _NAMES)
        if not all(isinstance(name, str) for name in (op, signature, default, provider)):
            raise TypeError(f"names that are no texts: {op}, {signature}, {default}, {provider}")
        timings = tuple(map(Timing.from_json, value["timings"]))
        as_written = tuple(map(Timing.from_json, value["as_written"]))
        rejections = tuple(Rejection(str(name), str(why)) for name, why in value["rejections"])
        later = later_from(provider, value["later"])
        remark = str(value["remark"])
        return cls(op, signature, default, provider, timings, rejections, as_written, later, remark)


def format_timings(timings: Sequence[Timing]) -> str:
    """The times by number of tokens, as `TunedChoice.to_text` shows them; empty for none."""
    counts = dict.fromkeys(count for each in timings for count in each.microseconds)
    parts: list[str] = []
    for count in counts:
        times = (f"{each.provider} {each.microseconds[count]:.1f} µs" for each in timings)
        parts.append(f"{count} token{'' if count == 1 else 's'}: {', '.join(times)}")
    return "; ".join(parts)


class TunedTable(Mapping[tuple[str, str], TunedChoice]):
    """Immutable tuned choices by op and signature."""

    __slots__ = ("_changed", "_choices", "_ends")

    def __init__(self, choices: Iterable[TunedChoice] = ()) -> None:
        self._choices = {(each.op, each.signature): each for each in choices}
        changed = (each for each in self._choices.values() if each.is_changed)
        self._changed = frozenset(each.op for each in changed)
        self._ends: dict[str, tuple[int, ...]] = {}
        for each in self._choices.values():
            ends = (later.first - 1 for later in each.later)
            self._ends[each.op] = tuple(sorted({*self._ends.get(each.op, ()), *ends}))

    def __getitem__(self, key: tuple[str, str]) -> TunedChoice:
        return self._choices[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def extended(self, choices: Iterable[TunedChoice]) -> TunedTable:
        """This table with further choices; what it has already stays as it is."""
        return TunedTable((*choices, *self._choices.values()))

    def changes(self, op: str) -> bool:
        """Whether some calls of an op get another provider than the priority's."""
        return op in self._changed

    def ends(self, op: str | None = None) -> tuple[int, ...]:
        """Numbers of rows after which calls of an op, or of any, may get another provider."""
        if op is not None:
            return self._ends.get(op, ())
        return tuple(sorted({end for each in self._ends.values() for end in each}))

    def changed_rows(self, op: str) -> Mapping[str, str]:
        """Provider, or those of the ranges, by signature, where it is not the priority's."""
        rows = (each for each in self._choices.values() if each.op == op and each.is_changed)
        return {each.signature: each.winners for each in rows}

    def find(self, op: IrOp, values: Sequence[Any]) -> TunedChoice | None:
        """What timing says about a call with these values, one per parameter."""
        return self._choices.get((op.name, signature_of(op, values)))

    def preferred(
        self, op: IrOp, values: Sequence[Any], known: KnownSizes = MappingProxyType({})
    ) -> tuple[str, ...]:
        """The providers to ask before the platform's; none where timing changes nothing.

        Args:
            op: the op that is called.
            values: one per parameter.
            known: of the symbols in sizes, where the call is traced.

        Raises:
            RowRangeError: a traced call may have so many rows that its provider is not one.
        """
        found = self.find(op, values) if self.changes(op.name) else None
        if found is None or not found.is_changed:
            return ()
        provider = found.provider
        if found.later:
            provider = found.provider_for(row_bounds(op, values, known))
        return (provider,) if provider != found.default else ()


def _times(pairs: Any) -> dict[int, float]:
    return {int(count): float(time) for count, time in pairs}
