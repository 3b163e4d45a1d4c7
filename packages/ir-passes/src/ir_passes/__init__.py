"""Passes, lowering and the compile stack that run on the IR.

Names are loaded when they are first used: reading a configuration imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ir_passes.backends.base import Backend, BackendContext, GraphForm
    from ir_passes.base import MatchRow, Pass, PassContext, PassResult, SizeRange
    from ir_passes.compiling.compile import compile  # noqa: A004
    from ir_passes.compiling.support import support_compile
    from ir_passes.default_pipeline import build_pipeline
    from ir_passes.dialect import Dialect
    from ir_passes.errors import (
        BackendError,
        CompileError,
        LoweringError,
        PassError,
        PassesError,
        PatternError,
        PipelineError,
        SplitError,
        TraceError,
        VerificationError,
    )
    from ir_passes.matching.fusion import Fusion
    from ir_passes.matching.matcher import Match
    from ir_passes.matching.pattern import call, free
    from ir_passes.matching.rewrite import Rewrite
    from ir_passes.pipeline import Pipeline
    from ir_passes.plugins import Addition
    from ir_passes.printer import print_graph
    from ir_passes.programs.compiled_model import CompiledModel
    from ir_passes.programs.report import CompileReport, format_compile_report
    from ir_passes.report import PassReport, PipelineReport, format_matches, format_report
    from ir_passes.runner import RunOptions, run_pipeline
    from ir_passes.tracing.model_trace import trace_model
    from ir_passes.tracing.whole_graph import WholeGraph, trace_graph
    from ir_passes.verifier import verify

_MODULES = {
    "base": ("MatchRow", "Pass", "PassContext", "PassResult", "SizeRange"),
    "tracing.model_trace": ("trace_model",),
    "tracing.whole_graph": ("WholeGraph", "trace_graph"),
    "backends.base": ("Backend", "BackendContext", "GraphForm"),
    "compiling.compile": ("compile",),
    "programs.compiled_model": ("CompiledModel",),
    "programs.report": ("CompileReport", "format_compile_report"),
    "compiling.support": ("support_compile",),
    "default_pipeline": ("build_pipeline",),
    "dialect": ("Dialect",),
    "errors": (
        *("TraceError", "PassError", "PassesError", "PatternError", "PipelineError"),
        *("BackendError", "CompileError", "LoweringError", "SplitError", "VerificationError"),
    ),
    "matching.fusion": ("Fusion",),
    "matching.matcher": ("Match",),
    "matching.pattern": ("call", "free"),
    "matching.rewrite": ("Rewrite",),
    "pipeline": ("Pipeline",),
    "plugins": ("Addition",),
    "printer": ("print_graph",),
    "report": ("PassReport", "PipelineReport", "format_matches", "format_report"),
    "runner": ("RunOptions", "run_pipeline"),
    "verifier": ("verify",),
}
_OWNERS = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Addition",
    "Backend",
    "BackendContext",
    "BackendError",
    "CompileError",
    "CompileReport",
    "CompiledModel",
    "Dialect",
    "Fusion",
    "GraphForm",
    "LoweringError",
    "Match",
    "MatchRow",
    "Pass",
    "PassContext",
    "PassError",
    "PassReport",
    "PassResult",
    "PassesError",
    "PatternError",
    "Pipeline",
    "PipelineError",
    "PipelineReport",
    "Rewrite",
    "RunOptions",
    "SizeRange",
    "SplitError",
    "TraceError",
    "VerificationError",
    "WholeGraph",
    "build_pipeline",
    "call",
    "compile",
    "format_compile_report",
    "format_matches",
    "format_report",
    "free",
    "print_graph",
    "run_pipeline",
    "support_compile",
    "trace_graph",
    "trace_model",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _OWNERS:
        raise AttributeError(f"module `ir_passes` has no attribute `{name}`")
    return getattr(import_module(f"ir_passes.{_OWNERS[name]}"), name)
