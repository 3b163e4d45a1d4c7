"""A small OpenAI-compatible LLM server whose every op runs through the IR."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ir_core import IrOpPriorityConfig
    from ir_passes.config import CompilationConfig, DynamicShapesConfig, DynamicShapesType
    from serve_shim.llm import LLM
    from serve_shim.sampling.params import SamplingParams
    from serve_shim.settings.tree import KernelConfig

__all__ = [
    "LLM",
    "CompilationConfig",
    "DynamicShapesConfig",
    "DynamicShapesType",
    "IrOpPriorityConfig",
    "KernelConfig",
    "SamplingParams",
]

_HOMES = {
    "LLM": "serve_shim.llm",
    "CompilationConfig": "ir_passes.config",
    "DynamicShapesConfig": "ir_passes.config",
    "DynamicShapesType": "ir_passes.config",
    "IrOpPriorityConfig": "ir_core",
    "KernelConfig": "serve_shim.settings.tree",
    "SamplingParams": "serve_shim.sampling.params",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line must answer before torch is imported."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module `serve_shim` has no attribute `{name}`")
    return getattr(import_module(home), name)
