"""Owns the way from settings to a warm engine; refuses to touch the environment or op priorities.

The caller has set priorities and entered no phase; it enters `READY` when it serves.
"""

import logging
import time
from dataclasses import replace
from typing import Any

import torch

from ir_core import IrError
from ir_passes.config import CacheMode
from ir_passes.errors import CacheMissError, CaptureError, PassesError
from ir_passes.programs.report import CacheStatus, CompileReport, format_compile_report
from serve_shim.compilation.capture_counters import CaptureCounters
from serve_shim.compilation.compilable_model import CompilableModel
from serve_shim.compilation.graph_table import GraphTable
from serve_shim.compilation.plan import CompilationPlan, plan_compilation, plan_graphs
from serve_shim.compilation.self_check import check_against_eager
from serve_shim.engine.async_engine import AsyncEngine
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.kv_cache import CacheLayout, check_size, choose_num_blocks
from serve_shim.engine.memory import available_bytes
from serve_shim.engine.parts import EngineParts, assemble, cache_layout
from serve_shim.engine.stats_sink import StatsSink
from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.engine.step_buffers import StepInputs
from serve_shim.engine.warmup import warm_up
from serve_shim.errors import CompileCacheError, ModelLoadError, SamplingParamsError, SettingsError
from serve_shim.loading import LoadedModel, describe_weights, load_model
from serve_shim.models.causal_lm import CausalLM
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
    loaded, model, parts = _uncompiled(settings, status, is_bounded=is_bounded)
    table = plan_graphs(plan.config, parts.config)
    _log_cache(parts.config)
    _compile(loaded.model, model, plan, parts.config, status)
    parts = replace(parts, compile_report=model.report)
    if table is None:
        logger.info("No graphs are captured: %s", plan.reasons["cudagraph_mode"])
    else:
        parts = replace(parts, captures=_capture(model, table, parts.step_inputs, status))
    loaded_at = time.monotonic()
    status.advance(Phase.WARMUP)
    warm_up(parts, lambda done, total: status.advance(Phase.WARMUP, done, total))
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

    Raises `CacheMissError` with the reasons where nothing fits, and `SettingsError` and
    `ModelLoadError` as a start does, for a model that is not compiled too.
    """
    plan = plan_compilation(settings)
    if not plan.is_compiled:
        raise SettingsError(f"the model runs eagerly, without the cache: {plan.reasons['mode']}")
    _, model, parts = _uncompiled(settings, StartupStatus(), is_bounded=True)
    config = plan.config.model_copy(update={"cache_mode": CacheMode.REQUIRE})
    try:
        return model.compile(config, parts.config, lambda _phase, _done, _total: None)
    except CacheMissError:
        raise
    except (IrError, PassesError) as error:
        raise ModelLoadError(f"the model cannot be compiled: {error}") from error


def _uncompiled(
    settings: Settings, status: StartupStatus, *, is_bounded: bool
) -> tuple[LoadedModel, CompilableModel, EngineParts]:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    loaded = _load(settings, status)
    model = CompilableModel(loaded.model)
    parts = assemble(
        model,
        model_name=loaded.name,
        model_config=loaded.config,
        tokenizer=loaded.tokenizer,
        eos_ids=loaded.generation.eos_ids,
        dtype=loaded.model.dtype,
        config=_engine_config(
            settings, loaded, settings.scheduler.max_queue if is_bounded else None
        ),
        sampling_defaults=loaded.generation.sampling(),
    )
    return loaded, model, parts


def _load(settings: Settings, status: StartupStatus) -> LoadedModel:
    status.advance(Phase.LOAD)
    dtype = settings.dtype.value
    loaded = load_model(
        settings.model,
        dtype="auto" if dtype == "auto" else getattr(torch, dtype),
        quantization=settings.quantization.value,
        revision=settings.revision,
        tokenizer=settings.tokenizer,
        chat_template=settings.chat_template,
        max_positions=settings.max_model_len,
        progress=lambda _, done, total: status.advance(Phase.LOAD, done, total),
    )
    logger.info("Weights: %s", describe_weights(loaded.load_report))
    logger.info("Loaded %s: %s", loaded.source, loaded.load_report)
    _check_defaults(loaded)
    return loaded


def _compile(
    eager: CausalLM,
    model: CompilableModel,
    plan: CompilationPlan,
    config: EngineConfig,
    status: StartupStatus,
) -> None:
    if not plan.is_compiled:
        logger.info("The model runs eagerly: %s", plan.reasons["mode"])
        return
    status.advance(Phase.COMPILE)
    started = time.monotonic()

    def progress(phase: str, done: int, total: int) -> None:
        status.advance(Phase.COMPILE, done, total)
        logger.debug("Compiling, %s: %d of %d", phase, done, total)

    try:
        report = model.compile(plan.config, config, progress)
    except CacheMissError as error:
        raise CompileCacheError(
            f"{error}\nStart once with `--cache-mode=rw`, or bring an entry by `serve-shim cache "
            "import`."
        ) from error
    except (IrError, PassesError) as error:
        raise ModelLoadError(
            f"the model cannot be compiled: {error}\nRun it with `--enforce-eager` meanwhile."
        ) from error
    seconds = time.monotonic() - started
    if report.cache.status is CacheStatus.HIT:
        logger.info("Loaded compiled programs from the cache in %.2f s", seconds)
    else:
        logger.info("torch.compile and passes took %.2f s in total", seconds)
    logger.debug("Compilation:\n%s", format_compile_report(report))
    sizes = [size for each in report.programs for size in (each.sizes.first, each.sizes.first + 6)]
    difference = check_against_eager(eager, model, config, sizes)
    logger.info("Compiled and eager outputs differ by %.2g of the largest", difference)


def _capture(
    model: CompilableModel, table: GraphTable, buffers: StepInputs, status: StartupStatus
) -> CaptureCounters:
    status.advance(Phase.CAPTURE)
    try:
        return model.capture(
            table, buffers, lambda done, total: status.advance(Phase.CAPTURE, done, total)
        )
    except CaptureError as error:
        raise ModelLoadError(
            f"the model cannot be captured: {error}\nRun it with `-cc.cudagraph_mode=NONE` "
            "meanwhile."
        ) from error


def _check_defaults(loaded: LoadedModel) -> None:
    defaults: dict[str, Any] = loaded.generation.sampling()
    try:
        SamplingParams(**defaults)
    except SamplingParamsError as error:
        raise ModelLoadError(
            f"the sampling defaults of {loaded.source} cannot be used: {error}"
        ) from error
    if defaults:
        logger.info("Sampling defaults of the model, for requests that say nothing: %s", defaults)


def _engine_config(settings: Settings, loaded: LoadedModel, max_queue: int | None) -> EngineConfig:
    scheduler, cache = settings.scheduler, settings.cache
    layout = cache_layout(loaded.model.local_config, cache.block_size, loaded.model.dtype)
    max_model_len = _max_model_len(settings, loaded.config)
    available = available_bytes()
    num_blocks = cache.num_blocks or choose_num_blocks(
        layout,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=max_model_len,
        memory_bytes=cache.kv_cache_memory_bytes,
        available_bytes=available,
    )
    check_size(layout, num_blocks, available)
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
