"""Owns the facts about one decoder that its maths depends on; refuses sizes that do not fit."""

from dataclasses import dataclass

import torch

from serve_shim.models.rope import RopeConfig, YarnScaling

_MOST_POSITIONS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama-family decoder, independent of the checkpoint format it was read from.

    `architecture` is the Hugging Face class name. `sliding_window` counts the newest key too
    and applies to the layers marked in `sliding_layers`. The bias flags say which projections
    have one. `checkpoint_dtype` is what the weights were stored for, None where it is not said.
    Raises `ValueError` for head counts or sizes that do not fit each other.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] = ()
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    checkpoint_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"`num_heads` {self.num_heads} is not a multiple of `num_kv_heads` "
                f"{self.num_kv_heads}; query heads must share key heads evenly"
            )
        if self.head_dim % 2:
            raise ValueError(f"`head_dim` {self.head_dim} is odd; rotary needs pairs")
        if self.sliding_window is not None and len(self.sliding_layers) != self.num_layers:
            raise ValueError(
                f"`sliding_layers` marks {len(self.sliding_layers)} layers, "
                f"the model has {self.num_layers}"
            )
        if self._yarn_positions > _MOST_POSITIONS:
            raise ValueError(
                f"yarn reaches {self._yarn_positions:g} positions, at most {_MOST_POSITIONS} are "
                "supported"
            )

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def max_positions(self) -> int:
        """Positions that the model can be served with, those that YaRN adds included."""
        return max(self.max_position_embeddings, int(self._yarn_positions))

    @property
    def _yarn_positions(self) -> float:
        scaling = self.rope.scaling
        if not isinstance(scaling, YarnScaling):
            return 0.0
        return scaling.original_max_position * scaling.factor

    def window_of(self, layer: int) -> int | None:
        """Return how many keys a query of `layer` sees, itself included; None for all."""
        if self.sliding_window is None or not self.sliding_layers[layer]:
            return None
        return self.sliding_window
