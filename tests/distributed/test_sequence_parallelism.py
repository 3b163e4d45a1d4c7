"""A model on several ranks computes what it computes on one, sharded by rows or not."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from rank_logits import COLLECTIVES, THRESHOLD, Result, Way, run_way, run_ways
from torch import Tensor

import ir_core as ir
from ir_core import groups
from serve_shim.models import Shard
from serve_shim.testing import RaySession

NUM_LAYERS = 3
SIZES = (*range(1, 10), 16, 17, 64)
MANY_SIZES = (*range(1, 18), 64)
KINDS = ("unbacked", "backed", "backed_size_oblivious")
SPLITS: Mapping[str, tuple[str, ...] | None] = {"piecewise": None, "full": ()}
WAYS = (
    Way("unbacked", None, "eager", None),
    Way("unbacked", None, "inductor", 1),
    Way("unbacked", (), "eager", 1, "poisoned"),
    Way("unbacked", None, "eager", THRESHOLD),
    Way("unbacked", None, "eager", THRESHOLD, "gloo"),
    Way("backed", None, "eager", 1, "poisoned"),
    Way("backed_size_oblivious", (), "eager", 1),
    Way("unbacked", None, "inductor", 1, overlaps=True),
    Way("unbacked", (), "eager", THRESHOLD, overlaps=True),
)

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this torch has no gloo"
)


@pytest.fixture(scope="module")
def session() -> Iterator[RaySession]:
    with RaySession() as ranks:
        yield ranks


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)],
)
def ranks(
    request: pytest.FixtureRequest, session: RaySession, tiny: str
) -> list[Mapping[Way, Result]]:
    """What each rank computed in every way."""
    return session.run_on_ranks(request.param, run_ways, tiny, WAYS, SIZES, timeout_s=150)


@pytest.fixture(scope="module")
def wanted() -> dict[str | None, Result]:
    """Eager logits of one rank, by model, once they are computed."""
    return {}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)))
def test_logits_are_those_of_one_rank(
    way: Way, ranks: list[Mapping[Way, Result]], tiny: str
) -> None:
    compare([rank[way] for rank in ranks], run_way(tiny, None, SIZES, Shard()), way)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("model", ["tiny", "embedded"])
def test_every_way_gives_the_logits_of_one_rank(
    session: RaySession,
    tiny: str,
    wanted: dict[str | None, Result],
    num_ranks: int,
    kind: str,
    split: str,
    model: str,
) -> None:
    source = tiny if model == "tiny" else None
    options = product((None, 1, THRESHOLD), ("shm", "gloo", "poisoned"))
    ways = [Way(kind, SPLITS[split], "eager", *each) for each in options]
    ways.append(Way(kind, SPLITS[split], "inductor", THRESHOLD))
    ways.append(Way(kind, SPLITS[split], "eager", 1, overlaps=True))
    if source not in wanted:
        wanted[source] = run_way(source, None, MANY_SIZES, Shard())
    limits: dict[str, Any] = {"timeout_s": 2900, "collective_timeout_s": 300}
    ranks = session.run_on_ranks(num_ranks, run_ways, source, ways, MANY_SIZES, **limits)
    for way in ways:
        compare([rank[way] for rank in ranks], wanted[source], way)


def test_two_of_each_collective_a_layer_and_no_sum_is_left(
    ranks: list[Mapping[Way, Result]],
) -> None:
    for way in WAYS:
        for sizes, counts in ranks[0][way].counts.items():
            first = int(sizes.partition("..")[0])
            if way.threshold is None or first < way.threshold:
                # The sum of embeddings has no residual to be added to.
                assert counts == {"all_reduce": 1, "all_reduce_add_rms_norm": 2 * NUM_LAYERS}
            elif way.overlaps:
                # Left are the sum of embeddings and the rows that the model returns.
                merged = {"linear_reduce_scatter": 2 * NUM_LAYERS}
                merged |= {"all_gather_linear": 2 * NUM_LAYERS}
                assert counts == {"reduce_scatter": 1, "all_gather": 1, **merged}
            else:
                expected = 2 * NUM_LAYERS + 1
                assert counts == {"reduce_scatter": expected, "all_gather": expected}


def test_products_merged_over_gloo_are_those_of_the_two_ops(session: RaySession) -> None:
    for rank in session.run_on_ranks(2, products_over_gloo, timeout_s=60):
        for got, wanted in rank:
            assert torch.equal(got, wanted)


def test_threshold_is_an_end_of_a_range(ranks: list[Mapping[Way, Result]]) -> None:
    way = Way("unbacked", None, "eager", THRESHOLD)
    assert list(ranks[0][way].counts) == [f"1..{THRESHOLD - 1}", f"{THRESHOLD}..64"]


def compare(ranks: Sequence[Result], wanted: Result, way: Way) -> None:
    """The logits of every rank with those of one, and bit for bit with each other's.

    Of logits around 30 the last bit in float32 is 2e-6, and sums over ranks are in another order.
    """
    for rank in ranks:
        for want, got, first in zip(wanted.logits, rank.logits, ranks[0].logits, strict=True):
            difference, largest = float((got - want).abs().max()), float(want.abs().max())
            assert difference <= max(1e-4, 1e-5 * largest), (way, difference, largest)
            assert torch.equal(got, first), way


def products_over_gloo() -> list[tuple[Tensor, Tensor]]:
    """Each merged op with one of its two ops after the other, at some counts of rows."""
    random = torch.Generator().manual_seed(groups.get_group("tp").rank)
    weight, bias = torch.randn(12, 8, generator=random), torch.randn(12, generator=random)
    found: list[tuple[Tensor, Tensor]] = []
    with ir.priority({name: ["gloo"] for name in COLLECTIVES}):
        for count in (0, 1, 2, 7):
            x = torch.randn(count, 8, generator=random)
            mine = torch.randn(-(-count // 2), 8, generator=random)
            rows = ir.ops.reduce_scatter(ir.ops.linear(x, weight, bias))
            joined = ir.ops.linear(ir.ops.all_gather(mine, count), weight, bias)
            found += [
                (ir.ops.linear_reduce_scatter(x, weight, bias), rows),
                (ir.ops.all_gather_linear(mine, count, weight, bias), joined),
            ]
    return found
