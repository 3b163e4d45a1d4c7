"""Every family compiled is the family run eagerly, over shapes modes, splits, providers, dtypes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tiny_checkpoints import MAKERS
from torch import Tensor

import ir_core as ir
from ir_passes.config import CompilationConfig
from serve_shim.compilation.compilable_model import CompilableModel
from serve_shim.engine.config import EngineConfig
from serve_shim.loading import load_model
from serve_shim.models.attention_step import AttentionStep
from serve_shim.models.causal_lm import CausalLM

BOUNDS = EngineConfig(max_model_len=512, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=512)
KINDS = ("unbacked", "backed", "backed_size_oblivious")
SPLITS: Mapping[str, tuple[str, ...] | None] = {"piecewise": None, "full": ()}
PROVIDERS = ("native", "vllm_c")
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}
SIZES = (*range(1, 18), 64)


class Way(NamedTuple):
    """One way to compile."""

    kind: str
    split: str
    provider: str
    backend: str
    dtype: torch.dtype


EVERY = [
    Way(*each) for each in product(KINDS, SPLITS, PROVIDERS, ("eager", "inductor"), TOLERANCES)
]
# Each value of each column once or more, and Inductor, which costs seconds, in both dtypes.
SOME = [
    Way("unbacked", "piecewise", "native", "inductor", torch.float32),
    Way("unbacked", "full", "vllm_c", "eager", torch.float32),
    Way("backed", "piecewise", "vllm_c", "eager", torch.float32),
    Way("backed_size_oblivious", "full", "native", "eager", torch.float32),
    Way("unbacked", "piecewise", "vllm_c", "inductor", torch.bfloat16),
]


class Loaded(NamedTuple):
    """A model with its caches."""

    model: CausalLM
    caches: list[Tensor]


def load(source: str | None, dtype: torch.dtype) -> Loaded:
    loaded = load_model(source, dtype=dtype, quantization="none")
    config = loaded.config
    shape = (BOUNDS.num_blocks, 2, config.num_kv_heads, BOUNDS.block_size, config.head_dim)
    caches = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_layers)]
    loaded.model.bind_kv_cache(caches)
    return Loaded(loaded.model, caches)


def steps(lengths: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, AttentionStep]]:
    """A prompt of each length, then one more token after it."""
    for length in lengths:
        yield prompt(0, length)
        yield prompt(length, 1)


def prompt(start: int, length: int) -> tuple[Tensor, Tensor, AttentionStep]:
    positions = torch.arange(start, start + length)
    step = AttentionStep(
        block_table=torch.arange(BOUNDS.max_blocks_per_sequence, dtype=torch.int32)[None],
        seq_lens=torch.tensor([start + length], dtype=torch.int32),
        query_start_loc=torch.tensor([0, length], dtype=torch.int32),
        slot_mapping=positions.clone(),
    )
    return (positions * 7 + 3) % 90, positions, step


def outputs(
    forward: Callable[..., Tensor], caches: Sequence[Tensor], lengths: Sequence[int]
) -> list[Tensor]:
    for cache in caches:
        cache.zero_()
    return [forward(*step).clone() for step in steps(lengths)]


def check(source: str | None, way: Way, sizes: Sequence[int]) -> None:
    config = CompilationConfig.model_validate(
        {
            "backend": way.backend,
            "splitting_ops": SPLITS[way.split],
            "dynamic_shapes_config": {"type": way.kind},
        }
    )
    with ir.priority({name: [way.provider] for name in supporting(way.provider)}):
        model, caches = load(source, way.dtype)
        compiled = CompilableModel(model)
        compiled.compile(config, BOUNDS, lambda *_: None)
        with torch.inference_mode():
            wanted = outputs(model, caches, sizes)
            found = outputs(compiled, caches, sizes)
    for want, got in zip(wanted, found, strict=True):
        scale = float(want.float().abs().max())
        assert float((got.float() - want.float()).abs().max()) <= TOLERANCES[way.dtype] * scale


def supporting(provider: str) -> list[str]:
    return [name for name, op in ir.registry().items() if provider in op.implementations]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    found: dict[str, Path] = {}
    for name, make in MAKERS.items():
        torch.manual_seed(0)
        found[name] = tmp_path_factory.mktemp(name)
        make().save_pretrained(found[name])
    return found


@pytest.mark.parametrize("way", SOME, ids=lambda way: "-".join(map(str, way)))
def test_families_in_turn(checkpoints: Mapping[str, Path], way: Way) -> None:
    names = list(MAKERS)
    name = names[SOME.index(way) * 2 % len(names)]
    check(str(checkpoints[name]), way, SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("way", EVERY, ids=lambda way: "-".join(map(str, way)))
def test_every_family_in_every_way(checkpoints: Mapping[str, Path], family: str, way: Way) -> None:
    check(str(checkpoints[family]), way, (*range(1, 18), 64))


@pytest.mark.slow
@pytest.mark.parametrize("way", EVERY, ids=lambda way: "-".join(map(str, way)))
def test_embedded_model_in_every_way(way: Way) -> None:
    check(None, way, (*range(1, 18), 64, 511))
