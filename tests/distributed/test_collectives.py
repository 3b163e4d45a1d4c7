"""Collectives and `run_on_ranks` on real ranks: results, agreement, and how ranks can fail."""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
import ir_passes
from ir_core import groups
from ir_kernels import all_gather, all_reduce, all_reduce_add_rms_norm, library, reduce_scatter
from ir_kernels.fused_add_rms_norm import vllm_c
from ir_passes.config import CompilationConfig
from serve_shim.testing import RankError, RankSessionError, RaySession

PROVIDERS = ("gloo", "shm") if library.availability()[0] else ("gloo",)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# One and two rows leave ranks without any, 3 and 7 are divided by few sizes, 64 by most.
TOKENS = (0, 1, 2, 3, 7, 64)
HIDDEN = 37
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
# More than a slot of any collective holds, in parts that divide neither rows nor slots.
LARGE = (65, 1031)
FOLDERS = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "all_reduce_add_rms_norm": all_reduce_add_rms_norm,
}
EPSILON = 1e-5

Case = tuple[str, torch.dtype, tuple[int, int]]
Results = dict[str, dict[Case, Tensor]]

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this torch has no gloo"
)


@dataclass(frozen=True)
class World:
    """What each rank of a world got."""

    size: int
    ranks: list[Results]

    def cases(self) -> Iterator[tuple[str, Case, torch.dtype, tuple[int, int]]]:
        for provider in PROVIDERS:
            for dtype, shape in all_shapes():
                yield provider, (provider, dtype, shape), dtype, shape

    def of(self, op: str, case: Case) -> list[Tensor]:
        return [results[op][case] for results in self.ranks]


@pytest.fixture(scope="module")
def session() -> Iterator[RaySession]:
    with RaySession() as ranks:
        yield ranks


@pytest.fixture(scope="module", params=[2, 3, 4])
def world(request: pytest.FixtureRequest, session: RaySession) -> World:
    return World(request.param, session.run_on_ranks(request.param, all_results))


def all_shapes() -> Iterator[tuple[torch.dtype, tuple[int, int]]]:
    yield from itertools.product(DTYPES, [*((tokens, HIDDEN) for tokens in TOKENS), LARGE])


