"""Owns where each checkpoint tensor lands in the merged parameters; refuses to read any weight."""

from collections.abc import Iterator
from dataclasses import dataclass

from serve_shim.models.model_config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"


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

    @property
    def module(self) -> str:
        """Path of the module that holds the parameter."""
        return self.parameter.rpartition(".")[0]

    @property
    def is_matrix(self) -> bool:
        """Whether the tensor is weights of a matrix, which may be held in more than one form."""
        return len(self.shape) == 2

    @property
    def stop(self) -> int:
        """The row after the last one that it fills."""
        return self.start + self.shape[0]


def weight_slots(config: ModelConfig) -> Iterator[WeightSlot]:
    """Yield a slot for every tensor that the checkpoint must have, each exactly once."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield WeightSlot(EMBEDDING, (vocab, hidden), "embedding.weight")
    for layer in range(config.num_layers):
        yield from _layer_slots(config, f"model.layers.{layer}.", f"layers.{layer}.")
    yield WeightSlot("model.norm.weight", (hidden,), "norm.weight")
    if not config.tie_word_embeddings:
        yield WeightSlot("lm_head.weight", (vocab, hidden), "lm_head.weight")


def separate_head_slot(config: ModelConfig) -> WeightSlot:
    """The slot of an `lm_head` that is tied to the embedding, but held in another form."""
    return WeightSlot(EMBEDDING, (config.vocab_size, config.hidden_size), "lm_head.weight")


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
