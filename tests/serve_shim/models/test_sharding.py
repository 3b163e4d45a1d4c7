"""A plan gives every head, column and token id to a rank, in equal shapes and whole groups."""

from dataclasses import replace
from itertools import product

import pytest

from serve_shim.errors import ModelLoadError
from serve_shim.models import ModelConfig, RopeConfig, Shard, ShardingPlan, plan_sharding
from serve_shim.models.span import Span
from serve_shim.models.weight_form import W4A16, W8A16, WeightForm

_SMOLLM2 = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    rope=RopeConfig(100000.0),
)
_QUANTISED = {"layers.0.attention.o_proj": W4A16, "layers.1.mlp.down_proj": W8A16}
_KEYS_GROUPS_SIZES = [
    (keys, group, size)
    for keys, group, size in product((1, 2, 3, 4, 5, 8), (1, 2, 3, 4, 7), range(1, 9))
    if size <= keys * group
]
_QUANTISED_HEADS = [
    (keys, group, head_dim)
    for keys, group in ((8, 4), (4, 4), (16, 1), (6, 2), (12, 3))
    for head_dim in (8, 16, 32, 48, 64)
    if keys * group * head_dim % 32 == 0
]


def _plans(
    config: ModelConfig, size: int, forms: dict[str, WeightForm] | None = None
) -> list[ShardingPlan]:
    return [plan_sharding(config, Shard(rank, size), forms) for rank in range(size)]


def _covered(spans: list[Span]) -> list[int]:
    """Every place that a rank holds, in order of ranks."""
    assert len({span.width for span in spans}) == 1
    assert all(0 <= span.length <= span.width for span in spans)
    return [place for span in spans for place in range(span.start, span.stop)]


@pytest.mark.parametrize(
    ("size", "heads", "kv_heads", "inner", "vocab"),
    [
        (1, 9, 3, 1536, 49152),
        (2, 6, 2, 768, 24576),
        (3, 3, 1, 512, 16384),
        (4, 3, 1, 384, 12288),
        (9, 1, 1, 176, 5472),
    ],
)
def test_sizes_of_each_rank(size: int, heads: int, kv_heads: int, inner: int, vocab: int) -> None:
    for plan in _plans(_SMOLLM2, size):
        local = plan.local
        assert (local.num_heads, local.num_kv_heads) == (heads, kv_heads)
        assert (local.intermediate_size, local.vocab_size) == (inner, vocab)
        assert local.hidden_size == 576


def test_one_rank_holds_the_whole_model() -> None:
    plan = plan_sharding(_SMOLLM2, forms=_QUANTISED)
    assert plan.local == plan.config == _SMOLLM2
    assert plan.query_heads == Span.whole(9)
    assert plan.summed_bias == Span.whole(576)


@pytest.mark.parametrize(("keys", "group", "size"), _KEYS_GROUPS_SIZES)
def test_query_heads_meet_their_key_head_on_one_rank(keys: int, group: int, size: int) -> None:
    plans = _plans(replace(_SMOLLM2, num_heads=keys * group, num_kv_heads=keys), size)
    assert _covered([plan.query_heads for plan in plans]) == list(range(keys * group))
    assert set(_covered([plan.kv_heads for plan in plans])) == set(range(keys))
    for plan in plans:
        shared = plan.local.num_heads // plan.local.num_kv_heads
        for place, head in enumerate(range(plan.query_heads.start, plan.query_heads.stop)):
            assert plan.kv_heads.start + place // shared == head // group < plan.kv_heads.stop


def test_key_heads_are_shared_where_there_are_more_ranks() -> None:
    plans = _plans(replace(_SMOLLM2, num_heads=12, num_kv_heads=2), 4)
    assert [plan.kv_heads for plan in plans] == [Span(0, 1, 1)] * 2 + [Span(1, 2, 1)] * 2
    assert [plan.query_heads.start for plan in plans] == [0, 3, 6, 9]


