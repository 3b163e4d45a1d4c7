"""Owns the decoder that every family shares, from token ids to logits; refuses to train."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from serve_shim.models.attention import Attention
from serve_shim.models.attention_step import AttentionStep
from serve_shim.models.decoder_layer import DecoderLayer
from serve_shim.models.matrix import MatrixUse
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.parameters import ParameterMaker
from serve_shim.models.rms_norm import RmsNorm
from serve_shim.models.rope import build_cos_sin_cache
from serve_shim.models.weight_form import WeightForm


class CausalLM(nn.Module):
    """A Llama-family model whose maths runs through IR ops; weights are uninitialised until loaded.

    Bind a KV cache before the first `forward`. `dtype` is the activations'; `forms` holds the form
    of each matrix whose weights are not of that dtype, by its path. With tied embeddings `lm_head`
    is the embedding, unless `forms` has an `lm_head` of its own. `max_positions` shortens the
    rotary cache where fewer positions are served than the model has.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device | None = None,
        forms: Mapping[str, WeightForm] | None = None,
        max_positions: int | None = None,
    ) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        make = ParameterMaker(dtype, device, forms or {})
        num_positions = min(config.max_positions, max_positions or config.max_positions)
        cos_sin = build_cos_sin_cache(config.rope, config.head_dim, num_positions, device)
        vocab, hidden = config.vocab_size, config.hidden_size
        is_shared = config.tie_word_embeddings and "lm_head" not in make.forms
        use = MatrixUse.LOOKUP | MatrixUse.PRODUCT if is_shared else MatrixUse.LOOKUP
        self.embedding = make.matrix("embedding", hidden, vocab, use=use)
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, cos_sin, make.at(f"layers.{layer}"))
            for layer in range(config.num_layers)
        )
        self.norm = RmsNorm(hidden, config.rms_norm_eps, make)
        self.lm_head = self.embedding if is_shared else make.matrix("lm_head", hidden, vocab)

    def forward(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Return normed hidden states [T, hidden] for int64 `input_ids` [T] at `positions` [T]."""
        x, residual = self.embedding.embed(input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, positions, step)
        if residual is None:
            return self.norm(x)
        return self.norm.add(x, residual)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return [N, vocab] in the model's dtype for hidden states [N, hidden]."""
        return self.lm_head(hidden)

    def bind_kv_cache(self, caches: Sequence[Tensor]) -> None:
        """Give each layer its cache [num_blocks, 2, num_kv_heads, block_size, head_dim].

        Raises `ValueError` for a wrong number, shape or dtype.
        """
        if len(caches) != len(self.layers):
            raise ValueError(f"{len(caches)} caches given for {len(self.layers)} layers")
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            self._check_cache(index, cache)
            attention = layer.get_submodule("attention")
            if isinstance(attention, Attention):
                attention.kv_cache = cache

    def _check_cache(self, layer: int, cache: Tensor) -> None:
        config = self.config
        found = list(cache.shape)
        expected = f"[num_blocks, 2, {config.num_kv_heads}, block_size, {config.head_dim}]"
        if cache.dim() != 5 or [found[1], found[2], found[4]] != [
            2,
            config.num_kv_heads,
            config.head_dim,
        ]:
            raise ValueError(f"cache of layer {layer} has shape {found}, expected {expected}")
        if cache.dtype != self.dtype:
            raise ValueError(f"cache of layer {layer} is {cache.dtype}, the model {self.dtype}")
