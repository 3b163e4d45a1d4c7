"""Memory is aligned, zeroed, in huge pages where there are any, and lives as long as is needed."""

import gc
import mmap
from pathlib import Path

import pytest
import torch

from serve_shim.huge_pages import HugePages, huge_bytes

_MIB = 2**20


@pytest.fixture
def has_huge_pages() -> None:
    """Skips where this system gives none, for any of its reasons."""
    memory = HugePages(8 * _MIB)
    memory.tensor((8 * _MIB,), torch.uint8).fill_(1)
    if not huge_bytes([memory]):
        pytest.skip("this system gives no huge pages")


def _written(memory: HugePages, num_bytes: int, offset: int = 0) -> int:
    """How many more bytes are in huge pages once so many are written."""
    before = huge_bytes([memory])
    memory.tensor((num_bytes,), torch.uint8, offset).fill_(1)
    after = huge_bytes([memory])
    assert before is not None
    assert after is not None
    return after - before


def test_a_tensor_begins_where_it_is_asked_to() -> None:
    memory = HugePages(3 * _MIB)
    assert memory.num_bytes == 4 * _MIB
    assert memory.address % (2 * _MIB) == 0
    tensor = memory.tensor((3, 5), torch.bfloat16, 64)
    assert tensor.data_ptr() == memory.address + 64
    assert tensor.shape == (3, 5)
    assert tensor.is_contiguous()
    assert tensor.eq(0).all()


def test_all_of_it_can_be_used() -> None:
    memory = HugePages(2 * _MIB)
    tensor = memory.tensor((2 * _MIB,), torch.uint8)
    tensor[-1] = 7
    assert memory.tensor((1,), torch.uint8, 2 * _MIB - 1).item() == 7
    with pytest.raises(ValueError, match="ends behind 2097152 bytes"):
        memory.tensor((2,), torch.uint8, 2 * _MIB - 1)


def test_each_tensor_has_a_storage_of_its_own() -> None:
    # What looks for aliases compares storages.
    memory = HugePages(1)
    first, second = memory.tensor((4,), torch.float32), memory.tensor((4,), torch.float32, 64)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert first.untyped_storage().nbytes() == 16
    assert second.storage_offset() == 0


def test_a_tensor_outlives_its_memory() -> None:
    tensor = HugePages(_MIB).tensor((_MIB,), torch.uint8)
    tensor.fill_(3)
    gc.collect()
    assert tensor.eq(3).all()


@pytest.mark.usefixtures("has_huge_pages")
def test_what_is_written_is_in_huge_pages() -> None:
    assert _written(HugePages(8 * _MIB), 8 * _MIB) > 0


@pytest.mark.usefixtures("has_huge_pages")
def test_the_first_part_can_be_left_in_small_pages() -> None:
    memory = HugePages(12 * _MIB, small_bytes=4 * _MIB)
    assert _written(memory, 4 * _MIB) == 0
    assert _written(memory, 8 * _MIB, 4 * _MIB) > 0
    assert HugePages(_MIB, small_bytes=4 * _MIB).tensor((4,), torch.uint8).sum() == 0


def test_huge_pages_of_others_are_not_counted(tmp_path: Path) -> None:
    memory = HugePages(4 * _MIB)
    start, smaps = memory.address, tmp_path / "smaps"
    smaps.write_text(
        f"{start - 4096:x}-{start:x} rw-p 00000000 00:00 0\nAnonHugePages:   1024 kB\n"
        f"{start:x}-{start + 4 * _MIB:x} rw-p 00000000 00:00 0 [anon: weights]\n"
        "AnonHugePages:   2048 kB\nShmemPmdMapped: 4096 kB\nVmFlags:\n"
        f"{start + 4 * _MIB:x}-{start + 8 * _MIB:x} rw-p 00000000 00:00 0\n"
        "AnonHugePages:   4096 kB\n"
    )
    assert huge_bytes([memory], smaps) == 2 * _MIB
    assert huge_bytes([memory], tmp_path / "missing") is None


def test_a_system_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999, raising=False)  # which no kernel knows
    assert HugePages(1).tensor((4,), torch.float32).fill_(1).sum() == 4
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert HugePages(1).tensor((4,), torch.float32).fill_(1).sum() == 4


def test_more_than_there_is_is_an_error() -> None:
    with pytest.raises(OSError, match="Cannot allocate"):
        HugePages(2**62)
    with pytest.raises(OverflowError):
        HugePages(2**64)
