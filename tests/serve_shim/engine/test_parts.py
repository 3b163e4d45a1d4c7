import torch
from toy_engine import toy_config, toy_parts

from serve_shim.engine.parts import cache_layout


def test_layout_is_that_of_the_model() -> None:
    layout = cache_layout(toy_config(num_layers=5), 16, torch.bfloat16)
    assert (layout.num_layers, layout.num_kv_heads, layout.head_dim) == (5, 1, 2)
    assert layout.bytes_per_block == 5 * 2 * 1 * 16 * 2 * 2


def test_parts_share_one_configuration() -> None:
    parts = toy_parts(num_blocks=40, max_model_len=50)
    assert parts.core.stats().num_blocks == parts.config.num_blocks == 40
    assert parts.model_config.vocab_size == 64
    assert parts.tokenizer is None
