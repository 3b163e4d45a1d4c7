"""Ranks of one model, as threads: their logits are the whole model's, their graphs are equal."""

import re
from collections.abc import Iterator, Mapping

import pytest
import torch
from one_sequence import OneSequence
from thread_ranks import thread_ranks
from tiny_checkpoints import MAKERS, make_model
from torch import Tensor

import ir_core as ir
from ir_core.groups import Group, scoped_groups
from ir_kernels import library
from ir_passes.dialect import Dialect
from ir_passes.printer import print_graph
from ir_passes.splitting.split import split_graph
from ir_passes.splitting.structure import structure_of
from ir_passes.tracing.model_trace import trace_call
from serve_shim.compilation.compilable_model import DYNAMIC_DIMS, example_arguments
from serve_shim.loading import load_model
from serve_shim.models import CausalLM, ModelConfig, RopeConfig, Shard
from serve_shim.models.parameters import ParameterMaker
from serve_shim.models.vocabulary import embed_shard, join_logits

_LENGTHS = (*range(1, 18), 64)
_IDS = torch.randint(0, 96, (64,), generator=torch.Generator().manual_seed(6)).tolist()
_CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=48,
    intermediate_size=50,
    num_layers=2,
    num_heads=9,
    num_kv_heads=3,
    head_dim=8,
    vocab_size=41,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope=RopeConfig(10000.0),
    tie_word_embeddings=True,
)
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in MAKERS:
        found[name] = str(tmp_path_factory.mktemp(name))
        make_model(name).save_pretrained(found[name])
    return found


@pytest.fixture
def batch_invariant() -> Iterator[None]:
    ir.load_plugins()
    ir.set_batch_invariant(True)
    yield
    ir.set_batch_invariant(None)


def _load(path: str, shard: Shard, dtype: torch.dtype = torch.float32) -> CausalLM:
    return load_model(path, dtype=dtype, shard=shard).model


def _shards(path: str, size: int, dtype: torch.dtype = torch.float32) -> list[CausalLM]:
    return [_load(path, Shard(rank, size), dtype) for rank in range(size)]


def _logits(model: CausalLM) -> Tensor:
    """A prompt of each length, then one more token after it."""
    found: list[Tensor] = []
    for length in _LENGTHS:
        sequence = OneSequence(model)
        found += [sequence.step(_IDS[:length]), sequence.step([length])]
    return torch.cat(found)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("family", MAKERS)
def test_ranks_compute_the_logits_of_the_whole(
    checkpoints: Mapping[str, str], family: str, size: int
) -> None:
    expected = _logits(_load(checkpoints[family], Shard()))
    models = _shards(checkpoints[family], size)
    with thread_ranks(size) as ranks:
        found = ranks.run(lambda rank: _logits(models[rank]))
    assert expected.abs().max() > 1
    for logits in found:
        assert logits.is_contiguous()
        assert (logits - expected).abs().max() < 1e-4
        assert torch.equal(logits, found[0])


@pytest.mark.parametrize(
    ("size", "dtype"), [(2, torch.float32), (3, torch.bfloat16), (4, torch.float32)]
)
@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.skipif(not library.availability()[0], reason=library.availability()[1])
def test_batch_invariant_ranks_compute_the_bits_of_the_whole(
    checkpoints: Mapping[str, str], family: str, size: int, dtype: torch.dtype
) -> None:
    expected = _logits(_load(checkpoints[family], Shard(), dtype))
    models = _shards(checkpoints[family], size, dtype)
    with thread_ranks(size) as ranks:
        for logits in ranks.run(lambda rank: _logits(models[rank])):
            assert torch.equal(logits, expected)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_padding_of_the_cache_reaches_no_logits(checkpoints: Mapping[str, str], size: int) -> None:
    models = _shards(checkpoints["qwen3_tied"], size)
    expected = OneSequence(_load(checkpoints["qwen3_tied"], Shard())).step(_IDS[:9])

    def logits(rank: int) -> Tensor:
        sequence = OneSequence(models[rank])
        for layer in models[rank].layers:
            layer.get_submodule("attention").get_buffer("kv_cache").fill_(torch.nan)
        return sequence.step(_IDS[:9])

    with thread_ranks(size) as ranks:
        found = ranks.run(logits)
    assert all((each - expected).abs().max() < 1e-4 for each in found)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_cache_has_the_heads_of_the_rank(checkpoints: Mapping[str, str], size: int) -> None:
    model = _load(checkpoints["llama"], Shard(size - 1, size))
    kv_heads = 2 if size == 1 else 1
    assert model.local_config.num_kv_heads == kv_heads
    refusal = f"expected .num_blocks, 2, {kv_heads}, block_size, 12"
    with scoped_groups(Group("tp", size - 1, size)):
        model.bind_kv_cache([torch.zeros(4, 2, kv_heads, 8, 12)] * 3)
        with pytest.raises(ValueError, match=refusal):
            model.bind_kv_cache([torch.zeros(4, 2, 3, 8, 12)] * 3)


