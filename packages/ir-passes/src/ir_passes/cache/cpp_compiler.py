"""Which C++ compiler Inductor would run, told by its file: no process is started."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def compiler_digest(environment: Mapping[str, str] = os.environ) -> str | None:
    """Name and digest of the compiler's file; None where there is none to be found."""
    command = environment.get("CXX", "g++").split()
    found = shutil.which(command[0], path=environment.get("PATH")) if command else None
    if found is None:
        return None
    path = Path(os.path.realpath(found))
    try:
        return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError:
        return None
