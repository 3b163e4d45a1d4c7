"""How models are compiled: everything but the model and the sizes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ir_core.groups import axis_sizes
from ir_passes.backends.base import Backend
from ir_passes.backends.registry import find_backend
from ir_passes.config import CompilationConfig
from ir_passes.default_pipeline import build_pipeline, unserved_options
from ir_passes.dialect import Dialect
from ir_passes.pipeline import Pipeline
from ir_passes.plugins import load_additions

_logger = logging.getLogger("ir_passes.compiler")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What turns a functional graph into programs.

    Attributes:
        backend: compiles the pieces.
        pipeline: runs on the whole graph, once for each range of token counts.
        dialect: which nodes are IR ops, and where the graph is split.
        axes: number of ranks along each logical axis.
        options: the backend's.
        verify_each: check the whole graph after each pass.
        dump_path: where the graph is written at each stage; None for nowhere.
    """

    backend: Backend
    pipeline: Pipeline
    dialect: Dialect = field(default_factory=Dialect)
    axes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    verify_each: bool = False
    dump_path: Path | None = None

    @classmethod
    def of(cls, config: CompilationConfig) -> Recipe:
        """The recipe that a configuration asks for, passes of plug-ins included.

        Raises:
            BackendError, PipelineError, PluginError: a name that is not there, or a broken plug-in.
        """
        pipeline = build_pipeline(config.pass_config, load_additions())
        for name in unserved_options(config.pass_config, pipeline):
            _logger.warning("`pass_config.%s` is on, but no pass has it: it changes nothing", name)
        return cls(
            find_backend(config.backend),
            pipeline,
            Dialect(splitting_ops=config.splitting_ops),
            axis_sizes(),
            options=dict(config.inductor_compile_config),
            verify_each=config.pass_config.verify_each,
            dump_path=config.debug_dump_path,
        )
