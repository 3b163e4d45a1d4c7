"""Owns the way from settings to a warm engine; refuses to touch the environment or op priorities.

The caller has set priorities and entered no phase; it enters `READY` when it serves.
"""

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ir_passes.config import AutotuneMode, CacheMode
from ir_passes.programs.report import CompileReport
from serve_shim.compilation.plan import CompilationPlan, plan_compilation, plan_graphs, plan_tape
from serve_shim.engine.async_engine import AsyncEngine
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.kv_cache import CacheLayout, check_size, choose_num_blocks
from serve_shim.engine.parts import EngineParts, assemble, cache_layout
from serve_shim.engine.stats_sink import StatsSink
from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.engine.warmup import warm_up
from serve_shim.engine.workers import LoadedWorkers, LocalWorkers, Workers
from serve_shim.errors import (
    CompileCacheError,
    ModelLoadError,
    RankFailedError,
    SamplingParamsError,
    SettingsError,
)
from serve_shim.models.model_config import ModelConfig
from serve_shim.sampling.params import SamplingParams
from serve_shim.settings.tree import Settings

logger = logging.getLogger(__name__)


def build_engine(
    settings: Settings, status: StartupStatus, sink: StatsSink | None = None
) -> AsyncEngine:
    """Load the model, allocate its cache, warm up and start the step loop; blocks.

    `sink` hears nothing of the warm-up. Raises `ModelLoadError`, `SettingsError`, or
    `CompileCacheError` where the compile cache is required and has nothing that fits.
    """
    parts = build_parts(settings, status)
    if sink is not None:
        parts.core.observe(sink)
    return AsyncEngine(parts)


def build_parts(
    settings: Settings, status: StartupStatus, *, is_bounded: bool = True
) -> EngineParts:
    """What `build_engine` starts a thread around; unbounded, any number of requests may wait."""
    started = time.monotonic()
    plan = plan_compilation(settings)
    with _workers(settings, status) as workers:
        parts = _uncompiled(settings, workers, status, is_bounded=is_bounded)
        table = plan_graphs(plan.config, parts.config)
        tape_tokens = plan_tape(plan, parts.config)
        _log_cache(parts.config)
        parts = replace(parts, compile_report=_compile(workers, plan, status))
        if table is None:
            logger.info("No graphs are captured: %s", plan.reasons["cudagraph_mode"])
            if tape_tokens:
                workers.tape(tape_tokens, parts.step_inputs)
        else:
            status.advance(Phase.CAPTURE)
            report = partial(status.advance, Phase.CAPTURE)
            parts = replace(parts, captures=workers.capture(table, parts.step_inputs, report))
        loaded_at = time.monotonic()
        status.advance(Phase.WARMUP)
        workers.serve()
        warm_up(parts, partial(status.advance, Phase.WARMUP))
    if parts.captures is not None:
        parts.captures.forget_steps()
    now = time.monotonic()
    logger.info(
        "init engine (load model, create kv cache, warm up) took %.2f s (warm-up: %.2f s)",
        now - started,
        now - loaded_at,
    )
    return parts


def look_up(settings: Settings) -> CompileReport:
    """What a start with these settings loads from the compile cache; compiles and serves nothing.

    Raises `CompileCacheError` with the reasons where nothing fits, and `SettingsError` and
    `ModelLoadError` as a start does, for a model that is not compiled too.
    """
    settings = _untimed(settings)
    plan = plan_compilation(settings)
    if not plan.is_compiled:
        raise SettingsError(f"the model runs eagerly, without the cache: {plan.reasons['mode']}")
    status = StartupStatus()
    config = plan.config.model_copy(update={"cache_mode": CacheMode.REQUIRE})
    try:
        with _workers(settings, status) as workers:
            _uncompiled(settings, workers, status, is_bounded=True)
            report = workers.compile(config, lambda _done, _total: None)
    except RankFailedError as error:
        if error.exit_code == CompileCacheError.exit_code:
            raise CompileCacheError(str(error), reasons=(str(error),)) from error
        raise
    workers.close()
    return report


def _untimed(settings: Settings) -> Settings:
    """The same settings, with no choice but those that were timed before."""
    config = settings.compilation_config
    if config.autotune is not AutotuneMode.ON:
        return settings
    config = config.model_copy(update={"autotune": AutotuneMode.CACHED})
    return settings.model_copy(update={"compilation_config": config})


