"""The FlashInfer package: whether it can be used, and its planned attention for each device."""

from functools import cache
from typing import Any

import torch

from ir_kernels import machine

WORKSPACE_BYTES = 128 << 20
"""What the library asks for: partial results of keys that it splits."""


def availability() -> tuple[bool, str]:
    """Whether the package can be used here; else (False, why not). Imports nothing."""
    return machine.cuda_package("flashinfer")


@cache
def paged_prefill(device: torch.device) -> Any:
    """The library's wrapper for caches [blocks, 2, heads, block size, head size], with its memory.

    There is one for a device: a plan holds until the next one, so one thread may use it.
    """
    import flashinfer  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, kv_layout="HND")
