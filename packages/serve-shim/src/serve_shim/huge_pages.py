"""Owns memory in huge pages, where the system has them; refuses to know what lies in it.

Looking up the addresses of small pages takes a third of the time of reading memory from end to end.
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
        num_huge = self.num_bytes - small_bytes
        if num_huge > 0 and hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
            with suppress(OSError):  # a kernel without huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE, self._start + small_bytes, num_huge)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A contiguous tensor from that byte on, in its own storage; keeps the memory alive."""
        count = torch.Size(shape).numel()
        start = self._start + offset
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=start).view(shape)


def huge_bytes(regions: list[HugePages], smaps: Path = _SMAPS) -> int:
    """How much of them is in huge pages by now, in bytes; 0 where the system does not say.

    Other memory in huge pages counts, too, where the system has joined it to one of them.
    """
    ours = [(each.address, each.address + each.num_bytes) for each in regions]
    in_ours, total = False, 0
    with suppress(OSError):
        for line in smaps.read_text().splitlines():
            field, value, *_ = line.split()
            if not field.endswith(":"):
                start, stop = (int(part, 16) for part in field.split("-"))
                in_ours = any(start < end and begin < stop for begin, end in ours)
            elif in_ours and field == "AnonHugePages:":
                total += int(value) * 1024
    return total
