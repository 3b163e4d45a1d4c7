"""The pipeline: requested passes in order, as a value that is changed by name. It runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ir_core.suggestion import suggest
from ir_passes.base import Pass, PassContext
from ir_passes.errors import PipelineError
from ir_passes.report import Effect

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Entry:
    """A requested pass: who asked for it, whether by name, and whether it is going to run."""

    step: Pass
    requested_by: str = DEFAULT
    is_wanted: bool = False
    effect: Effect = Effect.RAN
    reason: str = ""

    @property
    def name(self) -> str:
        """The pass's name."""
        return self.step.name

    @property
    def is_enabled(self) -> bool:
        """Whether the pass runs where it applies."""
        return self.effect is Effect.RAN


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Passes in the order in which they run. Every change gives a new pipeline.

    Disabled passes stay in it, so that a report can say what became of each one requested.

    Raises:
        PipelineError: two passes have one name.
    """

    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            raise PipelineError(f"Passes {repeated} are in the pipeline twice; a name is unique.")

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return " → ".join(each.name for each in self.entries if each.is_enabled) or "no passes"

    @classmethod
    def of(cls, *passes: Pass) -> Pipeline:
        """A pipeline of these passes."""
        return cls(tuple(map(Entry, passes)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all passes, disabled ones too."""
        return tuple(each.name for each in self.entries)

    def add(
        self,
        step: Pass | Entry,
        *,
        before: str | None = None,
        after: str | None = None,
    ) -> Pipeline:
        """Put a pass before or after another one; at the end by default.

        Raises:
            PipelineError: both places are given, the other pass is not there, or the name is taken.
        """
        entry = step if isinstance(step, Entry) else Entry(step)
        at = self._place(entry.name, before, after)
        return Pipeline((*self.entries[:at], entry, *self.entries[at:]))

    def remove(self, name: str) -> Pipeline:
        """Leave a pass out altogether; see `disable` for one that a report should mention."""
        at = self._index(name)
        return Pipeline(self.entries[:at] + self.entries[at + 1 :])

    def move(self, name: str, *, before: str | None = None, after: str | None = None) -> Pipeline:
        """Put a pass that is there before or after another one."""
        entry = self.entries[self._index(name)]
        return self.remove(name).add(entry, before=before, after=after)

    def reorder(self, names: Sequence[str]) -> Pipeline:
        """Let these passes run in this order, in the places that they have among the others.

        Raises:
            PipelineError: a name is not there, or given twice.
        """
        if len(set(names)) != len(names):
            raise PipelineError(f"The order {list(names)} names a pass twice.")
        places = sorted(self._index(name) for name in names)
        entries = list(self.entries)
        for place, name in zip(places, names, strict=True):
            entries[place] = self.entries[self._index(name)]
        return Pipeline(tuple(entries))

    def disable(self, names: Iterable[str], reason: str) -> Pipeline:
        """Keep these passes from running, and say why."""
        pipeline = self
        for name in names:
            pipeline = pipeline._with(name, effect=Effect.DISABLED, reason=reason)
        return pipeline

    def enable(self, name: str, requested_by: str) -> Pipeline:
        """Let a pass run that someone asked for by name; it then warns if it changes nothing."""
        return self._with(
            name, requested_by=requested_by, is_wanted=True, effect=Effect.RAN, reason=""
        )

    def limit(self, count: int) -> Pipeline:
        """Run only the first `count` of the passes that would run, to find the one that breaks."""
        kept: list[Entry] = []
        for entry in self.entries:
            is_beyond = entry.is_enabled and sum(each.is_enabled for each in kept) >= count
            reason = f"only the first {count} run"
            beyond = replace(entry, effect=Effect.BEYOND_LIMIT, reason=reason)
            kept.append(beyond if is_beyond else entry)
        return Pipeline(tuple(kept))

    def conflicts(self) -> tuple[str, ...]:
        """A sentence for each pass that takes nodes away from a wider one that runs later."""
        enabled = [each.step for each in self.entries if each.is_enabled]
        return tuple(
            f"`{first.name}` runs before `{later.name}` and takes nodes that it needs; put "
            f"`{later.name}` first."
            for first, later in combinations(enabled, 2)
            if first.takes_from(later)
        )

    def endpoints(self) -> tuple[int, ...]:
        """Token counts at which a pass that runs changes its mind, ascending."""
        enabled = (each.step for each in self.entries if each.is_enabled)
        return tuple(sorted({point for step in enabled for point in step.endpoints()}))

    def changing_rows(self, context: PassContext) -> str | None:
        """The first pass that runs in a context and gives calls other rows; None if none does."""
        enabled = (each.step for each in self.entries if each.is_enabled)
        found = (each for each in enabled if not each.keeps_rows and not each.refusal(context))
        return next((each.name for each in found), None)

    def factors(self) -> tuple[str, ...]:
        """What decides the result of a run, in order: each pass that runs, with all its options."""
        enabled = (each.step for each in self.entries if each.is_enabled)
        return tuple(f"{type(step).__module__}.{step!r}" for step in enabled)

    def _with(self, name: str, **changes: object) -> Pipeline:
        at = self._index(name)
        entry = replace(self.entries[at], **changes)  # type: ignore[arg-type]
        return Pipeline((*self.entries[:at], entry, *self.entries[at + 1 :]))

    def _place(self, name: str, before: str | None, after: str | None) -> int:
        if before is not None and after is not None:
            raise PipelineError(
                f"Pass `{name}` is to go before `{before}` and after `{after}`; name one place."
            )
        if before is not None:
            return self._index(before)
        return len(self.entries) if after is None else self._index(after) + 1

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise PipelineError(f"No pass `{name}`; {suggest(name, self.names)}")
        return self.names.index(name)
