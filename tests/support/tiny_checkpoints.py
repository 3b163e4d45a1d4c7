"""Tiny random checkpoints of every family, as transformers and the gguf package write them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (  # noqa: TID251
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
_W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
        }
    },
    "ignore": ["lm_head"],
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


def _llama(**changes: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**{**_SIZES, **changes}))


def _mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**_SIZES, head_dim=16, sliding_window=7))


def _qwen2() -> PreTrainedModel:
    window: dict[str, Any] = {"use_sliding_window": True, "max_window_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**_SIZES, sliding_window=5, **window))


def _qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=20, tie_word_embeddings=True))


MAKERS: Mapping[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "llama_llama3_rope": lambda: _llama(rope_parameters=LLAMA3_ROPE, head_dim=16),
    "llama_linear_rope": lambda: _llama(rope_parameters=LINEAR_ROPE),
    "llama_yarn_rope": lambda: _llama(rope_parameters=YARN_ROPE),
    "llama_biases_tied": lambda: _llama(
        attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "mistral_window": _mistral,
    "qwen2_window": _qwen2,
    "qwen3_tied": _qwen3,
}


def make_model(name: str) -> PreTrainedModel:
    """Return the model of `MAKERS[name]`, float32, norms and biases random too."""
    torch.manual_seed(11)
    return _randomised(MAKERS[name]())


def make_llama_of_blocks(**changes: Any) -> PreTrainedModel:
    """Return a Llama, as `make_model`, whose rows are whole blocks of 32 weights."""
    torch.manual_seed(12)
    return _randomised(_llama(hidden_size=64, intermediate_size=96, **changes))


def write_w8a8(model: PreTrainedModel, path: Path) -> None:
    """Write `model` as compressed-tensors of W8A8: all linear layers but the head."""
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name]
        scale = (weight.abs().amax(-1, keepdim=True) / 127).bfloat16()
        tensors[name] = (weight / scale.float()).round().clamp(-128, 127).to(torch.int8)
        tensors[f"{name}_scale"] = scale
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = _W8A8
    (path / "config.json").write_text(json.dumps(config))


def _randomised(model: PreTrainedModel) -> PreTrainedModel:
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    architecture: str,
    formats: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> None:
    """Write `model` as llama.cpp's converter does; `architecture` is llama, qwen2 or qwen3.

    `formats` quantises matrices whose names contain a key; the last such key counts.
    """
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    for name, values in _gguf_tensors(model, architecture).items():
        found = [kind for key, kind in (formats or {}).items() if key in name and values.ndim == 2]
        if found:
            writer.add_tensor(name, gguf.quants.quantize(values, found[-1]), raw_dtype=found[-1])
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_tensors(model: PreTrainedModel, architecture: str) -> dict[str, numpy.ndarray]:
    config = model.config
    names = gguf.get_tensor_name_map(
        {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}.get(
            architecture, gguf.MODEL_ARCH.QWEN3
        ),
        config.num_hidden_layers,
    )
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors: dict[str, numpy.ndarray] = {}
    for name, parameter in model.named_parameters():
        values: Tensor = parameter.detach()
        part = name.split(".")[-2]
        if architecture == "llama" and part in heads:
            values = _neighbours(values, heads[part])
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        tensors[str(mapped)] = values.numpy().copy()
    if config.rope_parameters.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _llama3_factors(model)
    return tensors


def _neighbours(values: Tensor, num_heads: int) -> Tensor:
    rows = values.shape[0] // num_heads
    return values.view(num_heads, 2, rows // 2, -1).transpose(1, 2).reshape(values.shape)


def _llama3_factors(model: PreTrainedModel) -> numpy.ndarray:
    scaled = model.get_submodule("model.rotary_emb").get_buffer("inv_freq")
    plain = 1.0 / 10000.0 ** (torch.arange(0, 2 * len(scaled), 2) / (2 * len(scaled)))
    return (plain / scaled).numpy()
