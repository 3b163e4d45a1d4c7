"""Owns the list of families and finds one by its name in a checkpoint; refuses unknown names."""

import difflib
from collections.abc import Sequence

from serve_shim.errors import ModelLoadError
from serve_shim.models.family import Family
from serve_shim.models.llama import LLAMA
from serve_shim.models.mistral import MISTRAL
from serve_shim.models.qwen2 import QWEN2
from serve_shim.models.qwen3 import QWEN3

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2, QWEN3)


def find_family(architectures: Sequence[str], where: str) -> Family:
    """Return the family of the first known name in a config's `architectures`.

    Raises `ModelLoadError` that lists the supported ones.
    """
    known = {family.architecture: family for family in FAMILIES}
    for name in architectures:
        if name in known:
            return known[name]
    raise _unknown(", ".join(architectures), list(known), where)


def find_gguf_family(architecture: str, where: str) -> Family:
    """Return the family that GGUF calls `architecture`; raises `ModelLoadError` otherwise."""
    known = {family.gguf_architecture: family for family in FAMILIES if family.gguf_architecture}
    if architecture in known:
        return known[architecture]
    raise _unknown(architecture, [name for name in known if name], where)


def _unknown(name: str, known: list[str], where: str) -> ModelLoadError:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    hint = f" (close to `{close[0]}`, but not the same maths)" if close else ""
    return ModelLoadError(
        f"{where}: architecture `{name[:80]}` is not supported{hint}; supported: {', '.join(known)}"
    )
