"""Owns reading a ModelConfig from config.json, old or new; refuses other maths and code."""

import torch

from serve_shim.errors import ModelLoadError
from serve_shim.models.family import Family
from serve_shim.models.fields import Fields
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.registry import find_family
from serve_shim.models.rope import (
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
    yarn_attention_factor,
)

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (1, 1.0),
    "quantization_config": (),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (1, 1.0),
    "embedding_multiplier": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "attention_chunk_size": (),
    "no_rope_layers": (),
    "clip_qkv": (),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ROPE_KEYS = """
    rope_theta rope_type type factor original_max_position_embeddings low_freq_factor
    high_freq_factor attention_factor beta_fast beta_slow mscale mscale_all_dim truncate
    partial_rotary_factor finetuned
"""


def read_hf_config(fields: Fields) -> ModelConfig:
    """Return the facts in a parsed config.json; raises `ModelLoadError` that names the key.

    Refused: `auto_map` (code from the model's repository), unknown architectures, and any
    feature that would change the maths.
    """
    refuse_remote_code(fields)
    family = find_family(fields.texts("architectures"), fields.where)
    _refuse_other_maths(fields)
    hidden = fields.integer("hidden_size", maximum=1 << 20)
    heads = fields.integer("num_attention_heads", maximum=1 << 16)
    layers = fields.integer("num_hidden_layers", maximum=4096)
    window = family.sliding_window(fields, layers)
    try:
        return ModelConfig(
            architecture=family.architecture,
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=_read_head_dim(fields, family, hidden, heads),
            vocab_size=fields.integer("vocab_size"),
            max_position_embeddings=fields.integer("max_position_embeddings", maximum=1 << 24),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=_read_rope(fields),
            tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
            sliding_window=window.size if window else None,
            sliding_layers=window.layers if window else (),
            qk_norm=family.qk_norm,
            qkv_bias=family.qkv_bias or fields.boolean("attention_bias", False),
            output_bias=not family.qkv_bias and fields.boolean("attention_bias", False),
            mlp_bias=fields.boolean("mlp_bias", False),
            bos_token_id=fields.integer("bos_token_id", minimum=0)
            if fields.has("bos_token_id")
            else None,
            eos_token_ids=fields.integers("eos_token_id", ()),
            checkpoint_dtype=_read_dtype(fields),
        )
    except ValueError as error:
        raise ModelLoadError(f"{fields.where}: {error}") from error


def refuse_remote_code(fields: Fields) -> None:
    """Raise `ModelLoadError` where the file asks for code from the model's repository."""
    if fields.has("auto_map"):
        raise fields.error(
            "auto_map",
            "the checkpoint wants its own Python code run, which is never done; "
            "use a checkpoint of a built-in architecture",
        )


def _refuse_other_maths(fields: Fields) -> None:
    for key, neutral in _NEUTRAL.items():
        if fields.has(key) and fields.values[key] not in neutral:
            raise fields.error(key, "this changes the model's maths and is not supported")
    if fields.has("layer_types"):
        for kind in fields.texts("layer_types"):
            if kind not in _LAYER_TYPES:
                raise ModelLoadError(
                    f"{fields.where}: `layer_types` has `{kind[:80]}`; "
                    f"supported: {', '.join(_LAYER_TYPES)}"
                )


def _read_head_dim(fields: Fields, family: Family, hidden: int, heads: int) -> int:
    if not fields.has("head_dim") and family.default_head_dim is None and hidden % heads:
        raise fields.error("hidden_size", f"is no multiple of {heads} heads and no `head_dim`")
    return fields.integer("head_dim", family.default_head_dim or hidden // heads, maximum=4096)


def _read_rope(fields: Fields) -> RopeConfig:
    """Read both generations' keys, which must agree where both are there."""
    theta = fields.number("rope_theta", 10000.0)
    found = [
        _read_rope_section(fields.section(key), fields, theta)
        for key in ("rope_parameters", "rope_scaling")
        if fields.has(key)
    ]
    if len(found) == 2 and found[0] != found[1]:
        raise fields.error("rope_scaling", "contradicts `rope_parameters`; remove one of them")
    return found[0] if found else RopeConfig(theta)


def _read_rope_section(rope: Fields, fields: Fields, theta: float) -> RopeConfig:
    for key, value in rope.values.items():
        if value is not None and (key not in _ROPE_KEYS.split() or isinstance(value, dict)):
            raise rope.error(key, "this may change the rotary positions and is not supported")
    return RopeConfig(rope.number("rope_theta", theta), _read_scaling(rope, fields))


def _read_scaling(rope: Fields, fields: Fields) -> RopeScaling | None:
    if rope.has("partial_rotary_factor") and rope.values["partial_rotary_factor"] != 1:
        raise rope.error("partial_rotary_factor", "partial rotary is not supported")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            rope.number("factor"),
            rope.number("low_freq_factor"),
            rope.number("high_freq_factor"),
            _original_positions(rope, fields),
        )
    if kind == "yarn":
        return _read_yarn(rope, fields)
    raise rope.error("rope_type", "supported are default, linear, llama3 and yarn")


def _read_yarn(rope: Fields, fields: Fields) -> YarnScaling:
    original = _original_positions(rope, fields)
    factor = rope.number("factor", fields.integer("max_position_embeddings") / original)
    scales = [rope.number(key, 0.0, above=-1.0) for key in ("mscale", "mscale_all_dim")]
    return YarnScaling(
        factor,
        original,
        rope.number("attention_factor", yarn_attention_factor(factor, *scales)),
        rope.number("beta_fast", 32.0),
        rope.number("beta_slow", 1.0),
        rope.boolean("truncate", True),
    )


def _original_positions(rope: Fields, fields: Fields) -> int:
    key = "original_max_position_embeddings"
    return rope.integer(key, fields.integer(key, fields.integer("max_position_embeddings")))


def _read_dtype(fields: Fields) -> torch.dtype | None:
    key = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(key):
        return None
    name = fields.text(key)
    if name not in _DTYPES:
        raise fields.error(key, f"supported are {', '.join(_DTYPES)}")
    return _DTYPES[name]
