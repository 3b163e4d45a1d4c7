"""Owns where each checkpoint tensor lands in the merged parameters; refuses to read any weight."""

from collections.abc import Iterator
from dataclasses import dataclass

from serve_shim.models.sharding import ShardingPlan
from serve_shim.models.span import Span

EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Tensor `name` of `shape` fills `parameter` of the model from row `start` on.

    Names are those of Hugging Face checkpoints. `head_rows` is set for q and k: the rows of
    one head, which GGUF may store in another order. `part` is what a rank holds of each dimension,
    None for the whole tensor; of heads it is whole ones.
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    start: int = 0
    head_rows: int | None = None
    part: tuple[Span, ...] | None = None

    @property
    def module(self) -> str:
        """Path of the module that holds the parameter."""
        return self.parameter.rpartition(".")[0]

    @property
    def is_matrix(self) -> bool:
        """Whether the tensor is weights of a matrix, which may be held in more than one form."""
        return len(self.shape) == 2

    @property
    def spans(self) -> tuple[Span, ...]:
        """What is read of each dimension, and how wide it is in the parameter."""
        return self.part or tuple(Span.whole(size) for size in self.shape)

    @property
    def stop(self) -> int:
        """The row after the last one that it fills."""
        return self.start + self.spans[0].width


def weight_slots(plan: ShardingPlan) -> Iterator[WeightSlot]:
    """Yield a slot for every tensor that the checkpoint must have, each exactly once."""
    config = plan.config
    yield _vocabulary_slot(plan, EMBEDDING, "embedding.weight")
    for layer in range(config.num_layers):
        source, target = f"model.layers.{layer}.", f"layers.{layer}."
        for norm, parameter in (
            ("input_layernorm", "input_norm"),
            ("post_attention_layernorm", "post_attention_norm"),
        ):
            yield _norm_slot(config.hidden_size, f"{source}{norm}", f"{target}{parameter}")
        yield from _attention_slots(plan, f"{source}self_attn.", f"{target}attention.")
        yield from _mlp_slots(plan, f"{source}mlp.", f"{target}mlp.")
    yield _norm_slot(config.hidden_size, "model.norm", "norm")
    if not config.tie_word_embeddings:
        yield _vocabulary_slot(plan, "lm_head.weight", "lm_head.weight")


def separate_head_slot(plan: ShardingPlan) -> WeightSlot:
    """The slot of an `lm_head` that is tied to the embedding, but held in another form."""
    return _vocabulary_slot(plan, EMBEDDING, "lm_head.weight")


def _vocabulary_slot(plan: ShardingPlan, name: str, parameter: str) -> WeightSlot:
    vocab, hidden = plan.config.vocab_size, plan.config.hidden_size
    part = (plan.vocab, Span.whole(hidden))
    return WeightSlot(name, (vocab, hidden), parameter, part=part)


def _norm_slot(size: int, source: str, target: str) -> WeightSlot:
    return WeightSlot(f"{source}.weight", (size,), f"{target}.weight")


def _attention_slots(plan: ShardingPlan, source: str, target: str) -> Iterator[WeightSlot]:
    config, local, head = plan.config, plan.local, plan.config.head_dim
    queries, keys = plan.query_heads.times(head), plan.kv_heads.times(head)
    query_end = local.query_size
    for part, rows, span, start, head_rows in (
        ("q_proj", config.query_size, queries, 0, head),
        ("k_proj", config.key_size, keys, query_end, head),
        ("v_proj", config.key_size, keys, query_end + local.key_size, None),
    ):
        yield from _row_slots(
            plan,
            f"{source}{part}",
            f"{target}qkv_proj",
            rows,
            span,
            start,
            head_rows=head_rows,
            bias=config.qkv_bias,
        )
    if config.qk_norm:
        for part in ("q_norm", "k_norm"):
            yield _norm_slot(head, f"{source}{part}", f"{target}{part}")
    yield from _column_slots(
        plan,
        f"{source}o_proj",
        f"{target}o_proj",
        config.query_size,
        queries,
        bias=config.output_bias,
    )


def _mlp_slots(plan: ShardingPlan, source: str, target: str) -> Iterator[WeightSlot]:
    inner, span, bias = plan.config.intermediate_size, plan.intermediate, plan.config.mlp_bias
    for part, start in (("gate_proj", 0), ("up_proj", span.width)):
        yield from _row_slots(
            plan, f"{source}{part}", f"{target}gate_up_proj", inner, span, start, bias=bias
        )
    yield from _column_slots(
        plan, f"{source}down_proj", f"{target}down_proj", inner, span, bias=bias
    )


def _row_slots(
    plan: ShardingPlan,
    source: str,
    target: str,
    rows: int,
    span: Span,
    start: int,
    *,
    head_rows: int | None = None,
    bias: bool,
) -> Iterator[WeightSlot]:
    """A matrix [rows, hidden] whose rows are divided, and its bias."""
    hidden = plan.config.hidden_size
    part = (span, Span.whole(hidden))
    yield WeightSlot(f"{source}.weight", (rows, hidden), f"{target}.weight", start, head_rows, part)
    if bias:
        yield WeightSlot(f"{source}.bias", (rows,), f"{target}.bias", start, head_rows, part[:1])


def _column_slots(
    plan: ShardingPlan, source: str, target: str, columns: int, span: Span, *, bias: bool
) -> Iterator[WeightSlot]:
    """A matrix [hidden, columns] over divided columns, and the bias of the ranks' sum.

    Its columns are divided with them, or its rows where no sum may be cut.
    """
    hidden = plan.config.hidden_size
    part = (plan.hidden, Span.whole(columns) if plan.whole_sums else span)
    yield WeightSlot(f"{source}.weight", (hidden, columns), f"{target}.weight", part=part)
    if bias:
        yield WeightSlot(f"{source}.bias", (hidden,), f"{target}.bias", part=(plan.summed_bias,))
