"""Owns how a decoder is divided between ranks; refuses to read or to allocate any weight.

Heads, feed-forward columns and token ids are divided (arXiv:1909.08053, section 3). All ranks get
equal shapes: what is missing is zero weights, which add exactly nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import gcd, lcm

from serve_shim.errors import ModelLoadError
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.rank_columns import RankColumns
from serve_shim.models.shard import WHOLE, Shard
from serve_shim.models.span import Span
from serve_shim.models.weight_form import WeightForm

# Where a share is padded anyway, it is whole panels of rows and whole vectors of columns.
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingPlan:
    """What one rank holds of the model of `config`, and what it computes with: `local`.

    `local` differs in the number of heads, the feed-forward width and the number of token ids,
    each the same on all ranks. Where there are more ranks than key heads, several ranks hold the
    same one. Norms, and biases of products that ranks sum, are not divided: rank 0 adds the latter.

    `hidden` is what a rank computes of the products over columns that ranks divide: everything,
    or with `whole_sums` some outputs from all columns, so that no sum is cut.
    """

    shard: Shard
    config: ModelConfig
    local: ModelConfig
    query_heads: Span
    kv_heads: Span
    intermediate: Span
    vocab: Span
    hidden: Span
    whole_sums: bool

    @property
    def query_columns(self) -> RankColumns:
        """How the product over the outputs of all heads is divided."""
        head_dim = self.config.head_dim
        return self._columns(lambda rank: rank.query_heads.length * head_dim)

    @property
    def inner_columns(self) -> RankColumns:
        """How the product over the feed-forward columns is divided."""
        return self._columns(lambda rank: rank.intermediate.length)

    @property
    def summed_bias(self) -> Span:
        """The part of a bias of [hidden] that this rank adds to what it computes."""
        if self.whole_sums:
            return self.hidden
        hidden = self.config.hidden_size
        return Span.whole(hidden) if self.shard.rank == 0 else Span.zeros(hidden)

    def _columns(self, count: Callable[["ShardingPlan"], int]) -> RankColumns:
        size = self.shard.size
        if not self.whole_sums:
            return RankColumns(size)
        ranks = [plan_sharding(self.config, Shard(r, size), whole_sums=True) for r in range(size)]
        rows = tuple(rank.hidden.length for rank in ranks)
        return RankColumns(size, tuple(count(rank) for rank in ranks), rows)


def plan_sharding(
    config: ModelConfig,
    shard: Shard = WHOLE,
    forms: Mapping[str, WeightForm] | None = None,
    whole_sums: bool = False,
) -> ShardingPlan:
    """Divide the model of `config`; `forms` says, by path, which matrices are quantised.

    Columns of a quantised matrix are divided between its groups, or with `whole_sums` nowhere.
    Raises `ModelLoadError` that names the dimension where there are more ranks than parts, with
    the sizes that fit.
    """
    cut = {} if whole_sums else forms or {}
    step = _group_size(cut, "attention.o_proj")
    head_step = step // gcd(step, config.head_dim)
    inner_step = _group_size(cut, "mlp.down_proj")
    _check_size(config, shard, head_step, inner_step)
    queries, keys = _divide_heads(config, shard, head_step)
    inner = _divide(config.intermediate_size, shard, inner_step)
    vocab, hidden = _divide(config.vocab_size, shard, 1), config.hidden_size
    local = replace(
        config,
        num_heads=queries.width,
        num_kv_heads=keys.width,
        intermediate_size=inner.width,
        vocab_size=vocab.width,
    )
    return ShardingPlan(
        shard=shard,
        config=config,
        local=local,
        query_heads=queries,
        kv_heads=keys,
        intermediate=inner,
        vocab=vocab,
        hidden=_divide(hidden, shard, 1) if whole_sums else Span.whole(hidden),
        whole_sums=whole_sums,
    )


def _group_size(forms: Mapping[str, WeightForm], ending: str) -> int:
    """The columns between which matrices with this end of a path can be cut."""
    return lcm(*(form.group_size for path, form in forms.items() if path.endswith(ending)))


def _divide(size: int, shard: Shard, step: int) -> Span:
    is_even = size % (shard.size * step) == 0
    return Span.share(size, shard, step if is_even else lcm(step, _ALIGNMENT))


def _divide_heads(config: ModelConfig, shard: Shard, step: int) -> tuple[Span, Span]:
    """Spans of query and of key heads; query heads are cut at multiples of `step`."""
    num_keys, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    key_step = step // gcd(step, group)
    if key_step > 1 or num_keys >= shard.size:
        keys = Span.share(num_keys, shard, key_step)
        return keys.times(group), keys
    ranks_per_key = min(shard.size // num_keys, group // step)
    width = step * -(-group // (step * ranks_per_key))
    ranks_per_key = -(-group // width)
    key, part = divmod(shard.rank, ranks_per_key)
    if key >= num_keys:
        return Span.zeros(width), Span.zeros(1)
    start = key * group + part * width
    return Span(start, min(start + width, (key + 1) * group), width), Span(key, key + 1, 1)


def _check_size(config: ModelConfig, shard: Shard, head_step: int, inner_step: int) -> None:
    parts = {
        "num_heads": (config.num_heads, head_step),
        "intermediate_size": (config.intermediate_size, inner_step),
        "vocab_size": (config.vocab_size, 1),
    }
    most = min(size // step for size, step in parts.values())
    for name, (size, step) in parts.items():
        if size // step < shard.size:
            cuts = f", which quantised weights cut at multiples of {step} only" if step > 1 else ""
            raise ModelLoadError(
                f"`{name}` is {size}{cuts}: too few for {shard.size} tensor-parallel ranks; "
                f"this model can be divided between 1 to {most}"
            )
