"""The shared-memory collectives, with threads of one process for ranks: sums, parts, failures."""

import stat
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core.groups import GroupError
from ir_kernels import library
from ir_kernels.all_reduce.segment import Segment, new_name, open_segment, remove_name
from ir_kernels.library import kernels

pytestmark = pytest.mark.usefixtures("compiled")

SLOT_BYTES = 4096
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DIRECTORY = Path("/dev/shm")  # noqa: S108


def on_threads(size: int, function: Callable[[int], Any]) -> list[Future[Any]]:
    with ThreadPoolExecutor(size) as pool:
        return [pool.submit(function, rank) for rank in range(size)]


@contextmanager
def ranks(size: int, **options: Any) -> Generator[list[Segment]]:
    name = new_name()
    options = {"slot_bytes": SLOT_BYTES, "timeout_s": 20.0, **options}
    opened = [
        future.result()
        for future in on_threads(size, lambda rank: open_segment(name, "tp", rank, size, **options))
    ]
    try:
        yield opened
    finally:
        for segment in opened:
            segment.close()


def run(segments: list[Segment], call: Callable[[int, int], Any]) -> list[Any]:
    """What `call(handle, rank)` gives on each rank, all at once; exceptions included."""
    futures = on_threads(len(segments), lambda rank: call(segments[rank].handle, rank))
    return [future.exception() or future.result() for future in futures]


def values(rank: int, dtype: torch.dtype, *shape: int) -> Tensor:
    random = torch.Generator().manual_seed(rank)
    return (torch.randn(shape, generator=random) * 10.0 ** (rank % 3)).to(dtype)


def ordered_sum(size: int, dtype: torch.dtype, *shape: int) -> Tensor:
    total = values(0, dtype, *shape).float()
    for rank in range(1, size):
        total = total + values(rank, dtype, *shape).float()
    return total.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_sums_have_the_same_bits_on_every_isa(size: int, dtype: torch.dtype, isa: str) -> None:
    with ranks(size) as segments:
        for count in (1, 15, 16, 17, 500):
            got = run(
                segments,
                lambda handle, rank, count=count: kernels.shm_all_reduce.default(
                    handle, values(rank, dtype, count)
                ),
            )
            expected = ordered_sum(size, dtype, count)
            assert all(torch.equal(each, expected) for each in got), (count, isa)


# Of float32 a slot holds 4096 elements: around one and two slots, and several.
@pytest.mark.parametrize("count", [4095, 4096, 4097, 8192, 8193, 20000])
def test_tensors_larger_than_a_slot_go_in_parts(count: int) -> None:
    with ranks(3, slot_bytes=16384) as segments:
        shape = (count,)
        got = run(
            segments,
            lambda handle, rank: kernels.shm_all_reduce.default(
                handle, values(rank, torch.float32, *shape)
            ),
        )
        assert all(torch.equal(each, ordered_sum(3, torch.float32, *shape)) for each in got)
        scattered = run(
            segments,
            lambda handle, rank: kernels.shm_reduce_scatter.default(
                handle, values(rank, torch.float32, *shape)
            ),
        )
        assert torch.equal(torch.cat(scattered)[:count], ordered_sum(3, torch.float32, *shape))
        assert not torch.cat(scattered)[count:].any()
        gathered = run(
            segments,
            lambda handle, rank: kernels.shm_all_gather.default(handle, scattered[rank], count),
        )
        assert all(torch.equal(each, got[0]) for each in gathered)


@pytest.mark.parametrize("count", [16384, 16385, 50000])
def test_large_sums_are_shared_out_with_the_same_bits(count: int) -> None:
    with ranks(3, slot_bytes=65536) as segments:
        got = run(
            segments,
            lambda handle, rank: kernels.shm_all_reduce.default(
                handle, values(rank, torch.bfloat16, count)
            ),
        )
        assert all(torch.equal(each, ordered_sum(3, torch.bfloat16, count)) for each in got)


