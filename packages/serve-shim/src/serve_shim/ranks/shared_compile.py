"""Owns how one rank's compilation reaches the others of its node: through the compile cache.

The first rank compiles, or loads, and stores what it has where the others load it from and compile
nothing. Where the configuration lets nobody write to its cache, that is a directory of their own.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from ir_passes.cache.compile_cache import effective_mode
from ir_passes.config import CacheMode, CompilationConfig
from ir_passes.programs.report import CacheOutcome, CacheStatus, CompileReport
from serve_shim.compilation.compilable_model import Progress
from serve_shim.engine.worker_start import WorkerStart
from serve_shim.errors import CompileCacheError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FirstCompilation:
    """What the first rank has: its report, and the configuration with which the others follow."""

    report: CompileReport
    following: CompilationConfig


def compile_first(
    start: WorkerStart, config: CompilationConfig, directory: Path, progress: Progress
) -> FirstCompilation:
    """Compile or load as the first rank of a node; `directory` is there and the ranks' alone."""
    mode = effective_mode(config)
    if mode is CacheMode.RO:
        try:
            found = _with_mode(config, CacheMode.REQUIRE)
            return FirstCompilation(start.compile(found, progress), _following(found))
        except CompileCacheError as miss:
            logger.info("Compile cache: miss (%s)", "; ".join(miss.reasons))
            outcome = CacheOutcome(CacheStatus.MISS, reasons=miss.reasons)
        return _compile_apart(start, config, directory, outcome, progress)
    if mode is CacheMode.OFF:
        outcome = CacheOutcome(CacheStatus.OFF)
        return _compile_apart(start, config, directory, outcome, progress)
    report = start.compile(config, progress)
    return FirstCompilation(report, _followed(config, report))


def compile_next(start: WorkerStart, first: FirstCompilation, progress: Progress) -> CompileReport:
    """Load what the first rank of the node has, or compile as it did where it could not store."""
    return start.compile(first.following, progress)


def _compile_apart(
    start: WorkerStart,
    config: CompilationConfig,
    directory: Path,
    outcome: CacheOutcome,
    progress: Progress,
) -> FirstCompilation:
    apart = config.model_copy(
        update={
            "cache_mode": CacheMode.RW,
            "cache_dir": directory / "compile_cache",
            "cache_key_file": directory / "cache.key",
        }
    )
    report = start.compile(apart, progress)
    return FirstCompilation(replace(report, cache=outcome), _followed(apart, report))


def _followed(config: CompilationConfig, report: CompileReport) -> CompilationConfig:
    if report.cache.status in (CacheStatus.HIT, CacheStatus.MISS):
        return _following(config)
    logger.warning(
        "Every rank compiles for itself, since nothing could be stored: %s",
        "; ".join(report.cache.reasons),
    )
    return _with_mode(config, CacheMode.OFF).model_copy(update={"debug_dump_path": None})


def _following(config: CompilationConfig) -> CompilationConfig:
    return _with_mode(config, CacheMode.REQUIRE).model_copy(update={"debug_dump_path": None})


def _with_mode(config: CompilationConfig, mode: CacheMode) -> CompilationConfig:
    return config.model_copy(update={"cache_mode": mode})
