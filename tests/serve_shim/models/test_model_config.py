"""Sizes that do not fit each other are refused when the configuration is made."""

from dataclasses import replace

import pytest

from serve_shim.models import ModelConfig, RopeConfig
from serve_shim.models.rope import LinearScaling, RopeScaling, YarnScaling

_CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=12,
    vocab_size=40,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope=RopeConfig(10000.0),
)


def test_sizes_follow_from_heads() -> None:
    assert (_CONFIG.query_size, _CONFIG.key_size) == (48, 24)


def test_window_applies_to_marked_layers() -> None:
    config = replace(_CONFIG, sliding_window=5, sliding_layers=(False, True))
    assert [config.window_of(layer) for layer in range(2)] == [None, 5]
    assert _CONFIG.window_of(0) is None


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, 64),
        (LinearScaling(4.0), 64),
        (YarnScaling(4.0, 32, 1.0), 128),
        (YarnScaling(1.5, 32, 1.0), 64),
    ],
)
def test_yarn_extends_the_positions(scaling: RopeScaling | None, expected: int) -> None:
    config = replace(_CONFIG, rope=RopeConfig(10000.0, scaling))
    assert config.max_positions == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_kv_heads": 3}, "`num_heads` 4 is not a multiple of `num_kv_heads` 3"),
        ({"head_dim": 7}, "`head_dim` 7 is odd"),
        ({"sliding_window": 5}, "`sliding_layers` marks 0 layers, the model has 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(_CONFIG, **changes)  # type: ignore[arg-type]
