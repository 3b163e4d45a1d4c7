"""Owns the decoder that every family shares, from token ids to logits; refuses to train."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

import ir_core as ir
from ir_core.groups import get_group
from serve_shim.models.attention import Attention
from serve_shim.models.attention_step import AttentionStep
from serve_shim.models.decoder_layer import DecoderLayer
from serve_shim.models.matrix import MatrixUse
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.parameters import ParameterMaker
from serve_shim.models.rms_norm import RmsNorm
from serve_shim.models.rope import build_cos_sin_cache
from serve_shim.models.shard import WHOLE, Shard
from serve_shim.models.sharding import plan_sharding
from serve_shim.models.vocabulary import embed_shard, join_logits
from serve_shim.models.weight_form import WeightForm
from serve_shim.models.weight_memory import WeightMemory


class CausalLM(nn.Module):
    """A Llama-family model whose maths runs through IR ops; weights are uninitialised until loaded.

    Bind a KV cache before the first `forward`. `dtype` is the activations'; `forms` holds the form
    of each matrix whose weights are not of that dtype, by its path. With tied embeddings `lm_head`
    is the embedding, unless `forms` has an `lm_head` of its own. `max_positions` shortens the
    rotary cache where fewer positions are served than the model has.

    With a `shard` the model is one rank's part of `config`, and computes with `local_config`; each
    step then has collectives over `tp`, which every rank must enter. `plan` says what is held.
    Under batch invariance ranks cut no sum: a model has the same bits on any number of them.
    Raises `ModelLoadError` for a model that cannot be divided between so many ranks.
    """

    first_id: Tensor

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        memory: WeightMemory | None = None,
        forms: Mapping[str, WeightForm] | None = None,
        max_positions: int | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        whole_sums = not shard.is_whole and ir.registry().is_batch_invariant()
        self.plan = plan = plan_sharding(config, shard, forms, whole_sums)
        self.is_sharded = not shard.is_whole
        memory = WeightMemory() if memory is None else memory
        make = ParameterMaker(dtype, memory, forms or {})
        num_positions = min(config.max_positions, max_positions or config.max_positions)
        cos_sin = build_cos_sin_cache(config.rope, config.head_dim, num_positions, memory.device)
        vocab, hidden = plan.vocab.width, config.hidden_size
        self.num_ids = vocab
        is_shared = config.tie_word_embeddings and "lm_head" not in make.forms
        use = MatrixUse.LOOKUP | MatrixUse.PRODUCT if is_shared else MatrixUse.LOOKUP
        self.embedding = make.matrix("embedding", hidden, vocab, use=use)
        self.layers = nn.ModuleList(
            DecoderLayer(plan, layer, cos_sin, make.at(f"layers.{layer}"))
            for layer in range(config.num_layers)
        )
        self.norm = RmsNorm(hidden, config.rms_norm_eps, make)
        self.lm_head = self.embedding if is_shared else make.matrix("lm_head", hidden, vocab)
        if self.is_sharded:
            # Not a number in the code, which is then the same on all ranks.
            first_id = torch.tensor([plan.vocab.start], dtype=torch.int64, device=memory.device)
            self.register_buffer("first_id", first_id, persistent=False)

    @property
    def local_config(self) -> ModelConfig:
        """Of the part that this rank holds: its heads, and so its caches, and its other sizes."""
        return self.plan.local

    def forward(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Return normed hidden states [T, hidden] for int64 `input_ids` [T] at `positions` [T]."""
        x, residual = self._embed(input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, positions, step)
        if residual is None:
            return self.norm(x)
        return self.norm.add(x, residual)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return [N, vocab] in the model's dtype for hidden states [N, hidden]."""
        logits = self.lm_head(hidden)
        if not self.is_sharded:
            return logits
        return join_logits(logits, self.plan.shard.size, self.config.vocab_size)

    def bind_kv_cache(self, caches: Sequence[Tensor]) -> None:
        """Give each layer its cache [num_blocks, 2, num_kv_heads, block_size, head_dim].

        Raises `ValueError` for a wrong number, shape or dtype, and for a model of several ranks in
        a process without their group: its sums would silently lack the others'.
        """
        num_ranks, found = self.plan.shard.size, get_group("tp").size
        if self.is_sharded and found != num_ranks:
            raise ValueError(
                f"the model is divided between {num_ranks} ranks, and axis `tp` has {found} in "
                "this process; set its group first"
            )
        if len(caches) != len(self.layers):
            raise ValueError(f"{len(caches)} caches given for {len(self.layers)} layers")
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            self._check_cache(index, cache)
            attention = layer.get_submodule("attention")
            if isinstance(attention, Attention):
                attention.kv_cache = cache

    def _embed(self, input_ids: Tensor) -> Tensor:
        if not self.is_sharded:
            return self.embedding.embed(input_ids)
        return embed_shard(self.embedding, input_ids, self.first_id, self.num_ids)

    def _check_cache(self, layer: int, cache: Tensor) -> None:
        config = self.local_config
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
