"""Owns memory in huge pages, where the system has them; refuses to know what lies in it.

On a virtual machine memory in small pages took a quarter to a half longer to read from end to end.
"""

import mmap
from contextlib import suppress
from pathlib import Path

import torch

HUGE_PAGE = 2 << 20
_SMAPS = Path("/proc/self/smaps")


class HugePages:
    """Zeroed memory of so many bytes or a little more, touched as it is first written.

    The first `small_bytes`, whole huge pages, are left in small ones, of which little is touched
    at a time. Raises `OSError` or `OverflowError` where the system does not give that much.
    """

    def __init__(self, num_bytes: int, small_bytes: int = 0) -> None:
        self.num_bytes = -(-num_bytes // HUGE_PAGE) * HUGE_PAGE
        # Private: shared memory has other rules for huge pages, and costs more to touch.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map = mmap.mmap(-1, self.num_bytes + HUGE_PAGE, flags=flags)
        address = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        self._start = -address % HUGE_PAGE
        self.address = address + self._start
        self._advise("MADV_NOHUGEPAGE", 0, min(small_bytes, self.num_bytes))
        self._advise("MADV_HUGEPAGE", small_bytes, self.num_bytes)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A contiguous tensor from that byte on, in its own storage; keeps the memory alive."""
        count = torch.Size(shape).numel()
        if offset + count * dtype.itemsize > self.num_bytes:
            raise ValueError(f"{shape} of {dtype} at {offset} ends behind {self.num_bytes} bytes")
        start = self._start + offset
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=start).view(shape)

    def _advise(self, advice: str, start: int, stop: int) -> None:
        """Ask for that from one byte to another; a system or a kernel may not know the advice."""
        if start < stop and hasattr(mmap, advice):
            with suppress(OSError):
                self._map.madvise(getattr(mmap, advice), self._start + start, stop - start)


def huge_bytes(regions: list[HugePages], smaps: Path = _SMAPS) -> int | None:
    """How much of them is in huge pages by now, in bytes; None where the system does not say.

    Other memory in huge pages counts, too, where the system has joined it to one of them.
    """
    try:
        lines = smaps.read_text(errors="replace").splitlines()
    except OSError:
        return None
    ours = [(each.address, each.address + each.num_bytes) for each in regions]
    in_ours, total = False, 0
    for line in lines:
        field, _, rest = line.partition(" ")
        if not field.endswith(":"):
            start, stop = (int(part, 16) for part in field.split("-"))
            in_ours = any(start < end and begin < stop for begin, end in ours)
        elif in_ours and field == "AnonHugePages:":
            total += int(rest.split()[0]) * 1024
    return total
