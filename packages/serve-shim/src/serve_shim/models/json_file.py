"""Owns reading a JSON object from a checkpoint's file; refuses what is too large or no object."""

import json
from pathlib import Path

from serve_shim.errors import ModelLoadError
from serve_shim.models.fields import Fields

_MAX_BYTES = 64 << 20


def read_json_object(path: Path) -> Fields:
    """Parse `path`; raises `ModelLoadError` that names file, line and problem."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelLoadError(f"{path}: larger than {_MAX_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return Fields(value, str(path))
