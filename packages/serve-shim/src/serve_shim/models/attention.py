"""Owns one attention block with q, k and v merged; refuses to run before it has a KV cache."""

import torch
from torch import Tensor, nn

import ir_core as ir
from serve_shim.models.attention_step import AttentionStep
from serve_shim.models.parameters import ParameterMaker
from serve_shim.models.rank_columns import multiply_over_ranks
from serve_shim.models.rms_norm import RmsNorm
from serve_shim.models.sharding import ShardingPlan


class Attention(nn.Module):
    """Grouped-query attention over the paged cache; rows of `qkv_proj` are q, k, v.

    `cos_sin` is the float32 cache that all layers share. `kv_cache` is bound by the engine:
    [num_blocks, 2, num_kv_heads, block_size, head_dim]. A rank has some of the heads, and ranks
    join what `o_proj` makes of them.
    """

    kv_cache: Tensor

    def __init__(
        self, plan: ShardingPlan, layer: int, cos_sin: Tensor, make: ParameterMaker
    ) -> None:
        super().__init__()
        config, self.ranks = plan.local, plan.query_columns
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.sizes = [config.query_size, config.key_size, config.key_size]
        self.scale = config.head_dim**-0.5
        self.sliding_window = config.window_of(layer)
        hidden, size = config.hidden_size, config.head_dim
        self.qkv_proj = make.matrix("qkv_proj", hidden, sum(self.sizes), bias=config.qkv_bias)
        columns = sum(self.ranks.columns) or config.query_size
        self.o_proj = make.matrix("o_proj", columns, plan.hidden.width, bias=config.output_bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RmsNorm(size, config.rms_norm_eps, make)
            self.k_norm = RmsNorm(size, config.rms_norm_eps, make)
        self.register_buffer("cos_sin", cos_sin, persistent=False)
        unbound = torch.empty(0, dtype=make.dtype, device=make.memory.device)
        self.register_buffer("kv_cache", unbound, persistent=False)

    def forward(self, x: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Attend from [T, hidden] at `positions` [T]; writes new keys and values to the cache."""
        num_tokens = x.shape[0]
        q, k, v = self.qkv_proj(x).split(self.sizes, dim=-1)
        q = q.view(num_tokens, self.num_heads, self.head_dim)
        k = k.view(num_tokens, self.num_kv_heads, self.head_dim)
        v = v.view(num_tokens, self.num_kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        # Not donated: q and k may be views of the storage that v is still read from.
        q, k = ir.ops.rotary_embedding(q, k, positions, self.cos_sin, self.head_dim)
        output = torch.empty(
            num_tokens, self.num_heads, self.head_dim, dtype=x.dtype, device=x.device
        )
        ir.ops.paged_attention(
            q,
            k,
            v,
            output,
            self.kv_cache,
            step.block_table,
            step.seq_lens,
            step.query_start_loc,
            step.slot_mapping,
            self.scale,
            self.sliding_window,
        )
        heads = output.view(num_tokens, self.sizes[0])
        return multiply_over_ranks(self.o_proj, heads, self.ranks)
