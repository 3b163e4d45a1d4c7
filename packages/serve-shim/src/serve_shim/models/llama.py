"""Owns the Llama family (Llama 2 and 3, SmolLM)."""

from serve_shim.models.family import Family

LLAMA = Family(
    architecture="LlamaForCausalLM", gguf_architecture="llama", gguf_pairs_neighbours=True
)
