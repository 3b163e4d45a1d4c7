"""AMD's AITER library: whether it can be used, and the module itself."""

from typing import Any

from ir_kernels import machine


def availability() -> tuple[bool, str]:
    """Whether the package can be used here; else (False, why not). Imports nothing."""
    return machine.rocm_package("aiter")


def kernels() -> Any:
    """The package, imported on first use: that takes seconds and compiles."""
    import aiter  # noqa: A004, PLC0415  # pyright: ignore[reportMissingImports]

    return aiter