def values(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """What a rank brings; of such magnitudes that the order of a sum shows in its bits."""
    random = torch.Generator().manual_seed(1000 * rank + shape[0])
    return (torch.randn(shape, generator=random) * 10.0 ** (rank % 3)).to(dtype)


def reference_sum(size: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    total = values(0, dtype, shape).float()
    for rank in range(1, size):
        total = total + values(rank, dtype, shape).float()
    return total.to(dtype)


def residual_of(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The same on every rank."""
    return values(100, dtype, shape)


def num_rows(tokens: int, size: int) -> int:
    return -(-tokens // size)


@contextlib.contextmanager
def using(provider: str) -> Generator[None]:
    for op, folder in FOLDERS.items():
        folder.register(ir.registry()[op])
    with ir.priority({op: [provider] for op in FOLDERS}):
        yield


def all_results() -> Results:
    rank, size = groups.get_group("tp").rank, groups.get_group("tp").size
    results: Results = {op: {} for op in FOLDERS}
    for provider in PROVIDERS:
        with using(provider):
            for dtype, shape in all_shapes():
                case = (provider, dtype, shape)
                x = values(rank, dtype, shape)
                results["all_reduce"][case] = ir.ops.all_reduce(x)
                results["reduce_scatter"][case] = ir.ops.reduce_scatter(x)
                rows = poisoned_rows(x, rank, size)
                results["all_gather"][case] = ir.ops.all_gather(rows, shape[0])
                norm = (x, residual_of(dtype, shape), None, EPSILON)
                pair = ir.ops.all_reduce_add_rms_norm(*norm)
                results["all_reduce_add_rms_norm"][case] = torch.stack(pair)
                for op, arguments in (
                    ("all_reduce", (x,)),
                    ("all_gather", (rows, shape[0])),
                    ("all_reduce_add_rms_norm", norm),
                ):
                    assert ir.select(op, *arguments).provider == provider
    return results


def poisoned_rows(x: Tensor, rank: int, size: int) -> Tensor:
    """A rank's rows of its own values, with NaN for padding."""
    count = num_rows(x.shape[0], size)
    rows = x.new_full((count, x.shape[1]), float("nan"))
    there = x[rank * count : (rank + 1) * count]
    rows[: there.shape[0]] = there
    return rows


def test_all_reduce_is_the_sum_in_order_of_ranks_on_every_rank(world: World) -> None:
    for _, case, dtype, shape in world.cases():
        expected = reference_sum(world.size, dtype, shape)
        assert all(torch.equal(got, expected) for got in world.of("all_reduce", case)), case


def test_reduce_scatter_gives_each_rank_its_rows_and_zeros_behind_them(world: World) -> None:
    for _, case, dtype, shape in world.cases():
        padded = torch.zeros(num_rows(shape[0], world.size) * world.size, shape[1], dtype=dtype)
        padded[: shape[0]] = reference_sum(world.size, dtype, shape)
        assert torch.equal(torch.cat(world.of("reduce_scatter", case)), padded), case


def test_all_gather_gives_all_rows_and_no_padding(world: World) -> None:
    for _, case, dtype, shape in world.cases():
        count = num_rows(shape[0], world.size)
        everyones = [values(rank, dtype, shape) for rank in range(world.size)]
        expected = torch.cat(
            [x[rank * count : (rank + 1) * count] for rank, x in enumerate(everyones)]
        )
        assert all(torch.equal(got, expected) for got in world.of("all_gather", case)), case


def test_quantised_rows_are_gathered_as_bytes(session: RaySession) -> None:
    wanted = torch.arange(9 * HIDDEN).to(torch.uint8).view(9, HIDDEN)[:7]
    for gathered in session.run_on_ranks(3, gathered_bytes):
        assert len(gathered) == 2 * len(PROVIDERS)
        assert all(torch.equal(each, wanted) for each in gathered)


def gathered_bytes() -> list[Tensor]:
    """What each provider makes of a rank's rows of both dtypes, 7 on 3 ranks: as plain bytes."""
    rank = groups.get_group("tp").rank
    found: list[Tensor] = []
    for provider in PROVIDERS:
        with using(provider):
            for dtype in (torch.int8, torch.float8_e4m3fn):
                all_rows = torch.arange(9 * HIDDEN).to(torch.uint8).view(9, HIDDEN)
                mine = all_rows[3 * rank : 3 * rank + 3].view(dtype)
                assert ir.select("all_gather", mine, 7).provider == provider
                gathered = ir.ops.all_gather(mine, 7)
                assert gathered.dtype == dtype
                found.append(gathered.view(torch.uint8))
    return found


def test_norm_of_the_sum_has_the_bits_of_the_two_ops(world: World) -> None:
    for provider, case, dtype, shape in world.cases():
        norm = ir.ops.fused_add_rms_norm.native if provider == "gloo" else vllm_c.fused_add_rms_norm
        total, residual = reference_sum(world.size, dtype, shape), residual_of(dtype, shape)
        expected = torch.stack(norm(total, residual, None, EPSILON))
        found = world.of("all_reduce_add_rms_norm", case)
        assert all(torch.equal(got, expected) for got in found), case


def test_a_thousand_collectives_of_mixed_sizes_in_a_row(session: RaySession) -> None:
    assert session.run_on_ranks(3, wrong_of_a_thousand, PROVIDERS[-1]) == [[], [], []]


def wrong_of_a_thousand(provider: str) -> list[int]:
    rank, size = groups.get_group("tp").rank, groups.get_group("tp").size
    random = torch.Generator().manual_seed(0)
    wrong: list[int] = []
    with using(provider):
        for number in range(1000):
            tokens = int(torch.randint(1, 40, (), generator=random))
            width = 8 << int(torch.randint(0, 9, (), generator=random))
            mine = torch.full((tokens, width), float(number % 97 + rank))
            total = float(size * (number % 97) + size * (size - 1) / 2)
            if number % 2:
                right = torch.equal(ir.ops.all_reduce(mine), torch.full_like(mine, total))
            else:
                rows = ir.ops.reduce_scatter(mine)
                right = torch.equal(ir.ops.all_gather(rows, tokens), torch.full_like(mine, total))
            if not right:
                wrong.append(number)
    return wrong


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_compiled_function_reduces_over_the_ranks(backend: str, session: RaySession) -> None:
    for provider, selected, outputs in session.run_on_ranks(2, compiled_results, backend):
        assert selected == {"all_reduce": {provider: 2}}
        for tokens, got in outputs.items():
            mine, theirs = (values(rank, torch.float32, (tokens, 8)) for rank in (0, 1))
            total = torch.tanh(mine) + torch.tanh(theirs)
            torch.testing.assert_close(got, torch.tanh(total * 2) * 2 + 1)


def compiled_results(backend: str) -> tuple[str, dict[str, dict[str, int]], dict[int, Tensor]]:
    def function(x: Tensor) -> Tensor:
        once = torch.tanh(ir.ops.all_reduce(torch.tanh(x)) * 2)
        return ir.ops.all_reduce(once) + 1

    rank = groups.get_group("tp").rank
    with using(PROVIDERS[-1]):
        compiled = ir_passes.compile(
            function,
            (torch.zeros(5, 8),),
            dynamic_dims={"x": {0: "tokens"}},
            limits={"tokens": 16},
            config=CompilationConfig.model_validate({"backend": backend}),
        )
        sizes = (1, 2, 5, 16)
        outputs = {size: compiled(values(rank, torch.float32, (size, 8))) for size in sizes}
        selected = {op: dict(counts) for op, counts in compiled.report().selected_impls.items()}
    return PROVIDERS[-1], selected, outputs


def test_ranks_that_disagree_all_fail_and_say_over_what(session: RaySession) -> None:
    for provider, messages in zip(
        itertools.cycle(PROVIDERS),
        itertools.chain(*session.run_on_ranks(2, mismatches)),
        strict=False,
    ):
        shape, op, dtype = messages
        assert f"`all_reduce` by {provider} over axis `tp`, rank" in shape
        assert "float32 [3, 8]" in shape
        assert "float32 [4, 8]" in shape
        if provider == "gloo":
            assert "came with `reduce_scatter` of" in op or "came with `all_reduce` of" in op
            assert "bfloat16 [3, 8]" in dtype
        else:
            # Nobody knows how far apart the ranks are, so the segment stays broken.
            assert "the group is broken since `all_reduce` #1: rank" in op
            assert "the group is broken since `all_reduce` #1: rank" in dtype


def mismatches() -> list[tuple[str, str, str]]:
    rank = groups.get_group("tp").rank
    calls: tuple[Callable[[], Any], ...] = (
        lambda: ir.ops.all_reduce(torch.zeros(3 + rank, 8)),
        lambda: (ir.ops.all_reduce, ir.ops.reduce_scatter)[rank](torch.zeros(4, 8)),
        lambda: ir.ops.all_reduce(torch.zeros(3, 8, dtype=DTYPES[rank])),
    )
    found: list[tuple[str, str, str]] = []
    for provider in PROVIDERS:
        with using(provider):
            shape, op, dtype = (message_of(call) for call in calls)
            found.append((shape, op, dtype))
    return found


def message_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except groups.CollectiveError as error:
        return str(error)
    return "it returned"


def test_native_refuses_to_speak_for_several_ranks(session: RaySession) -> None:
    for threads, messages in session.run_on_ranks(2, native_messages):
        assert threads == max(1, len(os.sched_getaffinity(0)) // 2)
        assert [each.split(" by native over axis `tp`, rank ")[0] for each in messages] == [
            f"`{op}`" for op in FOLDERS
        ]


def native_messages() -> tuple[int, list[str]]:
    x = torch.zeros(2, 8)
    with using("native"):
        calls = (
            lambda: ir.ops.all_reduce(x),
            lambda: ir.ops.reduce_scatter(x),
            lambda: ir.ops.all_gather(x, 2),
            lambda: ir.ops.all_reduce_add_rms_norm(x, x, None, EPSILON),
        )
        return torch.get_num_threads(), [message_of(call) for call in calls]


def test_a_choice_is_made_again_when_the_group_changes(session: RaySession) -> None:
    assert session.run_on_ranks(2, alone_and_together) == [[1.0, 2.0, 1.0]] * 2


def alone_and_together() -> list[float]:
    x = torch.ones(1)
    alone = groups.Group("tp", 0, 1)
    with using(PROVIDERS[-1]):
        with groups.scoped_groups(alone):
            before = ir.ops.all_reduce(x)
        together = ir.ops.all_reduce(x)
        with groups.scoped_groups(alone):
            return [before.item(), together.item(), ir.ops.all_reduce(x).item()]


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_timeout(
    session: RaySession,
) -> None:
    (waited, messages), _ = session.run_on_ranks(2, late, collective_timeout_s=0.5)
    assert waited < 20
    by_provider = dict(zip(PROVIDERS, messages, strict=True))
    assert "rank 0 of 2, timeout 0.5 s" in by_provider["gloo"]
    if "shm" in by_provider:
        assert "#1: rank 1 did not come within 0.5 s" in by_provider["shm"]


def late() -> tuple[float, list[str]]:
    messages: list[str] = []
    start = time.monotonic()
    for provider in PROVIDERS:
        with using(provider):
            if groups.get_group("tp").rank == 1:
                time.sleep(1)
            else:
                messages.append(message_of(lambda: ir.ops.all_reduce(torch.zeros(2, 8))))
    return time.monotonic() - start, messages


def test_a_rank_that_raises_is_named_with_its_traceback(session: RaySession) -> None:
    with pytest.raises(RankError, match="Rank 1 raised:") as caught:
        session.run_on_ranks(3, raises)
    assert caught.value.rank == 1
    assert "in raises\n" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def raises() -> float:
    return 1 / (groups.get_group("tp").rank - 1)


def test_a_rank_that_exits_is_named_at_once_by_the_one_that_waits(session: RaySession) -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match="Rank 1 is gone") as caught:
        session.run_on_ranks(2, exits, timeout_s=60, collective_timeout_s=60)
    assert time.monotonic() - start < 45
    assert "rank 1 has died" in str(caught.value) or PROVIDERS == ("gloo",)


def exits() -> None:
    with using(PROVIDERS[-1]):
        ir.ops.all_reduce(torch.zeros(2, 8))
        if groups.get_group("tp").rank == 1:
            os._exit(3)
        ir.ops.all_reduce(torch.zeros(2, 8))


def test_a_rank_that_hangs_shows_where_and_is_killed(session: RaySession) -> None:
    with pytest.raises(RankError, match=r"Rank 1 did not finish, of 1 s") as caught:
        session.run_on_ranks(2, hangs, timeout_s=1)
    assert caught.value.rank == 1
    assert "in hangs\n" in str(caught.value)
    assert "Rank 0" not in str(caught.value)


def hangs() -> None:
    if groups.get_group("tp").rank == 1:
        time.sleep(600)


def test_a_closed_session_leaves_nothing(session: RaySession) -> None:
    """The last of this module: it ends the session that all share."""
    assert session.processes()
    session.close()
    assert session.processes() == []
    deadline = time.monotonic() + 10  # other programs of this machine may just be opening theirs
    while names := list(SHARED_MEMORY.glob("ir-*")):
        assert time.monotonic() < deadline, names
        time.sleep(0.05)
    with pytest.raises(RankSessionError, match="closed"):
        session.run_on_ranks(1, raises)
