"""Owns the Qwen2 and Qwen2.5 family, with biases on q, k and v."""

from serve_shim.models.family import Family, window_by_layer_type

QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    gguf_architecture="qwen2",
    qkv_bias=True,
    sliding_window=window_by_layer_type,
)
