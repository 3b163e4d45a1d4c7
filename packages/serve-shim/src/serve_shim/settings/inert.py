"""The settings that this version declares but does not act on, as data.

Later work removes rows and nothing else. A setting with a row may be given only a value that is
already in effect; anything else is refused, since doing nothing in silence would be a lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from ir_passes.config import CacheMode, CompilationMode, CudagraphMode
from serve_shim.settings.source import Path

COMPILATION_IS_OFF = "not available yet in this version: compilation is off"
ONE_RANK = "not available yet in this version: the model runs in one process"


@dataclass(frozen=True, slots=True)
class Inert:
    """One row: the setting (or section) at `path`, the values already in effect, and why."""

    path: str
    effective: tuple[object, ...] = ()
    reason: str = COMPILATION_IS_OFF


INERT = (
    Inert("enforce_eager", (True, False), "compilation is off, so every model runs eagerly"),
    Inert("optimization_level", (0,)),
    Inert("compilation_config.mode", (None, CompilationMode.NONE)),
    Inert("compilation_config.backend"),
    Inert("compilation_config.splitting_ops"),
    Inert("compilation_config.compile_sizes", ((),)),
    Inert("compilation_config.compile_ranges_endpoints", ((),)),
    Inert("compilation_config.cudagraph_mode", (None, CudagraphMode.NONE)),
    Inert("compilation_config.cudagraph_capture_sizes", (None, ())),
    Inert("compilation_config.max_cudagraph_capture_size"),
    Inert("compilation_config.dynamic_shapes_config"),
    Inert("compilation_config.pass_config"),
    Inert("compilation_config.inductor_compile_config"),
    Inert("compilation_config.autotune"),
    Inert("compilation_config.cache_mode", (CacheMode.OFF,)),
    Inert("compilation_config.cache_dir"),
    Inert("compilation_config.cache_key_file"),
    Inert("compilation_config.compile_cache_save_format"),
    Inert("compilation_config.debug_dump_path"),
    Inert("tensor_parallel_size", (1,), ONE_RANK),
    Inert("ray_address", (None,), ONE_RANK),
    Inert("allow_pickle_weights", (False,), "refused: reading a pickle runs code it holds;"
          " convert the checkpoint to safetensors"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """A setting that was given a value it cannot have yet."""

    path: Path
    value: object
    row: Inert

    @property
    def message(self) -> str:
        """What is refused and what to do."""
        allowed = " or ".join(
            f"`{value}`" for value in self.row.effective if value not in (None, ())
        )
        remedy = f"remove it or leave it at {allowed}" if allowed else "remove it"
        return f"`{'.'.join(self.path)}` is {self.row.reason}; {remedy}"


def find_row(path: Path) -> Inert | None:
    """The row that covers the setting at a path."""
    name = ".".join(path)
    return next((r for r in INERT if name == r.path or name.startswith(r.path + ".")), None)


def find_refusals(settings: BaseModel, path: Path = ()) -> Iterator[Refusal]:
    """Every setting below that was given, at any value that its row does not allow."""
    for name in type(settings).model_fields:
        value: object = getattr(settings, name)
        inner = (*path, name)
        if isinstance(value, BaseModel):
            yield from find_refusals(value, inner)
        elif name in settings.model_fields_set:
            row = find_row(inner)
            if row and value not in row.effective:
                yield Refusal(inner, value, row)
