"""Rotary frequencies equal transformers' own for every scaling."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig  # noqa: TID251
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: TID251

from serve_shim.models.rope import (
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
    build_cos_sin_cache,
    yarn_attention_factor,
)

_HEAD_DIM = 32
_ORIGINAL = 64

_CASES: list[tuple[dict[str, Any], RopeScaling]] = [
    ({"rope_type": "linear", "factor": 3.0}, LinearScaling(3.0)),
    (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        Llama3Scaling(8.0, 1.0, 4.0, _ORIGINAL),
    ),
    ({"rope_type": "yarn", "factor": 4.0}, YarnScaling(4.0, _ORIGINAL, yarn_attention_factor(4.0))),
    (
        {"rope_type": "yarn", "factor": 4.0, "truncate": False, "beta_fast": 8.0, "beta_slow": 2.0},
        YarnScaling(4.0, _ORIGINAL, yarn_attention_factor(4.0), 8.0, 2.0, False),
    ),
    (
        {"rope_type": "yarn", "factor": 16.0, "mscale": 0.7, "mscale_all_dim": 1.3},
        YarnScaling(16.0, _ORIGINAL, yarn_attention_factor(16.0, 0.7, 1.3)),
    ),
]


@pytest.mark.parametrize(
    ("parameters", "scaling"), _CASES, ids=["linear", "llama3", "yarn", "yarn_ramp", "yarn_mscale"]
)
def test_scaled_cache_equals_transformers(parameters: dict[str, Any], scaling: RopeScaling) -> None:
    rope = {"rope_theta": 10000.0, "original_max_position_embeddings": _ORIGINAL, **parameters}
    if parameters["rope_type"] == "linear":
        del rope["original_max_position_embeddings"]
    config = LlamaConfig(
        hidden_size=4 * _HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=4 * _ORIGINAL,
        rope_parameters=rope,
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, None)
    angles = torch.outer(torch.arange(200.0), frequencies)
    expected = torch.cat([angles.cos(), angles.sin()], dim=1) * factor
    found = build_cos_sin_cache(RopeConfig(10000.0, scaling), _HEAD_DIM, 200)
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=0)


def test_plain_cache_is_cos_then_sin_in_float32() -> None:
    cache = build_cos_sin_cache(RopeConfig(10000.0), 4, 3)
    assert cache.dtype is torch.float32
    expected = torch.tensor([[1.0, 0.01]]) * torch.arange(3.0)[:, None]
    torch.testing.assert_close(cache, torch.cat([expected.cos(), expected.sin()], dim=1))


def test_frequency_factors_divide_one_by_one() -> None:
    frequencies, factor = FrequencyFactors((1.0, 4.0)).scale(torch.tensor([1.0, 2.0]), 10000.0)
    assert frequencies.tolist() == [1.0, 0.5]
    assert factor == 1.0


def test_temperature_is_one_without_extension() -> None:
    assert yarn_attention_factor(1.0) == 1.0
    assert yarn_attention_factor(0.5) == 1.0
