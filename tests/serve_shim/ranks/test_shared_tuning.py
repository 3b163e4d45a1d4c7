from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from priced_ops import CLOCK, priced_registry, priced_step

from ir_core.autotuning.choice_file import ChoiceFile
from ir_core.autotuning.plan import TuningPlan
from ir_core.autotuning.session import TuningSession
from serve_shim.errors import RanksError
from serve_shim.ranks import shared_tuning
from serve_shim.ranks.shared_tuning import RankTuning, tune_together

WEIGHTS = {1: 4.0, 8: 1.0}
MACHINE = {"cpu": "A"}


class Ranks:
    """Ranks of one model in this process; which methods were called on whom is noted."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        files: Sequence[Path | None],
        is_timed: bool,
        widths: Sequence[int] = (4, 4, 4),
        cpus: Sequence[str] = "AAA",
    ) -> None:
        self._patch = monkeypatch
        self._cpus = cpus
        self.registries = [priced_registry() for _ in files]
        self.called: list[tuple[str, tuple[int, ...]]] = []
        plan = TuningPlan(WEIGHTS, is_fused=False, is_timed=is_timed)
        self._ranks = [
            RankTuning(
                None
                if file is None
                else TuningSession(
                    registry,
                    priced_step(registry["scale"], width),
                    plan,
                    ChoiceFile(file, MACHINE),
                    clock=CLOCK,
                ),
                rank,
                is_timed=is_timed,
            )
            for rank, (file, registry, width) in enumerate(
                zip(files, self.registries, widths, strict=True)
            )
        ]

    def __call__(
        self, method: str, *arguments: object, ranks: Sequence[int] | None = None
    ) -> list[Any]:
        chosen = tuple(range(len(self._ranks))) if ranks is None else tuple(ranks)
        self.called.append((method, chosen))
        results: list[Any] = []
        for rank in chosen:
            self._become(rank)
            results.append(getattr(self._ranks[rank], method)(*arguments))
        return results

    def used(self) -> list[str]:
        tables = [each.priorities.tuned.values() for each in self.registries]
        return [choice.provider for table in tables for choice in table]

    def _become(self, rank: int) -> None:
        registry, cpu = self.registries[rank], self._cpus[rank]
        self._patch.setattr(shared_tuning.ir, "registry", lambda: registry)
        self._patch.setattr("ir_core.autotuning.machine.machine_facts", lambda: {"cpu": cpu})


MakeRanks = Callable[..., Ranks]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> MakeRanks:
    def make(*files: Path | None, is_timed: bool = True, **options: Any) -> Ranks:
        CLOCK.reset(steady=4e-5, rival=2e-5, native=8e-5)
        return Ranks(monkeypatch, files=files, is_timed=is_timed, **options)

    return make


def test_the_first_rank_times_and_the_others_wait(make: MakeRanks, tmp_path: Path) -> None:
    ranks = make(tmp_path, tmp_path, tmp_path)
    report = tune_together(ranks, [0])
    assert report is not None
    assert report.num_timed == 1
    assert ranks.used() == ["rival"] * 3
    assert ranks.called == [
        ("survey", (0, 1, 2)),
        ("record", (0, 1, 2)),
        ("time", (0,)),
        ("take", (1, 2)),
        ("adopt", (0, 1, 2)),
    ]


def test_what_is_known_is_neither_recorded_nor_timed_again(make: MakeRanks, tmp_path: Path) -> None:
    tune_together(make(tmp_path, tmp_path, tmp_path), [0])
    ranks = make(tmp_path, tmp_path, tmp_path)
    CLOCK.prices["steady"] = lambda _: 1e-6
    report = tune_together(ranks, [0])
    assert report is not None
    assert report.num_timed == 0
    assert "record" not in dict(ranks.called)
    assert ranks.used() == ["rival"] * 3


def test_the_first_rank_of_each_node_stores_what_was_found(make: MakeRanks, tmp_path: Path) -> None:
    places = [tmp_path / name for name in "abc"]
    tune_together(make(*places), [0, 2])
    found = [len(ChoiceFile(each, MACHINE).load().choices) for each in places]
    assert found == [1, 0, 1]
    ranks = make(places[0], places[0], places[2], is_timed=False)
    tune_together(ranks, [0, 2])
    assert ranks.used() == ["rival"] * 3


def test_ranks_that_loaded_different_choices_are_refused(make: MakeRanks, tmp_path: Path) -> None:
    tune_together(make(tmp_path, tmp_path, tmp_path), [0])
    ranks = make(tmp_path, tmp_path, tmp_path / "empty", is_timed=False)
    with pytest.raises(RanksError) as error:
        tune_together(ranks, [0, 2])
    assert "ranks do not agree about what timing chose" in str(error.value)
    assert "is rival on rank 0, and absent on rank 2" in str(error.value)


def test_ranks_whose_ranges_differ_are_refused(make: MakeRanks, tmp_path: Path) -> None:
    def few(end: int) -> Callable[[int], float]:
        return lambda count: 2e-5 if count <= end else 9e-5

    for name, end in (("a", 1), ("b", 8)):
        ranks = make(*[tmp_path / name] * 3)
        CLOCK.prices["rival"] = few(end)
        tune_together(ranks, [0])
    assert ranks.used() == ["rival"] * 3
    ranks = make(tmp_path / "a", tmp_path / "a", tmp_path / "b", is_timed=False)
    with pytest.raises(RanksError) as error:
        tune_together(ranks, [0, 2])
    assert "is 1..1: rival, 2..: steady on rank 0, and rival on rank 2" in str(error.value)


def test_timing_on_one_machine_is_not_used_on_another(make: MakeRanks, tmp_path: Path) -> None:
    ranks = make(tmp_path, tmp_path, tmp_path, cpus="AAB")
    with pytest.raises(RanksError, match="`cpu of the machine` is A on rank 0, and B on rank 2"):
        tune_together(ranks, [0, 2])
    assert dict(ranks.called).keys() == {"survey"}


def test_machines_may_differ_where_each_has_the_same_choices(
    make: MakeRanks, tmp_path: Path
) -> None:
    tune_together(make(tmp_path, tmp_path, tmp_path), [0])
    ranks = make(tmp_path, tmp_path, tmp_path, is_timed=False, cpus="AAB")
    tune_together(ranks, [0, 2])
    assert ranks.used() == ["rival"] * 3


def test_ranks_that_make_different_calls_are_refused(make: MakeRanks, tmp_path: Path) -> None:
    ranks = make(tmp_path, tmp_path, tmp_path, widths=(4, 5, 4))
    with pytest.raises(RanksError, match=r"`call scale\(x: float32\[\*, 5\].* is absent on rank 0"):
        tune_together(ranks, [0])


def test_without_a_place_to_look_nothing_is_tuned(make: MakeRanks, tmp_path: Path) -> None:
    ranks = make(None, None, None, is_timed=False)
    assert tune_together(ranks, [0]) is None
    assert ranks.used() == []
    with pytest.raises(RanksError, match="nowhere to look"):
        tune_together(make(tmp_path, tmp_path, None, is_timed=False), [0])


def test_one_rank_is_a_group_too(make: MakeRanks, tmp_path: Path) -> None:
    ranks = make(tmp_path, widths=(4,))
    tune_together(ranks, [0])
    assert ranks.used() == ["rival"]
