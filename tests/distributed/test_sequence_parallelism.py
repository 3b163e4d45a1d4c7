"""A model on several ranks computes what it computes on one, sharded by rows or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tiny_checkpoints import MAKERS
from torch import Tensor

from ir_core import groups
from ir_passes.config import CompilationConfig
from serve_shim.compilation.compilable_model import CompilableModel
from serve_shim.engine.config import EngineConfig
from serve_shim.loading import load_model
from serve_shim.models import Shard
from serve_shim.models.attention_step import AttentionStep
from serve_shim.testing import RaySession

BOUNDS = EngineConfig(max_model_len=128, num_blocks=16, max_num_seqs=4, max_num_batched_tokens=64)
NUM_LAYERS = 3
SIZES = (*range(1, 10), 16, 17, 64)
THRESHOLD = 8

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this torch has no gloo"
)


class Way(NamedTuple):
    """One way to compile; `threshold` is that of sequence parallelism, None where it is off."""

    kind: str
    splitting_ops: tuple[str, ...] | None
    backend: str
    threshold: int | None


WAYS = (
    Way("unbacked", None, "eager", None),
    Way("unbacked", None, "inductor", 1),
    Way("unbacked", (), "eager", 1),
    Way("unbacked", None, "eager", THRESHOLD),
    Way("backed", None, "eager", 1),
    Way("backed_size_oblivious", (), "eager", 1),
)


class Result(NamedTuple):
    """Logits of each step, and how many nodes of each op there are, by range of token counts."""

    logits: list[Tensor]
    counts: dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("llama")
    MAKERS["llama"]().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def session() -> Iterator[RaySession]:
    with RaySession() as ranks:
        yield ranks


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)],
)
def ranks(
    request: pytest.FixtureRequest, session: RaySession, checkpoint: Path
) -> list[Mapping[Way, Result]]:
    """What each rank computed in every way."""
    return session.run_on_ranks(request.param, run_all, str(checkpoint), timeout_s=110)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)))
def test_logits_are_those_of_one_rank(
    way: Way, ranks: list[Mapping[Way, Result]], checkpoint: Path
) -> None:
    wanted = run(str(checkpoint), None, Shard())
    for rank in ranks:
        for want, got in zip(wanted.logits, rank[way].logits, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_ranks_agree_bitwise(ranks: list[Mapping[Way, Result]]) -> None:
    for way in WAYS:
        for rank in ranks[1:]:
            for mine, theirs in zip(rank[way].logits, ranks[0][way].logits, strict=True):
                assert torch.equal(mine, theirs)


def test_two_of_each_collective_a_layer_and_no_sum_is_left(
    ranks: list[Mapping[Way, Result]],
) -> None:
    for way in WAYS:
        for sizes, counts in ranks[0][way].counts.items():
            first = int(sizes.partition("..")[0])
            if way.threshold is None or first < way.threshold:
                assert counts == {"all_reduce": 2 * NUM_LAYERS + 1}
            else:
                expected = 2 * NUM_LAYERS + 1
                assert counts == {"reduce_scatter": expected, "all_gather": expected}


def test_threshold_is_an_end_of_a_range(ranks: list[Mapping[Way, Result]]) -> None:
    way = Way("unbacked", None, "eager", THRESHOLD)
    assert list(ranks[0][way].counts) == [f"1..{THRESHOLD - 1}", f"{THRESHOLD}..64"]


def run_all(source: str) -> Mapping[Way, Result]:
    group = groups.get_group("tp")
    return {way: run(source, way, Shard(group.rank, group.size)) for way in WAYS}


def run(source: str, way: Way | None, shard: Shard) -> Result:
    model = load_model(source, dtype=torch.float32, shard=shard).model
    config = model.local_config
    shape = (BOUNDS.num_blocks, 2, config.num_kv_heads, BOUNDS.block_size, config.head_dim)
    caches = [torch.zeros(shape) for _ in range(config.num_layers)]
    model.bind_kv_cache(caches)
    forward = CompilableModel(model)
    counts: dict[str, dict[str, int]] = {}
    if way is not None:
        report = forward.compile(config_of(way), BOUNDS, lambda *_: None)
        for program in report.programs:
            found = [row.op for each in program.pieces for row in each.selections * each.num_uses]
            names = ("all_reduce", "reduce_scatter", "all_gather")
            counts[str(program.sizes)] = {
                name: found.count(name) for name in names if name in found
            }
    with torch.inference_mode():
        logits = [forward.compute_logits(forward(*step)) for size in SIZES for step in steps(size)]
    return Result(logits, counts)


def config_of(way: Way) -> CompilationConfig:
    is_on = way.threshold is not None
    return CompilationConfig.model_validate(
        {
            "backend": way.backend,
            "splitting_ops": way.splitting_ops,
            "dynamic_shapes_config": {"type": way.kind},
            "pass_config": {"enable_sp": is_on, "sp_min_token_num": way.threshold},
        }
    )


def steps(size: int) -> Sequence[tuple[Tensor, Tensor, AttentionStep]]:
    """A prompt of some tokens, and one token after it."""
    return prompt(0, size), prompt(size, 1)


def prompt(start: int, size: int) -> tuple[Tensor, Tensor, AttentionStep]:
    positions = torch.arange(start, start + size)
    step = AttentionStep(
        block_table=torch.arange(BOUNDS.max_blocks_per_sequence, dtype=torch.int32)[None],
        seq_lens=torch.tensor([start + size], dtype=torch.int32),
        query_start_loc=torch.tensor([0, size], dtype=torch.int32),
        slot_mapping=positions.clone(),
    )
    return (positions * 7 + 3) % 90, positions, step
