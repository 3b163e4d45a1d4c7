"""Owns the Mistral family, whose GGUF files call themselves llama."""

from serve_shim.models.family import Family, window_of_every_layer

MISTRAL = Family(architecture="MistralForCausalLM", sliding_window=window_of_every_layer)
