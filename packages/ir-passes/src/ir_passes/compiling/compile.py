"""The front door: a model and example arguments in, a compiled model out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ir_passes.cache.compile_cache import compile_or_load
from ir_passes.compiling.support import declared_dims
from ir_passes.config import CompilationConfig
from ir_passes.programs.compiled_model import CompiledModel
from ir_passes.programs.progress import Progress, no_progress
from ir_passes.programs.report import CompileReport
from ir_passes.programs.request import CompileRequest
from ir_passes.tracing.dynamic_dims import DynamicDims

_logger = logging.getLogger("ir_passes.compiler")


def compile(  # noqa: A001
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_dims: DynamicDims | None = None,
    limits: Mapping[str, int] | None = None,
    config: CompilationConfig | None = None,
    progress: Progress = no_progress,
) -> CompiledModel:
    """Compile a module or function for every token count up to a limit.

    Args:
        function: what is called; its tensors are read as they are now.
        args: example arguments; nothing is executed with them.
        kwargs: the same by name.
        dynamic_dims: which dims vary: see `ir_passes.tracing.dynamic_dims`. By default those that
            `support_compile` declared.
        limits: greatest size of each label of a dynamic dim, `{"tokens": 2048}`. Every guard is
            evaluated for all sizes up to it, and calls beyond it are refused.
        config: backend, sizes, ranges, shapes mode, passes.
        progress: called as programs are compiled.

    Raises:
        CompileError: a served size breaks a guard and the policy is `fail`; names the guard, its
            line and the sizes.
        CacheMissError: `cache_mode` is `require`, and nothing stored fits; says what differs.
        TraceError, PassError, LoweringError, BackendError, DonationError: what failed, and where.
    """
    dims = declared_dims(function) if dynamic_dims is None else dynamic_dims
    config = config or CompilationConfig()
    request = CompileRequest(function, args, kwargs or {}, dims, limits or {}, config)
    model = compile_or_load(request, progress)
    _log(model.report())
    return model


def _log(report: CompileReport) -> None:
    for op, counts in report.selected_impls.items():
        used = ", ".join(f"{name}: {count}" for name, count in counts.items())
        _logger.info("Selected implementations of %s: %s", op, used)
