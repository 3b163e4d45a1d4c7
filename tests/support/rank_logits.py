"""Logits of a model on one rank or several, in every way in which it can be compiled.

A rank gets this module by value: it imports nothing of the tests.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

import ir_core as ir
from ir_core import groups
from ir_passes.config import CompilationConfig
from serve_shim.compilation.compilable_model import CompilableModel
from serve_shim.engine.config import EngineConfig
from serve_shim.loading import load_model
from serve_shim.models import Shard
from serve_shim.models.attention_step import AttentionStep

BOUNDS = EngineConfig(max_model_len=128, num_blocks=16, max_num_seqs=4, max_num_batched_tokens=64)
THRESHOLD = 8
COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "linear_reduce_scatter",
    "all_gather_linear",
    "all_reduce_add_rms_norm",
)
POISONED = "poisoned"


class Way(NamedTuple):
    """One way to compile; `threshold` is that of sequence parallelism, None where it is off.

    `provider` is asked for collectives: `shm`, `gloo`, or `poisoned`, which is `shm` with NaN in
    the rows that pad a shard. `overlaps` says whether products and collectives are merged.
    """

    kind: str
    splitting_ops: tuple[str, ...] | None
    backend: str
    threshold: int | None
    provider: str = "shm"
    overlaps: bool = False

    @property
    def config(self) -> CompilationConfig:
        """The configuration that asks for it."""
        is_on = self.threshold is not None
        return CompilationConfig.model_validate(
            {
                "backend": self.backend,
                "splitting_ops": self.splitting_ops,
                "dynamic_shapes_config": {"type": self.kind},
                "pass_config": {
                    "enable_sp": is_on,
                    "sp_min_token_num": self.threshold,
                    "fuse_gemm_comms": self.overlaps,
                },
            }
        )


class Result(NamedTuple):
    """Logits of each step, and how many collectives of each kind, by range of token counts."""

    logits: list[Tensor]
    counts: dict[str, dict[str, int]]


def run_ways(source: str | None, ways: Iterable[Way], sizes: Sequence[int]) -> Mapping[Way, Result]:
    """As one of the ranks of axis `tp`."""
    group = groups.get_group("tp")
    _add_poisoned_provider()
    found: dict[Way, Result] = {}
    for way in ways:
        with ir.priority(_priority(way.provider)):
            found[way] = run_way(source, way, sizes, Shard(group.rank, group.size))
    return found


def run_quantized(source: str, ways: Iterable[Way], sizes: Sequence[int]) -> dict[Way, Result]:
    """As one of the ranks of axis `tp`, with the checkpoint's own integers and bfloat16."""
    group = groups.get_group("tp")
    shard = Shard(group.rank, group.size)
    ir.load_plugins()
    found: dict[Way, Result] = {}
    for way in ways:
        with ir.priority(_priority(way.provider)):
            found[way] = run_way(source, way, sizes, shard, torch.bfloat16, "auto")
    return found


def run_invariant(
    source: str | None,
    ways: Sequence[Way | None],
    sizes: Sequence[int],
    dtypes: Sequence[torch.dtype],
    providers: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[list[Result]]:
    """As one of the ranks of axis `tp`, with batch invariance on: every way, by dtype."""
    group = groups.get_group("tp")
    shard = Shard(group.rank, group.size)
    ir.load_plugins()
    ir.set_batch_invariant(True)
    try:
        with ir.priority(providers):
            return [[run_way(source, way, sizes, shard, each) for way in ways] for each in dtypes]
    finally:
        ir.set_batch_invariant(None)


def run_way(
    source: str | None,
    way: Way | None,
    sizes: Sequence[int],
    shard: Shard,
    dtype: torch.dtype = torch.float32,
    quantization: str = "none",
) -> Result:
    """Steps of these sizes; None for `way` is eager."""
    model = load_model(source, dtype=dtype, quantization=quantization, shard=shard).model
    config = model.local_config
    shape = (BOUNDS.num_blocks, 2, config.num_kv_heads, BOUNDS.block_size, config.head_dim)
    model.bind_kv_cache([torch.zeros(shape, dtype=dtype) for _ in range(config.num_layers)])
    forward = CompilableModel(model)
    counts: dict[str, dict[str, int]] = {}
    if way is not None:
        report = forward.compile(way.config, BOUNDS, lambda *_: None)
        for program in report.programs:
            found = [row.op for each in program.pieces for row in each.selections * each.num_uses]
            there = {name: found.count(name) for name in COLLECTIVES if name in found}
            counts[str(program.sizes)] = there
    with torch.inference_mode():
        logits = [
            forward.compute_logits(forward(*step)).clone() for size in sizes for step in steps(size)
        ]
    return Result(logits, counts)


def steps(size: int) -> Sequence[tuple[Tensor, Tensor, AttentionStep]]:
    """A prompt of some tokens, no two alike, and one token after it."""
    return _prompt(0, size), _prompt(size, 1)


def _prompt(start: int, size: int) -> tuple[Tensor, Tensor, AttentionStep]:
    positions = torch.arange(start, start + size)
    step = AttentionStep(
        block_table=torch.arange(BOUNDS.max_blocks_per_sequence, dtype=torch.int32)[None],
        seq_lens=torch.tensor([start + size], dtype=torch.int32),
        query_start_loc=torch.tensor([0, size], dtype=torch.int32),
        slot_mapping=positions.clone(),
    )
    return (positions * 7 + 3) % 90, positions, step


def _priority(provider: str) -> Mapping[str, Sequence[str]]:
    if provider == POISONED:
        return {"reduce_scatter": [POISONED]}
    return {name: [provider] for name in COLLECTIVES}


def _add_poisoned_provider() -> None:
    ir.load_plugins()
    op: Any = ir.ops.reduce_scatter
    if POISONED in op.implementations:
        return
    shm = op.implementations["shm"]

    def poisoned(x: Tensor, group: str = "tp") -> Tensor:
        rows = shm.fn(x, group)
        rank = groups.get_group(group)
        num_left = min(max(len(x) - rank.rank * len(rows), 0), len(rows))
        rows[num_left:] = float("nan")
        return rows

    op.register_impl(POISONED, opaque=True, batch_invariant=True)(poisoned)
