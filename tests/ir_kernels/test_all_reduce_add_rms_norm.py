"""Sum over ranks, add and norm as one op, with threads for ranks: the bits of the ops it is of."""

import itertools
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_kernels import library
from ir_kernels.all_reduce.segment import Segment, new_name, open_segment
from ir_kernels.fused_add_rms_norm.vllm_c import fused_add_rms_norm
from ir_kernels.library import kernels

pytestmark = pytest.mark.usefixtures("compiled")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOKENS = (0, 1, 7, 64)
HIDDEN = 37
# What a slot holds: 4096 of float32. 200 rows of 37 end within a row, and take two or more.
SLOT_BYTES = 16384
LARGE = 200
EPSILON = 1e-5
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Norm:
    """What a call has besides the ranks' tensors."""

    residual: Tensor
    weight: Tensor | None
    variance_size: int | None = None


@contextmanager
def ranks(size: int, slot_bytes: int = SLOT_BYTES) -> Generator[list[Segment]]:
    name = new_name()

    def opened(rank: int) -> Segment:
        options = {"slot_bytes": slot_bytes, "timeout_s": TIMEOUT_S}
        return open_segment(name, "tp", rank, size, **options)  # type: ignore[arg-type]

    with ThreadPoolExecutor(size) as pool:
        segments = list(pool.map(opened, range(size)))
    try:
        yield segments
    finally:
        for segment in segments:
            segment.close()


def on_ranks(segments: list[Segment], call: Callable[[int, int], Any]) -> list[Any]:
    """What `call(handle, rank)` gives on each rank, all at once; exceptions included."""

    def one(rank: int) -> Any:
        try:
            return call(segments[rank].handle, rank)
        except RuntimeError as error:
            return error

    with ThreadPoolExecutor(len(segments)) as pool:
        return list(pool.map(one, range(len(segments))))


def fused(handle: int, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    return kernels.shm_all_reduce_add_rms_norm.default(
        handle, x, norm.residual, norm.weight, EPSILON, norm.variance_size
    )


def composed(handle: int, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    total = kernels.shm_all_reduce.default(handle, x)
    residual = norm.residual.clone(memory_format=torch.contiguous_format)
    return fused_add_rms_norm(total, residual, norm.weight, EPSILON, norm.variance_size)


def part(rank: int, dtype: torch.dtype, *shape: int) -> Tensor:
    """Of such magnitudes that the order of a sum, and where it is rounded, show in its bits."""
    random = torch.Generator().manual_seed(rank)
    return (torch.randn(shape, generator=random) * 10.0 ** (rank % 3)).to(dtype)


def norm_of(dtype: torch.dtype, *shape: int, weight: torch.dtype | None = None) -> Norm:
    return Norm(part(10, dtype, *shape), 1 + part(12, weight or dtype, shape[-1]) / 8)


def assert_composition(segments: list[Segment], norm: Norm, *shape: int) -> None:
    """On every rank what rank 0 gets of the two ops, and the operands as they were."""
    dtype, before = norm.residual.dtype, norm.residual.clone()
    parts = [part(rank, dtype, *shape) for rank in range(len(segments))]
    copies = [each.clone() for each in parts]
    wanted = on_ranks(segments, lambda handle, rank: composed(handle, parts[rank], norm))[0]
    for got in on_ranks(segments, lambda handle, rank: fused(handle, parts[rank], norm)):
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1], wanted[1])
        assert all(each.is_contiguous() for each in got)
    assert all(map(torch.equal, parts, copies))
    assert torch.equal(norm.residual, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_gets_the_bits_of_the_two_ops(size: int, dtype: torch.dtype) -> None:
    with ranks(size) as segments:
        for tokens in (*TOKENS, LARGE):
            assert_composition(segments, norm_of(dtype, tokens, HIDDEN), tokens, HIDDEN)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_may_be_longer_than_a_slot(dtype: torch.dtype) -> None:
    with ranks(3) as segments:
        assert_composition(segments, norm_of(dtype, 3, 10_001), 3, 10_001)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [3, 4])
