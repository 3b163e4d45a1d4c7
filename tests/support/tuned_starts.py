"""Settings of servers that tune their ops."""

from pathlib import Path
from typing import Any

from ir_passes.config import AutotuneMode, CacheMode, CompilationConfig
from serve_shim.settings.tree import SchedulerConfig, Settings


def settings(model: Path, cache: Path, mode: str, level: int = 0, **config: Any) -> Settings:
    given: dict[str, Any] = {"cache_mode": CacheMode.RW, "backend": "eager", **config}
    return Settings(
        model=str(model),
        scheduler=SchedulerConfig(max_num_seqs=4, max_queue=1),
        optimization_level=level,
        compilation_config=CompilationConfig(autotune=AutotuneMode(mode), cache_dir=cache, **given),
    )
