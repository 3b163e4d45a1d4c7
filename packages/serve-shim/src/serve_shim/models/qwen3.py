"""Owns the dense Qwen3 family, with norms on the heads of q and k."""

from serve_shim.models.family import Family, window_by_layer_type

QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    gguf_architecture="qwen3",
    qk_norm=True,
    default_head_dim=128,
    sliding_window=window_by_layer_type,
)
