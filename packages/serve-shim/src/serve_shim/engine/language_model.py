"""Owns what the worker needs of a model, as an interface; refuses any knowledge of families."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from serve_shim.models.attention_step import AttentionStep


class LanguageModel(Protocol):
    """A decoder over a paged KV cache; `serve_shim.models.causal_lm.CausalLM` is one."""

    def __call__(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Final-norm hidden states [T, hidden] of int64 `input_ids` [T] at `positions` [T]."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, vocab] of hidden states [N, hidden], in the model's dtype."""
        ...

    def bind_kv_cache(self, caches: Sequence[Tensor]) -> None:
        """Use these caches, one per layer, [num_blocks, 2, num_kv_heads, block_size, head_dim]."""
        ...
