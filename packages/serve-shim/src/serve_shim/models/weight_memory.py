"""Owns where the parameters of a model lie; refuses to fill them."""

import torch
from torch import nn

from serve_shim.errors import ModelLoadError
from serve_shim.huge_pages import HugePages, huge_bytes

_REGION = 64 << 20
_ALIGNMENT = 64


class WeightMemory:
    """Uninitialised parameters on one device; those of a CPU lie close together, in huge pages.

    Each has a storage of its own. What they lie in lives as long as any of them.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self._regions: list[HugePages] = []
        self._next = 0  # in the last region

    def parameter(self, *shape: int, dtype: torch.dtype) -> nn.Parameter:
        """A parameter that never requires a gradient.

        Raises `ModelLoadError` where the system gives no more memory.
        """
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        if num_bytes == 0 or (self.device is not None and self.device.type != "cpu"):
            values = torch.empty(shape, dtype=dtype, device=self.device)
        else:
            region, offset = self._take(num_bytes)
            values = region.tensor(shape, dtype, offset)
        return nn.Parameter(values, requires_grad=False)

    def huge_bytes(self) -> int | None:
        """Bytes of it in huge pages by now; None on other devices, or where nothing says."""
        return huge_bytes(self._regions) if self._regions else None

    def _take(self, num_bytes: int) -> tuple[HugePages, int]:
        if not self._regions or self._regions[-1].num_bytes - self._next < num_bytes:
            self._regions.append(_map(max(num_bytes, _REGION)))
            self._next = 0
        offset, self._next = self._next, self._next + -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return self._regions[-1], offset


def _map(num_bytes: int) -> HugePages:
    try:
        return HugePages(num_bytes)
    except (OSError, OverflowError) as error:
        raise ModelLoadError(
            f"the system gives no {num_bytes} bytes more for weights ({error}); free memory, or "
            "load fewer bits of each weight"
        ) from error