def test_spare_ranks_hold_zeros() -> None:
    spare = _plans(_SMOLLM2, 4)[3]
    assert (spare.query_heads, spare.kv_heads) == (Span.zeros(3), Span.zeros(1))
    assert spare.intermediate == Span(1152, 1536, 384)


@pytest.mark.parametrize("size", range(1, 9))
def test_columns_and_ids_are_each_held_once(size: int) -> None:
    config = replace(_SMOLLM2, intermediate_size=1001, vocab_size=997)
    plans = _plans(config, size)
    assert _covered([plan.intermediate for plan in plans]) == list(range(1001))
    assert _covered([plan.vocab for plan in plans]) == list(range(997))
    assert all(plan.local.vocab_size % 16 == 0 for plan in plans if size > 1)


@pytest.mark.parametrize(("keys", "group", "head_dim"), _QUANTISED_HEADS)
def test_quantised_columns_are_cut_between_groups(keys: int, group: int, head_dim: int) -> None:
    config = replace(
        _SMOLLM2, num_heads=keys * group, num_kv_heads=keys, head_dim=head_dim, intermediate_size=96
    )
    for size in (1, 2, 3):
        plans = _plans(config, size, dict(_QUANTISED))
        assert _covered([plan.query_heads for plan in plans]) == list(range(keys * group))
        for plan in plans:
            columns = plan.query_heads.times(head_dim), plan.intermediate
            assert all(
                place % 32 == 0 for span in columns for place in (span.start, span.stop, span.width)
            )


@pytest.mark.parametrize("size", range(2, 9))
def test_ranks_that_cut_no_sum_divide_its_outputs(size: int) -> None:
    forms = dict(_QUANTISED)
    plans = [plan_sharding(_SMOLLM2, Shard(rank, size), forms, True) for rank in range(size)]
    assert _covered([plan.hidden for plan in plans]) == list(range(576))
    for plan in plans:
        assert plan.summed_bias == plan.hidden
        assert plan.query_columns == plans[0].query_columns
        for ranks, num_columns in ((plan.query_columns, 576), (plan.inner_columns, 1536)):
            assert ranks.num_ranks == len(ranks.columns) == len(ranks.rows) == size
            assert (sum(ranks.columns), sum(ranks.rows)) == (num_columns, 576)


def test_ranks_that_sum_parts_compute_every_output() -> None:
    for plan in _plans(_SMOLLM2, 3):
        assert plan.hidden == Span.whole(576)
        assert plan.query_columns == plan.inner_columns == (3, (), ())


def test_only_rank_0_adds_the_bias_of_a_sum() -> None:
    biases = [plan.summed_bias for plan in _plans(_SMOLLM2, 3)]
    assert biases == [Span.whole(576), Span.zeros(576), Span.zeros(576)]


@pytest.mark.parametrize(
    ("changes", "forms", "size", "reason"),
    [
        ({}, {}, 10, "`num_heads` is 9: too few for 10 tensor-parallel ranks; .* 1 to 9"),
        ({"vocab_size": 3}, {}, 4, "`vocab_size` is 3: too few for 4 .* 1 to 3"),
        (
            {"intermediate_size": 96},
            _QUANTISED,
            4,
            "`intermediate_size` is 96, which quantised weights cut at multiples of 32 only: "
            "too few for 4 .* 1 to 3",
        ),
        (
            {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16},
            _QUANTISED,
            4,
            "`num_heads` is 4, which quantised weights cut at multiples of 2 only: .* 1 to 2",
        ),
    ],
)
def test_more_ranks_than_parts_are_refused(
    changes: dict[str, int], forms: dict[str, WeightForm], size: int, reason: str
) -> None:
    config = replace(_SMOLLM2, **changes)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModelLoadError, match=reason):
        plan_sharding(config, Shard(0, size), forms)
    plan_sharding(config, Shard(0, size - 2), forms)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0), (1, 1)])
def test_rank_that_is_none_of_them_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {size} does not exist"):
        Shard(rank, size)
