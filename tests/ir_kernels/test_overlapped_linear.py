"""Products merged with a collective: the numbers of the two ops, whatever the count of rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from shm_ranks import run_on_shm_ranks
from torch import Tensor
from torch.nn import functional

import ir_core as ir
from ir_core import groups
from ir_core.groups import CollectiveError, Group
from ir_kernels import all_gather_linear, linear_reduce_scatter, rank_products, symmetric_memory

FOLDERS: dict[str, Any] = {
    "linear_reduce_scatter": linear_reduce_scatter,
    "all_gather_linear": all_gather_linear,
}
WIDTH, OUT = 24, 40
COUNTS = (0, 1, 2, 7, 64)
DTYPES = (torch.float32, torch.bfloat16)
LAYOUTS = ("plain", "panel16")
X, WEIGHT = torch.zeros(4, WIDTH), torch.zeros(OUT, WIDTH)

_ON_A_GPU = """
import sys

import torch
from torch import distributed

import ir_core as ir
from ir_core.groups import Group, set_group

rank, store = int(sys.argv[1]), sys.argv[2]
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
distributed.init_process_group("nccl", f"file://{store}", rank=rank, world_size=2)
set_group(Group("tp", rank, 2, {"nccl": distributed.group.WORLD}))
random = torch.Generator(device).manual_seed(rank)
for count in (0, 1, 2, 7, 64, 3000):
    for dtype in (torch.bfloat16, torch.float32):
        make = lambda *shape: torch.randn(shape, generator=random, device=device).to(dtype)
        x, mine, weight = make(count, 64), make(-(-count // 2), 64), make(48, 64) / 8
        calls = {
            ir.ops.linear_reduce_scatter: (x, weight),
            ir.ops.all_gather_linear: (mine, count, weight),
        }
        for op, call in calls.items():
            assert op.select(*call).provider == "symm_mem", op.select(*call)
        scattered = ir.ops.linear_reduce_scatter(x, weight)
        joined = ir.ops.all_gather_linear(mine, count, weight)
        wanted = ir.ops.reduce_scatter(ir.ops.linear(x, weight))
        torch.testing.assert_close(scattered, wanted, rtol=2e-2, atol=2e-2)
        wanted = ir.ops.linear(ir.ops.all_gather(mine, count), weight)
        torch.testing.assert_close(joined, wanted, rtol=2e-2, atol=2e-2)
distributed.destroy_process_group()
"""


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of some rows, so that small tensors take several."""
    monkeypatch.setattr(rank_products, "_STEP_ROWS", 8)


def values(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def products(rank: int, dtype: torch.dtype, layout: str) -> tuple[Tensor, Tensor, str]:
    """A weight, a bias, and the layout, in which the weight is."""
    weight, bias = values(rank, OUT, WIDTH, dtype=dtype) / 5, values(rank + 9, OUT, dtype=dtype)
    packed = ir.ops.linear.pack((X.to(dtype), weight, bias, "plain"), layout)
    return packed[1], bias, layout


def close(got: Tensor, wanted: Tensor) -> None:
    """The rows are fewer at a time, and a product may sum in another order for fewer."""
    limit = 2e-6 if got.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, wanted, rtol=limit, atol=limit)
    assert got.is_contiguous()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.usefixtures("few_rows")
def test_scattered_products_are_those_of_the_two_ops(
    size: int, dtype: torch.dtype, layout: str
) -> None:
    def on_rank(rank: int) -> list[tuple[Tensor, Tensor]]:
        operands = products(rank, dtype, layout)
        found: list[tuple[Tensor, Tensor]] = []
        for count in COUNTS:
            x = values(100 * count + rank, count, WIDTH, dtype=dtype)
            wanted = ir.ops.reduce_scatter(ir.ops.linear(x, *operands))
            found.append((ir.ops.linear_reduce_scatter(x, *operands), wanted))
        return found

    for rank in run_on_shm_ranks(size, on_rank):
        for got, wanted in rank:
            close(got, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.usefixtures("few_rows")
def test_products_of_gathered_rows_are_those_of_the_two_ops(
    size: int, dtype: torch.dtype, layout: str
) -> None:
    def on_rank(rank: int) -> list[tuple[Tensor, Tensor]]:
        operands = products(rank, dtype, layout)
        found: list[tuple[Tensor, Tensor]] = []
        for count in COUNTS:
            num_rows = -(-count // size)
            x = values(100 * count + rank, num_rows, WIDTH, dtype=dtype)
            x[max(0, min(count - rank * num_rows, num_rows)) :] = torch.nan  # padding
            wanted = ir.ops.linear(ir.ops.all_gather(x, count), *operands)
            found.append((ir.ops.all_gather_linear(x, count, *operands), wanted))
        return found

    for rank in run_on_shm_ranks(size, on_rank):
        for got, wanted in rank:
            close(got, wanted)
            assert not got.isnan().any()


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("size", [2, 3])
def test_rows_behind_the_last_are_zero(size: int) -> None:
    """Even where a bias would fill them."""

    def on_rank(rank: int) -> Tensor:
        operands = products(rank, torch.float32, "plain")
        return ir.ops.linear_reduce_scatter(values(rank, 19, WIDTH), *operands)

    rows = torch.cat(run_on_shm_ranks(size, on_rank))
    assert rows[:19].any(dim=1).all()
    assert not rows[19:].any()


@pytest.fixture
def batch_invariance() -> Iterator[None]:
    ir.set_batch_invariant(True)
    yield
    ir.set_batch_invariant(None)


@pytest.mark.usefixtures("few_rows", "batch_invariance")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_are_the_same_where_the_product_is_batch_invariant(dtype: torch.dtype) -> None:
    def on_rank(rank: int) -> tuple[list[Tensor], list[Tensor]]:
        operands = products(rank, dtype, "plain")
        x = values(rank, 65, WIDTH, dtype=dtype)
        rows = ir.ops.reduce_scatter(ir.ops.linear(x, *operands))
        got = ir.ops.linear_reduce_scatter(x, *operands)
        mine = got[:, :WIDTH].contiguous()
        joined = ir.ops.linear(ir.ops.all_gather(mine, 65), *operands)
        return [got, ir.ops.all_gather_linear(mine, 65, *operands)], [rows, joined]

    for got, wanted in run_on_shm_ranks(2, on_rank):
        assert all(map(torch.equal, got, wanted))


@pytest.mark.usefixtures("few_rows")
def test_rows_of_several_dims_stay_together() -> None:
    def on_rank(rank: int) -> list[Tensor]:
        weight = products(rank, torch.float32, "plain")[0]
        x, mine = values(rank, 11, 2, WIDTH), values(rank, 6, 2, WIDTH)
        return [
            ir.ops.linear_reduce_scatter(x, weight),
            ir.ops.reduce_scatter(ir.ops.linear(x, weight)),
            ir.ops.all_gather_linear(mine, 11, weight),
            ir.ops.linear(ir.ops.all_gather(mine, 11), weight),
        ]

    for scattered, rows, joined, wanted in run_on_shm_ranks(2, on_rank):
        close(scattered, rows)
        close(joined, wanted)


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("count", [-1, 23])
def test_more_rows_than_there_are_is_an_error(count: int) -> None:
    with pytest.raises(CollectiveError, match=r"`all_gather_linear` by shm .*`num_tokens` is"):
        run_on_shm_ranks(2, lambda _: ir.ops.all_gather_linear(values(0, 11, WIDTH), count, WEIGHT))


@pytest.mark.parametrize("size", [2, 3, 4, 64])
def test_steps_cover_the_rows_once_and_are_few(size: int) -> None:
    for num_rows in (0, 1, 255, 256, 257, 511, 1000):
        parts = rank_products.steps(num_rows, size)
        assert [row for begin, end in parts for row in range(begin, end)] == list(range(num_rows))
        assert len(parts) <= 1 + size * num_rows // 512


def reasons(name: str, x: Tensor, *rest: Any) -> dict[str, str]:
    op = ir.registry()[name]
    x_and_count = (x, x.shape[0]) if name == "all_gather_linear" else (x,)
    with ir.priority({name: ["shm", "gloo", "symm_mem"]}):
        selection = op.select(*x_and_count, *rest)
    return {each.provider: each.reason for each in selection.rejections}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_a_provider_cannot_take_is_its_reason(name: str) -> None:
    with groups.scoped_groups(Group("tp", 0, 2, {"shm": object(), "gloo": object()})):
        assert reasons(name, X.double(), WEIGHT.double())["gloo"] == (
            "takes float32, bfloat16, float16; x has float64"
        )
        assert reasons(name, X, WEIGHT.half())["gloo"] == (
            "needs one dtype for both; x has float32, weight float16"
        )
        assert reasons(name, X, WEIGHT, torch.zeros(OUT).half())["gloo"] == (
            "needs one dtype for both; x has float32, bias float16"
        )
    with groups.scoped_groups(Group("tp", 0, 2)):
        assert "no transport `gloo`" in reasons(name, X[:0], WEIGHT)["gloo"]
    assert reasons(name, X, WEIGHT)["gloo"] == "is for several ranks, and axis `tp` has one"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU")
@pytest.mark.parametrize("name", FOLDERS)
def test_symm_mem_says_what_is_missing(name: str) -> None:
    found = ir.registry()[name].implementations["symm_mem"]
    assert not found.supported
    assert found.unsupported_reason.startswith("needs an NVIDIA GPU; ")


@pytest.mark.parametrize(
    ("x", "weight", "bias", "reason"),
    [
        ((4, 16), (8, 16), None, ""),
        ((4, 16), (8, 16), (8,), "adds no bias, and afterwards it would be rounded twice"),
        ((4, 12), (8, 12), None, "takes rows of whole 16 bytes; those of x have 12 elements"),
        ((4, 16), (9, 16), None, "takes rows of whole 16 bytes; those of the product have 9"),
        ((16,), (8, 16), None, "takes rows, two dims at least; x has 1"),
    ],
    ids=["fits", "bias", "x", "product", "vector"],
)
def test_symm_mem_takes_aligned_rows_without_a_bias(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    bias: tuple[int, ...] | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(symmetric_memory, "_DEVICE", "meta")

    def given(shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    with groups.scoped_groups(Group("tp", 0, 2, {"nccl": object()})):
        found = linear_reduce_scatter.symm_mem.supports_args(
            given(x), given(weight), None if bias is None else given(bias)
        )
    assert found is True if not reason else str(found).startswith(reason)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_symm_mem_computes_what_the_two_ops_do(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _ON_A_GPU, str(rank), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], errors


class Fused:
    """Torch's fused ops as their meaning in a group whose ranks all have the same operands."""

    def __init__(self, size: int) -> None:
        self._size = size

    def fused_matmul_reduce_scatter(
        self, a: Tensor, b: Tensor, reduce_op: str, scatter_dim: int, group_name: str
    ) -> Tensor:
        assert (reduce_op, scatter_dim, group_name) == ("sum", 0, "ranks")
        assert a.shape[0] % self._size == 0
        return (a @ b).chunk(self._size)[0] * self._size

    def fused_all_gather_matmul(
        self,
        a: Tensor,
        bs: list[Tensor],
        gather_dim: int,
        group_name: str,
        *,
        return_A: bool,
    ) -> tuple[None, list[Tensor]]:
        assert (gather_dim, group_name, return_A) == (0, "ranks", False)
        return None, [torch.cat([a] * self._size) @ b for b in bs]


class NamedGroup:
    group_name = "ranks"


@pytest.mark.parametrize("count", COUNTS)
def test_symm_mem_pads_to_a_multiple_of_the_ranks_and_cuts(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symmetric_memory, "ops", lambda: Fused(3))
    x, weight, num_rows = values(count, count, WIDTH), values(1, OUT, WIDTH), -(-count // 3)
    padded = functional.pad(x, (0, 0, 0, 3 * num_rows - count))
    with groups.scoped_groups(Group("tp", 0, 3, {"nccl": NamedGroup()})):
        rows = linear_reduce_scatter.symm_mem.linear_reduce_scatter(x, weight)
        joined = all_gather_linear.symm_mem.all_gather_linear(padded[:num_rows], count, weight)
    close(rows, 3 * functional.linear(padded[:num_rows], weight))
    close(joined, functional.linear(torch.cat([padded[:num_rows]] * 3)[:count], weight))
