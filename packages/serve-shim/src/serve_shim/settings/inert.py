"""The settings that this version declares but does not act on, as data.

Later work removes rows and nothing else. A setting with a row may be given only a value that is
already in effect; anything else is refused, since doing nothing in silence would be a lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from ir_passes.config import CompilationMode
from serve_shim.settings.source import Path

NOT_YET = "not available yet in this version"


@dataclass(frozen=True, slots=True)
class Inert:
    """One row: the setting (or section) at `path`, the values already in effect, and why."""

    path: str
    effective: tuple[object, ...] = ()
    reason: str = NOT_YET


INERT = (
    Inert("compilation_config.mode",
          (None, CompilationMode.NONE, CompilationMode.VLLM_COMPILE), NOT_YET),
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
