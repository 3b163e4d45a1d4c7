"""The compile cache that a `cache` command works on: where it is, and what of it is meant.

It imports no torch: these commands answer at once.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ir_passes.cache.entry import Entry, Refused
from ir_passes.cache.layout import default_root
from ir_passes.cache.store import CacheStore
from ir_passes.config import CompilationConfig
from ir_passes.errors import CacheError
from serve_shim.errors import CompileCacheError, SettingsError
from serve_shim.settings import resolve

_SHORTEST_PREFIX = 4


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Place:
    """Where the cache is; as for `serve` by default."""

    cache_dir: Annotated[str | None, Parameter(help="Directory of the compile cache.")] = None
    cache_key_file: Annotated[str | None, Parameter(help="Key that vouches for its entries.")] = (
        None
    )

    @property
    def options(self) -> list[str]:
        """The options that name it, for another command."""
        named = {"--cache-dir": self.cache_dir, "--cache-key-file": self.cache_key_file}
        return [f"{name}={value}" for name, value in named.items() if value is not None]

    @property
    def config(self) -> CompilationConfig:
        """The configuration with these options and the process's variables."""
        return resolve(self.options, os.environ).settings.compilation_config


def open_store(place: Place, *, writable: bool = False) -> CacheStore:
    """The store there. Raises SettingsError for a user without a home who names no directory."""
    config = place.config
    try:
        root = config.cache_dir or default_root()
    except RuntimeError as error:
        raise SettingsError(f"{error}; name a directory with `--cache-dir`") from error
    return CacheStore(
        root,
        key_file=config.cache_key_file,
        trust=config.cache_trust,
        max_bytes=config.cache_max_size,
        writable=writable,
    )


def select(store: CacheStore, names: Sequence[str]) -> list[Entry | Refused]:
    """Everything in a store whose key or id begins with one of the names; all without names.

    Raises SettingsError for a name that is too short or that nothing has.
    """
    found = [*store.entries()]
    if not names:
        return found
    chosen: list[Entry | Refused] = []
    for name in names:
        wanted = name.strip().lower()
        if len(wanted) < _SHORTEST_PREFIX:
            raise SettingsError(f"`{name}`: give at least {_SHORTEST_PREFIX} digits of a key or id")
        fitting = [each for each in found if _has_name(each, wanted)]
        if not fitting:
            raise SettingsError(
                f"`{name}`: no key or id in {store.root} begins so; `serve-shim cache ls` shows all"
            )
        chosen += [each for each in fitting if each not in chosen]
    return chosen


@contextmanager
def as_cache_error() -> Generator[None]:
    """Faults of the cache, and of its disk, as errors that end the command with one message."""
    try:
        yield
    except CacheError as error:
        raise CompileCacheError(str(error)) from error
    except OSError as error:
        raise CompileCacheError(f"{error.filename}: {error.strerror}") from error


def command_line(*words: str | Path) -> str:
    """A command as a shell reads it."""
    return shlex.join(["serve-shim", "cache", *map(str, words)])


def _has_name(found: Entry | Refused, prefix: str) -> bool:
    return found.key.startswith(prefix) or found.directory.name.startswith(prefix)
