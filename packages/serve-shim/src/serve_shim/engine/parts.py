"""Owns how an engine is put together around its workers; refuses to load or size anything."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from serve_shim.engine.admission import Admission
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.core import EngineCore
from serve_shim.engine.executor import Executor, StepRunner
from serve_shim.engine.kv_cache import CacheLayout
from serve_shim.engine.request_factory import RequestFactory
from serve_shim.engine.step_memory import StepInputs

if TYPE_CHECKING:
    from ir_passes import CompileReport
    from serve_shim.compilation.capture_counters import CaptureCounters
    from serve_shim.engine.workers import Workers
    from serve_shim.models.model_config import ModelConfig
    from serve_shim.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What the server's engine and the offline `LLM` are both made of.

    `step_inputs` are the engine's static buffers. `compile_report` says what was compiled and why;
    None where the model runs eagerly. `captures` counts replays in this process; None where there
    are none. `workers` are None around a runner that needs no end.
    """

    model_name: str
    model_config: "ModelConfig"
    tokenizer: "Tokenizer | None"
    config: EngineConfig
    admission: Admission
    factory: RequestFactory
    core: EngineCore
    sampling_defaults: Mapping[str, float | int]
    step_inputs: StepInputs
    compile_report: "CompileReport | None" = None
    captures: "CaptureCounters | None" = None
    workers: "Workers | None" = None


def assemble(
    runner: StepRunner,
    *,
    model_name: str,
    model_config: "ModelConfig",
    tokenizer: "Tokenizer | None",
    eos_ids: Iterable[int],
    config: EngineConfig,
    sampling_defaults: Mapping[str, float | int] | None = None,
    workers: "Workers | None" = None,
) -> EngineParts:
    """Put the engine around what computes its steps; `model_config` is the whole model's."""
    admission = Admission(
        vocab_size=model_config.vocab_size,
        max_model_len=config.max_model_len,
        max_sequences=_most_sequences(config),
        has_tokenizer=tokenizer is not None,
    )
    factory = RequestFactory(
        admission,
        tokenizer=tokenizer,
        eos_ids=frozenset(eos_ids),
        seed=config.seed,
        shares_prefixes=config.enable_prefix_caching,
    )
    executor = Executor(runner, config)
    return EngineParts(
        model_name=model_name,
        model_config=model_config,
        tokenizer=tokenizer,
        config=config,
        admission=admission,
        factory=factory,
        core=EngineCore(executor, config),
        sampling_defaults=sampling_defaults or {},
        step_inputs=executor.step_inputs,
        workers=workers,
    )


def cache_layout(model_config: "ModelConfig", block_size: int, dtype: torch.dtype) -> CacheLayout:
    """The cache that a model of this shape needs."""
    return CacheLayout(
        num_layers=model_config.num_layers,
        num_kv_heads=model_config.num_kv_heads,
        head_dim=model_config.head_dim,
        block_size=block_size,
        dtype=dtype,
    )


def _most_sequences(config: EngineConfig) -> int | None:
    return None if config.max_queue is None else config.max_num_seqs + config.max_queue
