"""Owns reading a ModelConfig from GGUF metadata; refuses other architectures and split files."""

import torch

from serve_shim.errors import ModelLoadError
from serve_shim.loading.gguf_file import GgufFile
from serve_shim.models.family import Family, window_of_every_layer
from serve_shim.models.fields import Fields
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.registry import find_gguf_family
from serve_shim.models.rope import (
    FrequencyFactors,
    LinearScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
    yarn_attention_factor,
)

FREQUENCY_TENSOR = "rope_freqs.weight"
_KNOWN = """
    context_length embedding_length block_count feed_forward_length vocab_size tensor_data_layout
    attention.head_count attention.head_count_kv attention.key_length attention.value_length
    attention.layer_norm_rms_epsilon attention.sliding_window expert_used_count
    rope.dimension_count rope.freq_base rope.scale_linear rope.scaling.type rope.scaling.factor
    rope.scaling.original_context_length rope.scaling.finetuned
"""
_NEUTRAL = {
    "expert_count": 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.causal": True,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
"""Keys of llama.cpp that change the maths, with the value at which they do not."""


def read_gguf_family(file: GgufFile) -> Family:
    """Return the family named in `general.architecture`; raises `ModelLoadError` for others."""
    metadata = file.metadata
    if metadata.integer("split.count", 1, minimum=0) > 1:
        raise metadata.error("split.count", "merge a split GGUF into one file first")
    return find_gguf_family(metadata.text("general.architecture"), metadata.where)


def read_gguf_config(file: GgufFile, family: Family) -> ModelConfig:
    """Return the facts in the metadata; sizes of the vocabulary come from the tensors.

    Raises `ModelLoadError` that names the key for values that are missing, wrong, or would
    change the maths in a way the decoder does not follow.
    """
    fields = _fields_of(file, family)
    _refuse_other_maths(fields)
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    layers = fields.integer("block_count", maximum=4096)
    head_dim = fields.integer("attention.key_length", hidden // heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.error("attention.value_length", f"expected the key length, {head_dim}")
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.error("rope.dimension_count", f"partial rotary; expected {head_dim}")
    window = window_of_every_layer(_window_fields(fields), layers)
    try:
        return ModelConfig(
            architecture=family.architecture,
            hidden_size=hidden,
            intermediate_size=fields.integer("feed_forward_length"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab_size=_vocab_size(file),
            max_position_embeddings=fields.integer("context_length", maximum=1 << 24),
            rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            rope=RopeConfig(
                fields.number("rope.freq_base", 10000.0), _read_scaling(file, fields, head_dim)
            ),
            tie_word_embeddings="output.weight" not in file.tensors,
            sliding_window=window.size if window else None,
            sliding_layers=window.layers if window else (),
            qk_norm=family.qk_norm,
            qkv_bias=family.qkv_bias,
            bos_token_id=_token_id(file.metadata, "bos"),
            eos_token_ids=_eos_ids(file.metadata),
            checkpoint_dtype=_stored_dtype(file),
        )
    except ValueError as error:
        raise ModelLoadError(f"{fields.where}: {error}") from error


def _fields_of(file: GgufFile, family: Family) -> Fields:
    prefix = f"{family.gguf_architecture}."
    values = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.values.items()
        if key.startswith(prefix)
    }
    return Fields(values, f"{file.path} `{family.gguf_architecture}`")


def _refuse_other_maths(fields: Fields) -> None:
    for key in sorted(fields.values.keys() - set(_KNOWN.split())):
        if key not in _NEUTRAL:
            raise fields.error(key, "unknown, so it may change the model's maths")
        if fields.values[key] != _NEUTRAL[key]:
            raise fields.error(key, "this changes the model's maths and is not supported")


def _window_fields(fields: Fields) -> Fields:
    window = fields.values.get("attention.sliding_window") or None
    return Fields({"sliding_window": window}, fields.where)


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding else file.metadata.integer("tokenizer.vocab_size", 1)


def _read_scaling(file: GgufFile, fields: Fields, head_dim: int) -> RopeScaling | None:
    scaling = _scaling_of_metadata(fields)
    if FREQUENCY_TENSOR not in file.tensors:
        return scaling
    if scaling is not None:
        raise ModelLoadError(
            f"{fields.where}: both `rope.scaling` and the tensor `{FREQUENCY_TENSOR}` scale the "
            "rotary positions; which one is meant cannot be told"
        )
    return _read_factors(file, head_dim)


def _scaling_of_metadata(fields: Fields) -> RopeScaling | None:
    """The scaling in the keys; a factor without a type is linear, as in llama.cpp."""
    key, older = "rope.scaling.factor", "rope.scale_linear"
    if fields.has(older) and not fields.has(key):
        key = older
    kind = fields.text("rope.scaling.type", "linear" if fields.has(key) else "none")
    if kind == "none":
        return None
    factor = fields.number(key)
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn":
        original = fields.integer("rope.scaling.original_context_length")
        return YarnScaling(factor, original, yarn_attention_factor(factor))
    raise fields.error("rope.scaling.type", "supported are none, linear and yarn")


def _read_factors(file: GgufFile, head_dim: int) -> FrequencyFactors:
    tensor = file.tensors[FREQUENCY_TENSOR]
    if tensor.shape != (head_dim // 2,):
        raise file.metadata.error(
            FREQUENCY_TENSOR, f"shape {list(tensor.shape)}, expected [{head_dim // 2}]"
        )
    factors = torch.empty(1, head_dim // 2)
    file.read_rows(tensor, 0, 1, factors)
    return FrequencyFactors(tuple(factors[0].tolist()))


def _token_id(metadata: Fields, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    return metadata.integer(key, minimum=0) if metadata.has(key) else None


def _eos_ids(metadata: Fields) -> tuple[int, ...]:
    ids = (_token_id(metadata, name) for name in ("eos", "eot"))
    return tuple(dict.fromkeys(token for token in ids if token is not None))


def _stored_dtype(file: GgufFile) -> torch.dtype:
    """Return bfloat16 for quantised files, else the type of the largest tensor."""
    formats = {tensor.format.name for tensor in file.tensors.values() if tensor.format.is_quantised}
    if formats or not file.tensors:
        return torch.bfloat16
    largest = max(file.tensors.values(), key=lambda tensor: tensor.num_bytes)
    return {"F32": torch.float32, "F16": torch.float16}.get(largest.format.name, torch.bfloat16)
