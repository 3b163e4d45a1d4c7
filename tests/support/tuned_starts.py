"""Settings of servers that tune their ops, and a process in which nothing has been tuned yet."""

from pathlib import Path
from typing import Any

import pytest

import ir_core as ir
from ir_core.autotuning.table import TunedTable
from ir_passes.config import AutotuneMode, CacheMode, CompilationConfig
from serve_shim.settings.tree import SchedulerConfig, Settings


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process began anew."""
    monkeypatch.setattr(ir.registry().priorities, "_tuned", TunedTable())
    ir.registry().forget_choices()


def settings(model: Path, cache: Path, mode: str, level: int = 0, **config: Any) -> Settings:
    given: dict[str, Any] = {"cache_mode": CacheMode.RW, "backend": "eager", **config}
    return Settings(
        model=str(model),
        scheduler=SchedulerConfig(max_num_seqs=4, max_queue=1),
        optimization_level=level,
        compilation_config=CompilationConfig(autotune=AutotuneMode(mode), cache_dir=cache, **given),
    )
