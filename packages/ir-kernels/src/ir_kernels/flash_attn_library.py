"""The flash-attn package (FlashAttention 2): whether it can be used, and the module itself."""

from typing import Any

from ir_kernels import machine


def availability() -> tuple[bool, str]:
    """Whether the package can be used here; else (False, why not). Imports nothing."""
    return machine.cuda_package("flash_attn")


def kernels() -> Any:
    """The package, imported on first use."""
    import flash_attn  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    return flash_attn
