"""config.json of both generations gives the same facts; what changes the maths is refused."""

from typing import Any

import pytest
import torch

from serve_shim.errors import ModelLoadError
from serve_shim.loading.hf_config import read_hf_config
from serve_shim.models.fields import Fields
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.rope import LinearScaling, Llama3Scaling, YarnScaling

_OLD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "torch_dtype": "bfloat16",
}
_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _read(**changes: Any) -> ModelConfig:
    return read_hf_config(Fields({**_OLD, **changes}, "config.json"))


def test_both_generations_give_the_same_facts() -> None:
    old = _read(rope_scaling={"rope_type": "llama3", **_LLAMA3})
    new = _read(
        rope_theta=None,
        torch_dtype=None,
        dtype="bfloat16",
        rope_parameters={"rope_type": "llama3", "rope_theta": 5000.0, **_LLAMA3},
    )
    assert new == old
    assert new.rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    assert new.checkpoint_dtype is torch.bfloat16


def test_defaults_of_absent_keys() -> None:
    config = _read(num_key_value_heads=None, rms_norm_eps=None, rope_theta=None, torch_dtype=None)
    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert (config.rms_norm_eps, config.rope.theta) == (1e-6, 10000.0)
    assert config.checkpoint_dtype is None
    assert config.eos_token_ids == ()
    assert not config.tie_word_embeddings


def test_head_dim_is_independent_of_the_hidden_size() -> None:
    config = _read(head_dim=24)
    assert (config.query_size, config.key_size) == (96, 48)
    assert _read(architectures=["Qwen3ForCausalLM"]).head_dim == 128


@pytest.mark.parametrize(("value", "expected"), [(2, (2,)), ([2, 5], (2, 5)), (None, ())])
def test_eos_ids_are_one_or_several(value: object, expected: tuple[int, ...]) -> None:
    assert _read(eos_token_id=value).eos_token_ids == expected


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"type": "linear", "factor": 2}, LinearScaling(2.0)),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            YarnScaling(4.0, 64, pytest.approx(1.1386294)),  # type: ignore[arg-type]
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "attention_factor": 0.5,
                "beta_fast": 16,
                "truncate": False,
            },
            YarnScaling(4.0, 256, 0.5, 16.0, 1.0, False),
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "mscale": 0.5, "mscale_all_dim": 0.5},
            YarnScaling(4.0, 256, 1.0),
        ),
        ({"rope_type": "default"}, None),
        ({}, None),
    ],
)
def test_rope_scaling_variants(rope: dict[str, Any], expected: object) -> None:
    assert _read(rope_scaling=rope).rope.scaling == expected


_YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_theta_may_stand_beside_the_scaling_or_in_it(key: str) -> None:
    scaling = {"rope_type": "yarn", **_YARN}
    assert _read(**{key: scaling}).rope.theta == 5000.0
    assert _read(**{key: {**scaling, "rope_theta": 7000.0}}).rope.theta == 7000.0


def test_keys_of_both_generations_may_say_the_same() -> None:
    config = _read(
        rope_parameters={"rope_type": "yarn", "rope_theta": 5000.0, **_YARN},
        rope_scaling={"type": "yarn", "finetuned": True, **_YARN},
    )
    assert isinstance(config.rope.scaling, YarnScaling)


def test_mistral_window_covers_every_layer() -> None:
    config = _read(architectures=["MistralForCausalLM"], sliding_window=9)
    assert [config.window_of(layer) for layer in range(3)] == [9, 9, 9]
    assert _read(architectures=["MistralForCausalLM"]).window_of(0) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"use_sliding_window": False, "max_window_layers": 0}, [None] * 3),
        ({"max_window_layers": 2}, [None, None, 9]),
        ({"max_window_layers": 3}, [None] * 3),
        (
            {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            [9, None, 9],
        ),
    ],
)
def test_qwen_window_covers_its_layers(changes: dict[str, Any], expected: list[int | None]) -> None:
    window = {"use_sliding_window": True, "sliding_window": 9, **changes}
    config = _read(architectures=["Qwen2ForCausalLM"], **window)
    assert [config.window_of(layer) for layer in range(3)] == expected


def test_llama_ignores_a_window_as_its_reference_does() -> None:
    assert _read(sliding_window=9).window_of(0) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "`auto_map`.*own Python code"),
        ({"architectures": ["MixtralForCausalLM"]}, "`MixtralForCausalLM` is not supported"),
        (
            {"architectures": ["Qwen3MoeForCausalLM"]},
            r"not supported \(close to `Qwen3ForCausalLM`",
        ),
        ({"architectures": None}, "`architectures` is missing"),
        ({"architectures": "LlamaForCausalLM"}, "`architectures`.*expected a list of strings"),
        ({"hidden_size": "64"}, "`hidden_size` is '64'; expected an integer"),
        ({"hidden_size": True}, "`hidden_size` is True; expected an integer"),
        ({"hidden_size": -1}, "`hidden_size` is -1; expected 1.."),
        ({"hidden_size": 10**9}, "`hidden_size` is 1000000000; expected 1.."),
        ({"hidden_size": 63}, "`hidden_size` is 63; is no multiple of 4 heads"),
        ({"num_hidden_layers": 10**9}, "`num_hidden_layers`.*expected 1..4096"),
        ({"num_key_value_heads": 3}, "config.json: `num_heads` 4 is not a multiple"),
        ({"head_dim": 15}, "config.json: `head_dim` 15 is odd"),
        ({"rms_norm_eps": float("nan")}, "`rms_norm_eps`.*finite number"),
        ({"rms_norm_eps": 0}, "`rms_norm_eps`.*above 0"),
        ({"torch_dtype": "float8_e4m3fn"}, "`torch_dtype` is 'float8_e4m3fn'; supported"),
        ({"tie_word_embeddings": "no"}, "`tie_word_embeddings`.*true or false"),
        ({"eos_token_id": [2, "x"]}, "`eos_token_id`.*non-negative integer"),
        ({"eos_token_id": -1}, "`eos_token_id`.*non-negative integer"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'; this changes the model's maths"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` is 0.5; this changes"),
        ({"quantization_config": {"quant_method": "gptq"}}, "`quantization_config`.*changes"),
        ({"num_local_experts": 8}, "`num_local_experts` is 8; this changes"),
        ({"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping`.*changes"),
        ({"layer_types": ["linear_attention"] * 3}, "`layer_types` has `linear_attention`"),
        ({"rope_scaling": "x"}, "`rope_scaling` is 'x'; expected an object"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "'dynamic'; supported are"),
        ({"rope_scaling": {"rope_type": "linear"}}, "`rope_scaling`: `factor` is missing"),
        ({"rope_parameters": {"rope_type": 3}}, "`rope_type` is 3; expected"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "`full_attention` is"),
        ({"rope_parameters": {"rope_theta": {"full_attention": 1e6}}}, "`rope_theta` is {'full"),
        ({"rope_scaling": {"mrope_section": [16, 24, 24]}}, "`mrope_section`.*rotary positions"),
        (
            {
                "rope_parameters": {"rope_type": "default"},
                "rope_scaling": {"type": "yarn", **_YARN},
            },
            "`rope_scaling` is .*; contradicts `rope_parameters`",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e300}}, "yarn reaches .* positions"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary is not supported"),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["full_attention"],
            },
            "`layer_types`.*one entry for each of 3 layers",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason) as caught:
        _read(**changes)
    assert str(caught.value).startswith("config.json")


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(ModelLoadError) as caught:
        _read(torch_dtype="x" * 5000)
    assert len(str(caught.value)) < 250
