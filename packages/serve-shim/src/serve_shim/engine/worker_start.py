"""Owns the way of one worker from settings to a model that can step; refuses to size its cache.

The same in the engine's process and on a rank. The caller has set priorities and, on a rank, the
group of axis `tp`.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ir_core import IrError
from ir_kernels.tape import TapeError
from ir_passes.config import CompilationConfig
from ir_passes.errors import CacheMissError, CaptureError, PassesError
from ir_passes.programs.report import CacheStatus, CompileReport, format_compile_report
from serve_shim.compilation.capture_counters import CaptureCounters
from serve_shim.compilation.compilable_model import CompilableModel, Progress
from serve_shim.compilation.graph_table import GraphTable
from serve_shim.compilation.self_check import check_against_eager
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.op_tuning import plan_tuning, tune_ops
from serve_shim.engine.parts import cache_layout
from serve_shim.engine.step_memory import StepInputs
from serve_shim.engine.worker import Worker
from serve_shim.errors import CompileCacheError, ModelLoadError
from serve_shim.loading import LoadedModel, describe_weights, load_model
from serve_shim.loading.weights import Progress as LoadProgress
from serve_shim.models.shard import WHOLE, Shard
from serve_shim.settings.tree import Settings

if TYPE_CHECKING:
    from ir_core.autotuning.session import TuningSession

logger = logging.getLogger(__name__)


class WorkerStart:
    """One worker's start: `load`, `allocate`, `tune`, `compile`, `check`, `capture`, in this order.

    `check` runs the model, so on several ranks all must be in it at once. `tune` is for one worker
    alone; several take the steps of `plan_tuning` together.
    """

    def __init__(self, settings: Settings, shard: Shard = WHOLE) -> None:
        self._settings = settings
        self._shard = shard

    def load(self, progress: LoadProgress, *, has_text: bool = True) -> LoadedModel:
        """Read the worker's weights. Raises `ModelLoadError`."""
        settings = self._settings
        dtype = settings.dtype.value
        self._loaded = loaded = load_model(
            settings.model,
            dtype="auto" if dtype == "auto" else getattr(torch, dtype),
            quantization=settings.quantization.value,
            revision=settings.revision,
            tokenizer=settings.tokenizer,
            chat_template=settings.chat_template,
            max_positions=settings.max_model_len,
            shard=self._shard,
            has_text=has_text,
            progress=progress,
        )
        logger.info("Weights: %s", describe_weights(loaded.load_report))
        logger.info("Loaded %s: %s", loaded.source, loaded.load_report)
        return loaded

    def allocate(self, bounds: EngineConfig, *, can_sample: bool = True) -> Worker:
        """Make the KV cache and bind it. Raises `SettingsError` where there is no such memory."""
        eager = self._loaded.model
        self._bounds = bounds
        self._model = CompilableModel(eager)
        layout = cache_layout(eager.local_config, bounds.block_size, eager.dtype)
        return Worker(self._model, bounds, layout, can_sample=can_sample)

    def tune(self) -> None:
        """Choose implementations of ops by timing, if settings say so; for one worker alone."""
        tune_ops(self._loaded.model, self._settings, self._bounds)

    def plan_tuning(self) -> "TuningSession | None":
        """The same step by step, for ranks that take each step together; None if there is none."""
        return plan_tuning(self._loaded.model, self._settings, self._bounds)

    def compile(self, config: CompilationConfig, progress: Progress) -> CompileReport:
        """Compile the forward pass, or load it from the compile cache.

        Raises `CompileCacheError` where the cache is required and has nothing that fits, and
        `ModelLoadError` where the model cannot be compiled.
        """
        started = time.monotonic()
        try:
            report = self._model.compile(config, self._bounds, progress)
        except CacheMissError as error:
            raise CompileCacheError(
                f"{error}\nStart once with `--cache-mode=rw`, or bring an entry by `serve-shim "
                "cache import`.",
                reasons=_reasons(error),
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
        return report

    def check(self, report: CompileReport) -> None:
        """Compare the compiled model with the eager one. Raises `ModelLoadError` if they differ."""
        sizes = [size for p in report.programs for size in (p.sizes.first, p.sizes.first + 6)]
        difference = check_against_eager(self._loaded.model, self._model, self._bounds, sizes)
        logger.info("Compiled and eager outputs differ by %.2g of the largest", difference)

    def capture(
        self, table: GraphTable, buffers: StepInputs, progress: Callable[[int, int], None]
    ) -> CaptureCounters:
        """Capture graphs of steps in `buffers`. Raises `ModelLoadError` where that cannot be."""
        try:
            return self._model.capture(table, buffers, progress)
        except CaptureError as error:
            raise ModelLoadError(
                f"the model cannot be captured: {error}\nRun it with `-cc.cudagraph_mode=NONE` "
                "meanwhile."
            ) from error

    def tape(self, num_tokens: int, buffers: StepInputs) -> None:
        """Run small steps in `buffers` from a tape, or log why they cannot be."""
        try:
            tapes = self._model.tape(num_tokens, buffers)
        except TapeError as error:
            logger.info("No step runs from a tape: %s", error)
            return
        for (first, last), error in tapes.untaped.items():
            logger.info("Steps of %d to %d tokens run from no tape: %s", first, last, error)
        for taped in tapes.taped:
            first, last = taped.sizes
            logger.info(
                "Steps of %d to %d tokens run from a tape of %d kernels; it holds %d bytes",
                *(first, last, taped.num_kernels, taped.num_bytes),
            )


def _reasons(miss: CacheMissError) -> tuple[str, ...]:
    """The error's lines below its heading; the heading where it says all."""
    first, *others = str(miss).splitlines()
    return tuple(line.strip() for line in others) or (first,)
