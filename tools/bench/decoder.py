"""A decoder of the embedded model's shape with random weights and any number of layers."""

import torch
from torch import Tensor

from serve_shim.models.attention_step import AttentionStep
from serve_shim.models.causal_lm import CausalLM
from serve_shim.models.matrix import Matrix
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.rope import RopeConfig

_MAX_BLOCKS = 4


def make_decoder(num_layers: int, dtype: torch.dtype, num_blocks: int, block_size: int) -> CausalLM:
    """A model whose weights lie as the chosen implementations want them, with its caches."""
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        hidden_size=576,
        intermediate_size=1536,
        num_layers=num_layers,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=4096,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope=RopeConfig(10000.0),
        tie_word_embeddings=True,
    )
    random = torch.Generator().manual_seed(0)
    model = CausalLM(config, dtype=dtype)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=random) / 24)
    for module in model.modules():
        if isinstance(module, Matrix):
            module.pack()
    shape = (num_blocks, 2, config.num_kv_heads, block_size, config.head_dim)
    model.bind_kv_cache([torch.zeros(shape, dtype=dtype) for _ in range(num_layers)])
    return model


def arguments_of(num_tokens: int, num_requests: int) -> tuple[Tensor, Tensor, AttentionStep]:
    """A step: one token for each request but the first, which has the rest, at short contexts."""
    lengths = torch.ones(num_requests, dtype=torch.int32)
    lengths[0] += num_tokens - num_requests
    starts = torch.zeros(num_requests + 1, dtype=torch.int32)
    starts[1:] = lengths.cumsum(0)
    table = torch.arange(num_requests * _MAX_BLOCKS, dtype=torch.int32).view(-1, _MAX_BLOCKS)
    step = AttentionStep(table, lengths + 16, starts, torch.arange(num_tokens))
    ids = torch.arange(num_tokens)
    return ids, ids + 16, step
