"""Owns the tuning of a loaded model's ops before its first step; refuses to time anything later.

What is timed is up to `ir_core.autotuning`: this knows how to make a model call its ops, which
numbers of tokens matter to a server, and where the results lie.
"""

import logging
from typing import TYPE_CHECKING

import torch

import ir_core as ir
from ir_passes.config import AutotuneMode, CacheMode, CompilationConfig
from serve_shim.compilation.plan import plan_compilation
from serve_shim.compilation.range_ends import blocked_ends
from serve_shim.compilation.self_check import prompt_step
from serve_shim.engine.config import EngineConfig
from serve_shim.models.causal_lm import CausalLM
from serve_shim.settings.tree import Settings

if TYPE_CHECKING:
    from ir_core.autotuning.choice_file import ChoiceFile
    from ir_core.autotuning.plan import TuningReport
    from ir_core.autotuning.session import TuningSession

logger = logging.getLogger(__name__)

DIRECTORY = "autotune"
"""Where the choices are, below the compile cache."""

# Most steps of a server decode for a few sequences; prompts come in between.
_WEIGHTS = {1: 4.0, 8: 2.0, 64: 1.0}


def tune_ops(model: CausalLM, settings: Settings, bounds: EngineConfig) -> "TuningReport | None":
    """Choose implementations for the calls of a model, as `compilation_config.autotune` says.

    None where tuning is off, or has nowhere to look. An op that cannot be tuned keeps its priority,
    with the reason in the log.
    """
    session = plan_tuning(model, settings, bounds)
    if session is None:
        return None
    from ir_core.autotuning.autotune import run_session  # noqa: PLC0415

    report = run_session(session)
    log_tuning(report)
    return report


def plan_tuning(
    model: CausalLM, settings: Settings, bounds: EngineConfig
) -> "TuningSession | None":
    """The tuning of a model's calls; None where it is off, or has nowhere to look.

    Its steps run the model eagerly on short prompts, which write to the first blocks of its KV
    caches; nobody uses them yet.
    """
    config = settings.compilation_config
    if config.autotune is AutotuneMode.OFF:
        return None
    from ir_core.autotuning.plan import TuningPlan  # noqa: PLC0415
    from ir_core.autotuning.session import TuningSession  # noqa: PLC0415
    from ir_passes.cache.compile_cache import effective_mode  # noqa: PLC0415
    from ir_passes.compiling.single_call import SingleCalls  # noqa: PLC0415

    cache_mode = effective_mode(config)
    file = None if cache_mode is CacheMode.OFF else _file(config)
    if file is None and config.autotune is AutotuneMode.CACHED:
        logger.warning("Nothing is autotuned: it was to come from the cache, and there is none")
        return None
    weights = _weights(bounds)
    is_fused = plan_compilation(settings).execution_mode == "inductor"
    plan = TuningPlan(
        weights,
        is_fused=is_fused,
        is_timed=config.autotune is AutotuneMode.ON,
        is_stored=cache_mode is CacheMode.RW,
        compiler=SingleCalls(config) if is_fused else None,
        blocked=blocked_ends(weights, settings, bounds),
    )

    def step(num_tokens: int) -> None:
        with torch.inference_mode():
            model.compute_logits(model(*prompt_step(num_tokens, bounds)))

    return TuningSession(ir.registry(), step, plan, file)


def log_tuning(report: "TuningReport") -> None:
    """Say what was found out, and what of it changes which implementation calls get."""
    for remark in report.remarks:
        logger.info("Autotuning: %s", remark)
    for each in report.choices:
        if each.remark:
            logger.info("Autotuning: %s(%s): %s", each.op, each.signature, each.remark)
    for each in report.changed:
        logger.info(
            "Autotuned %s(%s): %s instead of %s (%s)",
            each.op,
            each.signature,
            each.winners,
            each.default,
            each.to_text(),
        )
    logger.info(
        "Autotuning: %d kinds of calls, %d timed now, %d changed, in %.2f s",
        len(report.choices),
        report.num_timed,
        len(report.changed),
        report.seconds,
    )


def _file(config: CompilationConfig) -> "ChoiceFile | None":
    from ir_core.autotuning.choice_file import ChoiceFile  # noqa: PLC0415
    from ir_core.autotuning.machine import machine_facts  # noqa: PLC0415
    from ir_passes.cache.layout import default_root  # noqa: PLC0415

    try:
        root = config.cache_dir or default_root()
    except RuntimeError:  # a user without a home
        return None
    return ChoiceFile(root / DIRECTORY, machine_facts())


def _weights(bounds: EngineConfig) -> dict[int, float]:
    longest = min(bounds.max_step_tokens, bounds.max_model_len)
    weights: dict[int, float] = {}
    for count, weight in _WEIGHTS.items():
        fitting = min(count, longest)
        weights[fitting] = weights.get(fitting, 0.0) + weight
    return weights
