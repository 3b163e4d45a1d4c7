"""Owns what a server's settings ask of the compile stack, with a reason for each decision.

It refuses settings that contradict each other; it compiles nothing and imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ir_passes.capture.sizes import capture_sizes
from ir_passes.config import CompilationConfig, CompilationMode, CudagraphMode
from ir_passes.errors import CaptureError
from serve_shim.compilation.graph_table import GraphTable
from serve_shim.engine.config import EngineConfig
from serve_shim.errors import SettingsError
from serve_shim.settings.tree import Settings

# Steps beyond it are bound by their arithmetic, not by the launch of kernels.
_MOST_TOKENS = 512
_MOST_TAPE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class CompilationPlan:
    """What is going to be done.

    `config` is the effective configuration, without a None; `reasons` says for each decision that
    the user left open, by its name, why it is what it is.
    """

    config: CompilationConfig
    reasons: Mapping[str, str]

    @property
    def is_compiled(self) -> bool:
        """Whether the model is compiled at all."""
        return self.config.mode is not CompilationMode.NONE

    @property
    def execution_mode(self) -> Literal["eager", "inductor"]:
        """Which of the platform's default priorities apply: those for Inductor where it runs."""
        return "inductor" if self.is_compiled and self.config.backend == "inductor" else "eager"


def plan_compilation(settings: Settings, *, has_cuda: bool = False) -> CompilationPlan:
    """Decide what settings leave open. Raises `SettingsError` for a contradiction.

    `has_cuda` tells whether the model is on a CUDA device.
    """
    config = settings.compilation_config
    mode, reason = _mode(settings)
    capture, why = _cudagraph_mode(config, mode, reason, has_cuda)
    decided = {"mode": mode, "cudagraph_mode": capture}
    reasons = {"mode": reason, "cudagraph_mode": why}
    return CompilationPlan(config.model_copy(update=decided), reasons)


def plan_graphs(config: CompilationConfig, bounds: EngineConfig) -> GraphTable | None:
    """The graphs to capture, None for none. Raises `SettingsError` for a size that no step has."""
    mode = config.cudagraph_mode
    if mode is None or mode is CudagraphMode.NONE:
        return None
    limit, largest = bounds.max_step_tokens, min(2 * bounds.max_num_seqs, _MOST_TOKENS)
    try:
        sizes = capture_sizes(config, limit=limit, largest=largest)
    except CaptureError as error:
        raise SettingsError(f"in `compilation_config`, {error}") from error
    return GraphTable(mode, sizes, bounds.max_num_seqs)


def plan_tape(plan: CompilationPlan, bounds: EngineConfig) -> int:
    """Tokens of the largest step that runs from a tape, 0 for none.

    Raises `SettingsError` for more than a step can have of requests, or beside graphs.
    """
    config, wish = plan.config, "`compilation_config.max_tape_tokens`"
    asked = config.max_tape_tokens
    has_graphs = config.cudagraph_mode is not CudagraphMode.NONE
    if asked == 0 or (asked is None and (has_graphs or not plan.is_compiled)):
        return 0
    if asked is None:
        return min(bounds.max_num_seqs, _MOST_TAPE_TOKENS)
    if not plan.is_compiled:
        raise SettingsError(f"{wish} records a compiled model, but {plan.reasons['mode']}")
    if has_graphs:
        raise SettingsError(f"{wish} and `cudagraph_mode` contradict each other; remove one")
    if asked > bounds.max_num_seqs:
        raise SettingsError(
            f"{wish} ({asked}) exceeds `max_num_seqs` ({bounds.max_num_seqs}), the most that decode"
            " at once"
        )
    return asked


def _mode(settings: Settings) -> tuple[CompilationMode, str]:
    asked = settings.compilation_config.mode
    if settings.enforce_eager:
        if asked not in (None, CompilationMode.NONE):
            raise SettingsError(
                f"`enforce_eager` and `compilation_config.mode` ({asked.value}) contradict each "
                "other; remove one"
            )
        return CompilationMode.NONE, "`enforce_eager` is set"
    if asked is not None:
        return asked, "`compilation_config.mode` is set"
    if settings.optimization_level == 0:
        return CompilationMode.NONE, "the optimization level is 0"
    return CompilationMode.VLLM_COMPILE, f"the optimization level is {settings.optimization_level}"


def _cudagraph_mode(
    config: CompilationConfig, mode: CompilationMode, reason: str, has_cuda: bool
) -> tuple[CudagraphMode, str]:
    asked, sizes = config.cudagraph_mode, _capture_option(config)
    wish = sizes if asked is None else f"`compilation_config.cudagraph_mode` ({asked.value})"
    if asked is CudagraphMode.NONE:
        if sizes:
            raise SettingsError(f"{wish} and {sizes} contradict each other; remove one")
        return asked, f"{wish} is set"
    if mode is CompilationMode.NONE:
        if wish:
            raise SettingsError(f"{wish} captures a compiled model, but {reason}; remove one")
        return CudagraphMode.NONE, "the model is not compiled"
    if config.cudagraph_capture_sizes == ():
        empty = "`compilation_config.cudagraph_capture_sizes` is empty"
        if asked is not None:
            raise SettingsError(f"{wish} captures nothing, since {empty}; name sizes or remove one")
        return CudagraphMode.NONE, empty
    if asked is not None:
        return asked, f"{wish} is set"
    if has_cuda or sizes:
        return CudagraphMode.FULL_AND_PIECEWISE, f"{sizes or 'a CUDA device'} is given"
    return CudagraphMode.NONE, "no CUDA device: a CPU has a tape instead"


def _capture_option(config: CompilationConfig) -> str | None:
    """The option that names sizes to capture, if one does."""
    if config.cudagraph_capture_sizes:
        return "`compilation_config.cudagraph_capture_sizes`"
    if config.max_cudagraph_capture_size is not None:
        return "`compilation_config.max_cudagraph_capture_size`"
    return None
