"""Where the cache's parts are: names below its root, and the default places of root and key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FORMAT: Final = 1
ENTRIES: Final = f"v{FORMAT}"
TEMPORARY: Final = "tmp"
QUARANTINE: Final = "quarantine"
LOCKS: Final = "locks"
MANIFEST: Final = "manifest.json"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FORMAT_DIRECTORY = re.compile(r"v[0-9]{1,9}")


def default_root(environment: Mapping[str, str] = os.environ) -> Path:
    """The cache's directory where none is set; RuntimeError for a user without a home."""
    return _base(environment, "XDG_CACHE_HOME", ".cache") / "serve-shim" / "compile_cache"


def default_key_file(environment: Mapping[str, str] = os.environ) -> Path:
    """The key's file where none is set; RuntimeError for a user without a home."""
    return _base(environment, "XDG_CONFIG_HOME", ".config") / "serve-shim" / "cache.key"


def is_digest(text: str) -> bool:
    """Whether the text is a whole sha256 in lower-case hexadecimal."""
    return _DIGEST.fullmatch(text) is not None


def is_format_directory(name: str) -> bool:
    """Whether a directory of this name below the root holds the entries of some format."""
    return _FORMAT_DIRECTORY.fullmatch(name) is not None


def _base(environment: Mapping[str, str], variable: str, below_home: str) -> Path:
    # The XDG specification has relative paths ignored.
    chosen = Path(environment.get(variable, ""))
    if chosen.is_absolute():
        return chosen
    home = environment.get("HOME", "")
    return (Path(home) if home else Path.home()) / below_home
