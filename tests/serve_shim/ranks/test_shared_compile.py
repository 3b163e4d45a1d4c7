from dataclasses import replace
from pathlib import Path

import pytest

from ir_passes.config import CacheMode, CompilationConfig
from ir_passes.programs.report import CacheOutcome, CacheStatus, CompileReport
from serve_shim.compilation.compilable_model import Progress
from serve_shim.errors import CompileCacheError
from serve_shim.ranks.shared_compile import FirstCompilation, compile_first, compile_next

REPORT = CompileReport(backend="inductor", programs=(), guards=(), broken=(), seconds={})


class Start:
    """A worker's start over a cache that holds something, or not, and can be written, or not."""

    def __init__(self, *, has_entry: bool = False, can_store: bool = True) -> None:
        self.has_entry = has_entry
        self.can_store = can_store
        self.asked: list[CompilationConfig] = []
        self.stored: set[Path | None] = set()

    def compile(self, config: CompilationConfig, progress: Progress) -> CompileReport:
        self.asked.append(config)
        is_there = config.cache_dir in self.stored or (self.has_entry and not config.cache_dir)
        if config.cache_mode is CacheMode.OFF:
            return replace(REPORT, cache=CacheOutcome(CacheStatus.OFF))
        if is_there:
            return replace(REPORT, cache=CacheOutcome(CacheStatus.HIT))
        if config.cache_mode is CacheMode.REQUIRE:
            raise CompileCacheError("nothing fits", reasons=("it is empty",))
        if not self.can_store:
            outcome = CacheOutcome(CacheStatus.NOT_STORED, reasons=("the disk is full",))
            return replace(REPORT, cache=outcome)
        if config.cache_mode is CacheMode.RW:
            self.stored.add(config.cache_dir)
        return replace(REPORT, cache=CacheOutcome(CacheStatus.MISS))


def first_of(start: Start, mode: CacheMode, directory: Path) -> FirstCompilation:
    config = CompilationConfig(cache_mode=mode)
    return compile_first(start, config, directory, lambda *_: None)  # pyright: ignore[reportArgumentType]


def follow(start: Start, first: FirstCompilation) -> CacheStatus:
    report = compile_next(start, first, lambda *_: None)  # pyright: ignore[reportArgumentType]
    return report.cache.status


@pytest.mark.parametrize("mode", [CacheMode.RW, CacheMode.RO, CacheMode.OFF])
def test_others_load_what_the_first_compiled(mode: CacheMode, tmp_path: Path) -> None:
    start = Start()
    first = first_of(start, mode, tmp_path)
    assert first.report.cache.status is (
        CacheStatus.OFF if mode is CacheMode.OFF else CacheStatus.MISS
    )
    assert follow(start, first) is CacheStatus.HIT
    assert first.following.cache_mode is CacheMode.REQUIRE


@pytest.mark.parametrize("mode", [CacheMode.RO, CacheMode.OFF])
def test_a_cache_that_is_not_ours_to_write_is_left_alone(mode: CacheMode, tmp_path: Path) -> None:
    start = Start()
    first_of(start, mode, tmp_path)
    assert start.stored == {tmp_path / "compile_cache"}


@pytest.mark.parametrize("mode", [CacheMode.RW, CacheMode.RO, CacheMode.REQUIRE])
def test_an_entry_serves_all(mode: CacheMode, tmp_path: Path) -> None:
    start = Start(has_entry=True)
    first = first_of(start, mode, tmp_path)
    assert first.report.cache.status is CacheStatus.HIT
    assert follow(start, first) is CacheStatus.HIT
    assert start.stored == set()


def test_a_miss_of_a_read_only_cache_keeps_its_reasons(tmp_path: Path) -> None:
    assert first_of(Start(), CacheMode.RO, tmp_path).report.cache.reasons == ("it is empty",)


def test_a_required_entry_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CompileCacheError, match="nothing fits"):
        first_of(Start(), CacheMode.REQUIRE, tmp_path)


def test_where_nothing_can_be_stored_each_compiles_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(can_store=False)
    first = first_of(start, CacheMode.RW, tmp_path)
    assert follow(start, first) is CacheStatus.OFF
    assert "Every rank compiles for itself" in caplog.text
    assert "the disk is full" in caplog.text


def test_a_follower_that_finds_nothing_does_not_compile(tmp_path: Path) -> None:
    first = first_of(Start(), CacheMode.RW, tmp_path)
    with pytest.raises(CompileCacheError):
        follow(Start(), first)
