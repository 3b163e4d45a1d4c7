"""A w8a8 model on two ranks: norms are quantised on shards, and no bit of the logits changes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rank_logits import Result, Way, run_quantized, run_way
from tiny_checkpoints import make_llama_of_blocks, write_w8a8

from ir_kernels import library
from serve_shim.models import Shard
from serve_shim.testing import RaySession

NUM_LAYERS = 3
SIZES = (1, 2, 5, 16)
WHOLE, SHARDED, SHARDED_BY_GLOO = (
    Way("unbacked", None, "eager", None),
    Way("unbacked", None, "eager", 1),
    Way("unbacked", None, "eager", 1, "gloo"),
)
WAYS = (WHOLE, SHARDED, SHARDED_BY_GLOO)

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available() or not library.availability()[0],
    reason="this torch has no gloo, or no kernel multiplies bytes",
)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama whose layers are of bytes."""
    directory: Path = tmp_path_factory.mktemp("w8a8")
    write_w8a8(make_llama_of_blocks(), directory)
    return str(directory)


@pytest.fixture(scope="module")
def ranks(quantized: str) -> Iterator[list[dict[Way, Result]]]:
    """What each of two ranks computed in every way."""
    with RaySession() as session:
        yield session.run_on_ranks(2, run_quantized, quantized, WAYS, SIZES, timeout_s=150)


@pytest.mark.timeout(240)
def test_sharded_norms_leave_every_bit_of_the_logits(ranks: list[dict[Way, Result]]) -> None:
    for rank in ranks:
        for way in (SHARDED, SHARDED_BY_GLOO):
            for got, wanted in zip(rank[way].logits, rank[WHOLE].logits, strict=True):
                assert torch.equal(got, wanted), way


@pytest.mark.timeout(240)
def test_logits_are_near_those_of_one_rank(ranks: list[dict[Way, Result]], quantized: str) -> None:
    """Ranks scale their own parts of what `o_proj` and `down_proj` read, so they are not equal."""
    whole = run_way(quantized, None, SIZES, Shard(), torch.bfloat16, "auto")
    got, wanted = (torch.cat(each.logits).float() for each in (ranks[0][SHARDED], whole))
    error = (got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert error < 0.1, error


@pytest.mark.timeout(240)
def test_each_norm_in_a_layer_gathers_bytes_and_scales(ranks: list[dict[Way, Result]]) -> None:
    # The model returns the last norm, which nothing quantises.
    expected = {"reduce_scatter": 2 * NUM_LAYERS + 1, "all_gather": 2 * 2 * NUM_LAYERS + 1}
    for way in (SHARDED, SHARDED_BY_GLOO):
        assert list(ranks[0][way].counts.values()) == [expected]
