"""Owns where each checkpoint tensor lands in the merged parameters; refuses to read any weight."""

from collections.abc import Iterator
from dataclasses import dataclass

from serve_shim.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Tensor `name` of `shape` fills `parameter` of the model from row `start` on.

    Names are those of Hugging Face checkpoints. `head_rows` is set for q and k: the rows of
    one head, which GGUF may store in another order.
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    start: int = 0
    head_rows: int | None = None


def weight_slots(config: ModelConfig) -> Iterator[WeightSlot]:
    """Yield a slot for every tensor that the checkpoint must have, each exactly once."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield WeightSlot("model.embed_tokens.weight", (vocab, hidden), "embedding")
    for layer in range(config.num_layers):
        yield from _layer_slots(config, f"model.layers.{layer}.", f"layers.{layer}.")
    yield WeightSlot("model.norm.weight", (hidden,), "norm.weight")
    if not config.tie_word_embeddings:
        yield WeightSlot("lm_head.weight", (vocab, hidden), "lm_head")


def _layer_slots(config: ModelConfig, source: str, target: str) -> Iterator[WeightSlot]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key, head = config.query_size, config.key_size, config.head_dim
    yield WeightSlot(f"{source}input_layernorm.weight", (hidden,), f"{target}input_norm.weight")
    yield WeightSlot(
        f"{source}post_attention_layernorm.weight",
        (hidden,),
        f"{target}post_attention_norm.weight",
    )
    attention, merged = f"{source}self_attn.", f"{target}attention.qkv_proj"
    for part, rows, start, head_rows in (
        ("q_proj", query, 0, head),
        ("k_proj", key, query, head),
        ("v_proj", key, query + key, None),
    ):
        yield WeightSlot(
            f"{attention}{part}.weight", (rows, hidden), f"{merged}.weight", start, head_rows
        )
        if config.qkv_bias:
            yield WeightSlot(f"{attention}{part}.bias", (rows,), f"{merged}.bias", start, head_rows)
    if config.qk_norm:
        for part in ("q_norm", "k_norm"):
            name = f"{part}.weight"
            yield WeightSlot(f"{attention}{name}", (head,), f"{target}attention.{name}")
    yield from _projection_slots(
        f"{attention}o_proj", f"{target}attention.o_proj", (hidden, query), config.output_bias
    )
    mlp, bias = f"{source}mlp.", config.mlp_bias
    for part, start in (("gate_proj", 0), ("up_proj", inner)):
        yield from _projection_slots(
            f"{mlp}{part}", f"{target}mlp.gate_up_proj", (inner, hidden), bias, start
        )
    yield from _projection_slots(f"{mlp}down_proj", f"{target}mlp.down_proj", (hidden, inner), bias)


def _projection_slots(
    source: str, target: str, shape: tuple[int, int], bias: bool, start: int = 0
) -> Iterator[WeightSlot]:
    yield WeightSlot(f"{source}.weight", shape, f"{target}.weight", start)
    if bias:
        yield WeightSlot(f"{source}.bias", shape[:1], f"{target}.bias", start)