def test_large_parts_are_shared_out_with_the_same_bits(size: int, dtype: torch.dtype) -> None:
    # A slot holds 4 rows of 4 ranks, or 8; all parts but the last are large.
    hidden = 4096
    with ranks(size, slot_bytes=65536) as segments:
        for tokens in (2, 3, 4, 5, 6, 7, 8, 9, 19):
            assert_composition(segments, norm_of(dtype, tokens, hidden), tokens, hidden)


def test_rows_may_end_where_slots_do() -> None:
    with ranks(2) as segments:
        for tokens in (63, 64, 65, 128):
            assert_composition(segments, norm_of(torch.float32, tokens, 64), tokens, 64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_isa_gives_the_same_bits(isa: str, dtype: torch.dtype) -> None:
    norm = norm_of(dtype, 5, 50)
    with ranks(2) as segments:

        def call(handle: int, rank: int) -> tuple[Tensor, Tensor]:
            return fused(handle, part(rank, dtype, 5, 50), norm)

        got = on_ranks(segments, call)[0]
        library.set_isa("portable")  # the fixture restores what was
        wanted = on_ranks(segments, call)[0]
    assert all(map(torch.equal, got, wanted)), isa


def test_weight_and_statistics_are_those_of_the_norm() -> None:
    shape = (7, HIDDEN)
    residual = part(10, torch.bfloat16, *shape)
    weights = (None, norm_of(torch.bfloat16, *shape).weight, part(12, torch.float32, HIDDEN))
    with ranks(2) as segments:
        for weight, size in itertools.product(weights, (None, 20, -1)):
            assert_composition(segments, Norm(residual, weight, size), *shape)


def test_strided_operands_are_read_as_what_they_are() -> None:
    norm = Norm(part(10, torch.float32, 6, 8).T[1:], part(12, torch.float32, 12)[::2])
    with ranks(2) as segments:
        got = on_ranks(
            segments,
            lambda handle, rank: fused(handle, part(rank, torch.float32, 6, 9).T[2:], norm),
        )
        wanted = on_ranks(
            segments,
            lambda handle, rank: composed(handle, part(rank, torch.float32, 6, 9).T[2:], norm),
        )
    for mine, theirs in zip(got, wanted, strict=True):
        assert all(map(torch.equal, mine, theirs))


def test_rows_may_have_more_dims_than_one() -> None:
    with ranks(2) as segments:
        assert_composition(segments, norm_of(torch.float16, 5, 3, HIDDEN), 5, 3, HIDDEN)


def test_another_op_of_one_shape_is_an_error_that_names_both() -> None:
    norm = norm_of(torch.float32, 2, 4)
    with ranks(2) as segments:
        got = on_ranks(
            segments,
            lambda handle, rank: (
                fused(handle, torch.zeros(2, 4), norm)
                if rank
                else kernels.shm_all_reduce.default(handle, torch.zeros(2, 4))
            ),
        )
    assert all(isinstance(each, RuntimeError) for each in got), got
    assert "`all_reduce_add_rms_norm` of float32 [2, 4]" in str(got[0])


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (norm_of(torch.float32, 3, 4), "`x` and `x_residual` must have the same dtype and shape"),
        (norm_of(torch.float16, 2, 4), "`x` and `x_residual` must have the same dtype and shape"),
        (Norm(torch.zeros(2, 4), torch.ones(3)), "`weight` must be a vector of 4 elements"),
    ],
    ids=["shape", "dtype", "weight"],
)
def test_operands_that_do_not_fit_are_an_error_and_the_group_goes_on(
    norm: Norm, words: str
) -> None:
    with ranks(2) as segments:
        got = on_ranks(segments, lambda handle, _: fused(handle, torch.zeros(2, 4), norm))
        assert all(isinstance(each, RuntimeError) and words in str(each) for each in got), got
        assert_composition(segments, norm_of(torch.float32, 2, 4), 2, 4)