def test_strided_tensors_are_read_as_what_they_are() -> None:
    with ranks(2) as segments:
        got = run(
            segments,
            lambda handle, rank: kernels.shm_all_reduce.default(
                handle, values(rank, torch.float32, 6, 4).T[1:]
            ),
        )
        expected = ordered_sum(2, torch.float32, 6, 4).T[1:]
        assert all(torch.equal(each, expected) and each.is_contiguous() for each in got)


def test_no_rows_are_exchanged_too() -> None:
    with ranks(2) as segments:
        got = run(
            segments,
            lambda handle, _: kernels.shm_reduce_scatter.default(handle, torch.empty(0, 4)),
        )
        assert [each.shape for each in got] == [(0, 4)] * 2


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 37), (5, SLOT_BYTES), (0, 8)], ids=str)
def test_bytes_are_gathered_as_they_are(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """More than a slot holds too, and the last row is padding."""
    random = torch.Generator().manual_seed(0)
    all_bytes = torch.randint(256, (3, *shape), generator=random).to(torch.uint8)
    num_tokens = max(0, 3 * shape[0] - 1)
    with ranks(3) as segments:
        got = run(
            segments,
            lambda handle, rank: kernels.shm_all_gather.default(
                handle, all_bytes[rank].view(dtype), num_tokens
            ),
        )
    wanted = all_bytes.flatten(0, 1)[:num_tokens]
    assert all(each.dtype == dtype for each in got), got
    assert all(torch.equal(each.view(torch.uint8), wanted) for each in got)


def test_bytes_are_not_added_up_and_the_group_goes_on() -> None:
    with ranks(2) as segments:
        for op in (kernels.shm_all_reduce, kernels.shm_reduce_scatter):
            got = run(
                segments,
                lambda handle, _, op=op: op.default(handle, torch.zeros(2, 4, dtype=torch.int8)),
            )
            assert all("must be float32, bfloat16 or float16" in str(each) for each in got), got
        got = run(segments, lambda handle, _: kernels.shm_all_reduce.default(handle, torch.ones(2)))
        assert all(torch.equal(each, torch.full((2,), 2.0)) for each in got)


def test_more_rows_than_there_are_is_an_error_and_the_group_goes_on() -> None:
    with ranks(2) as segments:
        got = run(
            segments,
            lambda handle, _: kernels.shm_all_gather.default(handle, torch.zeros(3, 4), 7),
        )
        assert all("`num_tokens` is 7, and 2 ranks have 3 rows each" in str(each) for each in got)
        again = run(
            segments,
            lambda handle, _: kernels.shm_all_gather.default(handle, torch.zeros(3, 4), 6),
        )
        assert [each.shape for each in again] == [(6, 4)] * 2


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (torch.zeros(3, 4), torch.zeros(4, 3)),
        (torch.zeros(3, 4), torch.zeros(12)),
        (torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.bfloat16)),
    ],
    ids=["shape", "dims", "dtype"],
)
def test_different_tensors_are_an_error_on_both_ranks_and_break_the_group(
    mine: Tensor, theirs: Tensor
) -> None:
    with ranks(2) as segments:
        for words in ("#1: ", "#2: the group is broken since `all_reduce` #1"):
            got = run(
                segments,
                lambda handle, rank: kernels.shm_all_reduce.default(handle, (mine, theirs)[rank]),
            )
            assert all(isinstance(each, RuntimeError) for each in got), got
            assert all(words in str(each) for each in got), got


def test_different_ops_of_one_shape_are_an_error() -> None:
    calls = (kernels.shm_all_reduce.default, kernels.shm_reduce_scatter.default)
    with ranks(2) as segments:
        got = run(segments, lambda handle, rank: calls[rank](handle, torch.zeros(2, 2)))
        assert all(isinstance(each, RuntimeError) for each in got)
        assert all("`reduce_scatter` of float32 [2, 2]" in str(each) for each in got)


def test_a_rank_that_has_left_is_named_at_once() -> None:
    with ranks(2) as segments:
        segments[1].close()
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="#1: rank 1 has left the group"):
            kernels.shm_all_reduce.default(segments[0].handle, torch.zeros(2))
        assert time.monotonic() - start < 10
        with pytest.raises(RuntimeError, match=r"the shm segment \d+ is closed"):
            kernels.shm_all_reduce.default(segments[1].handle, torch.zeros(2))


