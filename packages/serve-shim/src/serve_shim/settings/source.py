"""Where a value was written, and a value together with that. It does not interpret values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Path = tuple[str, ...]


class Kind(StrEnum):
    """The kinds of sources, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    ARGUMENT = "argument"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Source:
    """One place that set a value; `name` is a file and line, a variable, or an option as spelt.

    The value itself is no part of it, so a source may be shown where the value is secret.
    """

    kind: Kind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind is Kind.DEFAULT else f"`{self.name}`"


DEFAULT = Source(Kind.DEFAULT, "default")


@dataclass(frozen=True, slots=True)
class Given:
    """One setting's value as a source gave it; `path` is its canonical place in the tree."""

    path: Path
    value: object
    source: Source


def source_at(provenance: Mapping[Path, Source], path: Path) -> Source | None:
    """The source of the setting at `path`, or of the first one given below it."""
    return next((source for p, source in provenance.items() if p[: len(path)] == path), None)


Locate = Callable[[Path], Source]
"""Gives the source of the value at a path *as written* below what the caller handed over."""


def everywhere(source: Source) -> Locate:
    """One source for every path."""
    return lambda _path: source
