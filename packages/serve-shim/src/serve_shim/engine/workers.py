"""Owns the workers of one model as the engine sees them, and the one that lives in its process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from ir_passes.config import CompilationConfig
from serve_shim.compilation.graph_table import GraphTable
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.executor import StepRunner
from serve_shim.engine.memory import available_bytes
from serve_shim.engine.step_memory import StepInputs
from serve_shim.engine.worker_start import WorkerStart
from serve_shim.loading.checkpoint import GenerationDefaults
from serve_shim.models.model_config import ModelConfig
from serve_shim.settings.tree import Settings

if TYPE_CHECKING:
    from ir_passes.programs.report import CompileReport
    from serve_shim.compilation.capture_counters import CaptureCounters
    from serve_shim.tokenization.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
"""Called with how many parts of a phase are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWorkers:
    """A model whose weights are where they compute.

    `local_config` is that of each worker's part, `available_bytes` what each may still allocate.
    """

    name: str
    source: str
    config: ModelConfig
    local_config: ModelConfig
    dtype: torch.dtype
    tokenizer: "Tokenizer | None"
    generation: GenerationDefaults
    available_bytes: int


class Workers(Protocol):
    """The workers of a model; the methods are called in this order, on one thread.

    Each raises `ServeShimError` for what stops a start.
    """

    def load(self, progress: Progress) -> LoadedWorkers:
        """Bring the weights in."""
        ...

    def allocate(self, bounds: EngineConfig) -> StepRunner:
        """Make the KV caches, and tune the ops if settings say so.

        What it returns computes steps, once all else here is done.
        """
        ...

    def compile(self, config: CompilationConfig, progress: Progress) -> "CompileReport":
        """Compile the model, or load it from the cache."""
        ...

    def check(self, report: "CompileReport") -> None:
        """Compare what was compiled with the eager model."""
        ...

    def capture(
        self, table: GraphTable, buffers: StepInputs, progress: Progress
    ) -> "CaptureCounters | None":
        """Capture graphs; the counters of what is replayed in this process, if it is here."""
        ...

    def tape(self, num_tokens: int, buffers: StepInputs) -> None:
        """Run steps of up to `num_tokens` tokens from a tape, where that can be."""
        ...

    def serve(self) -> None:
        """Steps may come from now on."""
        ...

    @property
    def num_compilations(self) -> int:
        """What torch compiled since `serve`, in processes other than this; safe from any thread."""
        ...

    def failure(self) -> Exception | None:
        """What broke a worker, whether or not a step was in progress; safe from any thread."""
        ...

    def close(self) -> None:
        """End them; nothing happens if they have ended. Safe from any thread."""
        ...


class LocalWorkers:
    """The one worker of a model that runs in this process; its failures are raised by steps."""

    def __init__(self, settings: Settings) -> None:
        self._start = WorkerStart(settings)

    def load(self, progress: Progress) -> LoadedWorkers:
        """Read the weights."""
        loaded = self._start.load(lambda _, done, total: progress(done, total))
        return LoadedWorkers(
            name=loaded.name,
            source=loaded.source,
            config=loaded.config,
            local_config=loaded.model.local_config,
            dtype=loaded.model.dtype,
            tokenizer=loaded.tokenizer,
            generation=loaded.generation,
            available_bytes=available_bytes(),
        )

    def allocate(self, bounds: EngineConfig) -> StepRunner:
        """Make the KV cache, and tune the ops if settings say so."""
        worker = self._start.allocate(bounds)
        self._start.tune()
        return worker

    def compile(self, config: CompilationConfig, progress: Progress) -> "CompileReport":
        """Compile the model, or load it from the cache."""
        return self._start.compile(config, lambda _, done, total: progress(done, total))

    def check(self, report: "CompileReport") -> None:
        """Compare what was compiled with the eager model."""
        self._start.check(report)

    def capture(
        self, table: GraphTable, buffers: StepInputs, progress: Progress
    ) -> "CaptureCounters":
        """Capture graphs over the engine's own step memory."""
        return self._start.capture(table, buffers, progress)

    def tape(self, num_tokens: int, buffers: StepInputs) -> None:
        """Record the model over the engine's own step memory."""
        self._start.tape(num_tokens, buffers)

    def serve(self) -> None:
        """It is always ready."""

    @property
    def num_compilations(self) -> int:
        """It has no other process."""
        return 0

    def failure(self) -> None:
        """Nothing breaks it but a step."""
        return

    def close(self) -> None:
        """It ends with the process, or with the last reference."""