def test_a_rank_that_does_not_come_is_named_after_the_timeout() -> None:
    with (
        ranks(3, timeout_s=0.2) as segments,
        pytest.raises(RuntimeError, match=r"#1: rank [12] did not come within 0.2 s"),
    ):
        kernels.shm_all_reduce.default(segments[0].handle, torch.zeros(2))


def test_a_rank_alone_gives_up_and_leaves_no_name() -> None:
    name = new_name()
    with pytest.raises(GroupError, match=r"axis `tp`, rank 0 of 2: rank 1 did not open .* 0.1 s"):
        open_segment(name, "tp", 0, 2, slot_bytes=SLOT_BYTES * 4, open_timeout_s=0.1)
    assert not (DIRECTORY / name[1:]).exists()


def test_without_rank_0_there_is_no_segment() -> None:
    with pytest.raises(GroupError, match=r"rank 0 did not make the segment within 0\.1 s"):
        open_segment(new_name(), "tp", 1, 2, open_timeout_s=0.1)


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_file_that_is_no_segment_is_refused(mode: int) -> None:
    name = new_name()
    path = DIRECTORY / name[1:]
    path.write_bytes(bytes(100))
    path.chmod(mode)
    try:
        with pytest.raises(GroupError, match="another user's, or was made with other numbers"):
            open_segment(name, "tp", 1, 2, open_timeout_s=0.1)
        with pytest.raises(GroupError, match="the segment cannot be made: File exists"):
            open_segment(name, "tp", 0, 2, open_timeout_s=0.1)
        assert path.exists()
    finally:
        remove_name(name)
    assert not path.exists()


def test_only_this_user_can_read_a_segment_and_its_name_goes_once_all_are_there() -> None:
    name = new_name()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(open_segment, name, "tp", 0, 2, open_timeout_s=1.0)
        path = DIRECTORY / name[1:]
        while not path.exists() and not waiting.done():
            time.sleep(0.001)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        segment = open_segment(name, "tp", 1, 2, open_timeout_s=1.0)
        other = waiting.result()
        assert not path.exists()
        segment.close()
        other.close()


def test_ranks_with_other_numbers_are_refused() -> None:
    name = new_name()
    sizes = (2, 3)
    futures = on_threads(
        2, lambda rank: open_segment(name, "tp", rank, sizes[rank], open_timeout_s=0.3)
    )
    errors = [future.exception() for future in futures]
    assert "was made with other numbers of ranks or bytes" in str(errors[1])
    assert "rank 1 did not open the segment" in str(errors[0])


@pytest.mark.parametrize(
    ("name", "rank", "size", "slot_bytes", "reason"),
    [
        ("/ir-a", 0, 1, SLOT_BYTES, "takes 2 to 64 ranks"),
        ("/ir-a", 2, 2, SLOT_BYTES, "takes 2 to 64 ranks"),
        ("/ir-a/b", 0, 2, SLOT_BYTES * 4, "a name starts with its only slash"),
        ("ir-a", 0, 2, SLOT_BYTES * 4, "a name starts with its only slash"),
        ("/ir-a", 0, 2, 100, "slots have at least 4096 bytes"),
    ],
)
def test_a_segment_that_cannot_be_says_why(
    name: str, rank: int, size: int, slot_bytes: int, reason: str
) -> None:
    with pytest.raises(GroupError, match=reason):
        open_segment(name, "tp", rank, size, slot_bytes=slot_bytes)


def test_memory_that_is_not_there_is_an_error_and_no_bus_error() -> None:
    with pytest.raises(GroupError, match=r"shared memory has no \d+ bytes left"):
        open_segment(new_name(), "tp", 0, 2, slot_bytes=1 << 44, open_timeout_s=0.1)


def test_missing_library_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "availability", lambda: (False, "no compiler"))
    with pytest.raises(GroupError, match="Axis `tp` cannot use shared memory: no compiler"):
        open_segment(new_name(), "tp", 0, 2)