def test_model_of_several_ranks_is_refused_without_their_group(
    checkpoints: Mapping[str, str],
) -> None:
    model = _load(checkpoints["llama"], Shard(0, 2))
    with pytest.raises(ValueError, match="divided between 2 ranks, and axis `tp` has 1"):
        model.bind_kv_cache([])


@pytest.mark.parametrize("size", [2, 3])
def test_every_id_is_embedded_by_the_rank_that_holds_it(size: int) -> None:
    table = torch.randn(size * 16, 4, generator=torch.Generator().manual_seed(1))
    table[0] = torch.nan  # looked up by ranks that hold another id
    ids = torch.tensor([1, 15, 16, 17, size * 16 - 1])

    def rows(rank: int) -> Tensor:
        matrix = ParameterMaker(torch.float32).matrix("embedding", 4, 16)
        matrix.weight.data.copy_(table[rank * 16 : rank * 16 + 16])
        return embed_shard(matrix, ids, torch.tensor([rank * 16]), 16)

    with thread_ranks(size) as ranks:
        assert all(torch.equal(each, table[ids]) for each in ranks.run(rows))


@pytest.mark.parametrize("num_rows", [0, 1, 3])
@pytest.mark.parametrize("vocab_size", [96, 95, 65, 64, 20])
def test_joined_logits_end_with_the_vocabulary(vocab_size: int, num_rows: int) -> None:
    whole = torch.arange(num_rows * 96.0).view(num_rows, 96)
    with thread_ranks(3) as ranks:
        for found in ranks.run(
            lambda rank: join_logits(whole[:, rank * 32 : rank * 32 + 32].clone(), 3, vocab_size)
        ):
            assert torch.equal(found, whole[:, :vocab_size])
            assert found.is_contiguous()


def _graph(shard: Shard) -> tuple[str, list[str]]:
    """The text of the traced graph, and the structure of each of its pieces."""
    model = CausalLM(_CONFIG, dtype=torch.float32, shard=shard)
    OneSequence(model)
    dialect = Dialect()
    trace = trace_call(model, example_arguments(8), dynamic_dims=DYNAMIC_DIMS, dialect=dialect)
    text = print_graph(trace.whole.module.graph, dialect)
    pieces = split_graph(trace.whole.module, dialect).pieces
    return text, [structure_of(piece, dialect) for piece in pieces]


def test_graphs_of_first_and_spare_rank_are_equal() -> None:
    with scoped_groups(Group("tp", 0, 4)):
        text, structures = _graph(Shard(0, 4))
    with scoped_groups(Group("tp", 3, 4)):
        assert _graph(Shard(3, 4)) == (text, structures)
    # Nothing but the norm that adds the residual reads a sum of products.
    sums = re.findall(r"(all_reduce_\d+): .* = ir\.all_reduce\(linear", text)
    assert len(sums) == 4
    for name in sums:
        assert re.findall(rf"(\S+)\(.*\b{name}\b", text) == ["ir.fused_add_rms_norm"]


def test_graph_of_the_whole_has_no_collective() -> None:
    text, _ = _graph(Shard())
    assert "ir.linear(" in text
    assert not any(name in text for name in _COLLECTIVES)


@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.skipif(not library.availability()[0], reason=library.availability()[1])
def test_batch_invariant_ranks_sum_nothing_but_embeddings() -> None:
    with scoped_groups(Group("tp", 0, 4)):
        text, structures = _graph(Shard(0, 4))
    with scoped_groups(Group("tp", 3, 4)):
        assert _graph(Shard(3, 4)) == (text, structures)
    assert len(re.findall(r" = ir\.all_reduce\(", text)) == 1
    # The columns of two products a layer, and their results.
    assert len(re.findall(r" = ir\.all_gather\(", text)) == 8