@contextmanager
def _workers(settings: Settings, status: StartupStatus) -> Generator[Workers]:
    """The workers that settings ask for; ended if their start is not completed."""
    if settings.tensor_parallel_size == 1:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        yield LocalWorkers(settings)
        return
    from serve_shim.ranks.rank_workers import RankWorkers  # noqa: PLC0415 - few servers need it

    status.advance(Phase.RANKS)
    workers = RankWorkers(settings)
    try:
        workers.launch()
        yield workers
    except BaseException:
        workers.close()
        raise


def _uncompiled(
    settings: Settings, workers: Workers, status: StartupStatus, *, is_bounded: bool
) -> EngineParts:
    status.advance(Phase.LOAD)
    loaded = workers.load(partial(status.advance, Phase.LOAD))
    _check_defaults(loaded)
    max_queue = settings.scheduler.max_queue if is_bounded else None
    config = _engine_config(settings, loaded, max_queue)
    return assemble(
        workers.allocate(config),
        model_name=loaded.name,
        model_config=loaded.config,
        tokenizer=loaded.tokenizer,
        eos_ids=loaded.generation.eos_ids,
        config=config,
        sampling_defaults=loaded.generation.sampling(),
        workers=workers,
    )


def _compile(
    workers: Workers, plan: CompilationPlan, status: StartupStatus
) -> CompileReport | None:
    if not plan.is_compiled:
        logger.info("The model runs eagerly: %s", plan.reasons["mode"])
        return None
    status.advance(Phase.COMPILE)
    report = workers.compile(plan.config, partial(status.advance, Phase.COMPILE))
    workers.check(report)
    return report


def _check_defaults(loaded: LoadedWorkers) -> None:
    defaults: dict[str, Any] = loaded.generation.sampling()
    try:
        SamplingParams(**defaults)
    except SamplingParamsError as error:
        raise ModelLoadError(
            f"the sampling defaults of {loaded.source} cannot be used: {error}"
        ) from error
    if defaults:
        logger.info("Sampling defaults of the model, for requests that say nothing: %s", defaults)


def _engine_config(
    settings: Settings, loaded: LoadedWorkers, max_queue: int | None
) -> EngineConfig:
    scheduler, cache = settings.scheduler, settings.cache
    layout = cache_layout(loaded.local_config, cache.block_size, loaded.dtype)
    max_model_len = _max_model_len(settings, loaded.config)
    num_blocks = cache.num_blocks or choose_num_blocks(
        layout,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=max_model_len,
        memory_bytes=cache.kv_cache_memory_bytes,
        available_bytes=loaded.available_bytes,
    )
    check_size(layout, num_blocks, loaded.available_bytes)
    if settings.max_model_len is None:
        max_model_len = _fit(max_model_len, layout, num_blocks)
    return EngineConfig(
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=cache.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_queue=max_queue,
        enable_prefix_caching=scheduler.enable_prefix_caching,
        enable_chunked_prefill=scheduler.enable_chunked_prefill,
        watchdog_timeout_s=settings.watchdog_timeout,
        seed=settings.seed,
    )


def _max_model_len(settings: Settings, config: ModelConfig) -> int:
    limit = config.max_positions
    if settings.max_model_len is None:
        return limit
    if settings.max_model_len > limit:
        raise SettingsError(
            f"`max_model_len` ({settings.max_model_len}) exceeds the {limit} positions that the "
            f"model was made for; use at most {limit}"
        )
    return settings.max_model_len


def _fit(max_model_len: int, layout: CacheLayout, num_blocks: int) -> int:
    """The context that the cache can hold, where the user did not ask for a certain one."""
    capacity = num_blocks * layout.block_size
    if capacity < max_model_len:
        logger.warning(
            "The KV cache holds %d tokens, so the context is cut to that from %d; raise "
            "`kv_cache_memory_bytes` for more",
            capacity,
            max_model_len,
        )
    return min(capacity, max_model_len)


def _log_cache(config: EngineConfig) -> None:
    tokens = config.num_blocks * config.block_size
    logger.info("KV cache size: %s tokens", f"{tokens:,}")
    logger.info(
        "Maximum concurrency for %s tokens per request: %.2fx",
        f"{config.max_model_len:,}",
        tokens / config.max_model_len,
    )
