"""GGUF metadata as a model's configuration, and what of it is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
import torch

from serve_shim.errors import ModelLoadError
from serve_shim.loading import load_model
from serve_shim.loading.gguf_checkpoint import GgufCheckpoint
from serve_shim.loading.source import resolve_source
from serve_shim.models.rope import FrequencyFactors, LinearScaling, YarnScaling

_NUMBERS = {
    "context_length": 64,
    "embedding_length": 32,
    "block_count": 1,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
_SHAPES = {
    "token_embd.weight": (16, 32),
    "output_norm.weight": (32,),
    "blk.0.attn_norm.weight": (32,),
    "blk.0.ffn_norm.weight": (32,),
    "blk.0.attn_q.weight": (32, 32),
    "blk.0.attn_k.weight": (16, 32),
    "blk.0.attn_v.weight": (16, 32),
    "blk.0.attn_output.weight": (32, 32),
    "blk.0.ffn_gate.weight": (48, 32),
    "blk.0.ffn_up.weight": (48, 32),
    "blk.0.ffn_down.weight": (32, 48),
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(
        architecture: str = "llama",
        metadata: dict[str, Any] | None = None,
        tensors: dict[str, tuple[int, ...] | None] | None = None,
        dtype: Any = numpy.float32,
    ) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        values = {**_NUMBERS, "attention.layer_norm_rms_epsilon": 1e-5, **(metadata or {})}
        for key, value in values.items():
            _add(writer, key if key.startswith("split.") else f"{architecture}.{key}", value)
        for name, shape in {**_SHAPES, **(tensors or {})}.items():
            if shape is not None:
                writer.add_tensor(name, numpy.ones(shape, dtype=dtype))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write_file


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif value is not None:
        writer.add_uint32(key, value)


def test_embedded_configuration() -> None:
    config = GgufCheckpoint(resolve_source(None).path).config
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert config.rope.theta == 100000.0
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (2,)
    assert config.checkpoint_dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("dtype", "expected"), [(numpy.float32, torch.float32), (numpy.float16, torch.float16)]
)
def test_plain_files_keep_their_dtype(write: Write, dtype: Any, expected: torch.dtype) -> None:
    assert load_model(str(write(dtype=dtype))).model.dtype is expected


def test_rope_scaling_is_read(write: Write) -> None:
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
    }
    scaling = GgufCheckpoint(write(metadata=yarn)).config.rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.attention_factor == pytest.approx(1.1386294)
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    assert GgufCheckpoint(write(metadata=linear)).config.rope.scaling == LinearScaling(2.0)
    for untyped in (
        {"rope.scaling.factor": 2.0},
        {"rope.scale_linear": 2.0},
        {"rope.scaling.factor": 2.0, "rope.scale_linear": 3.0},
    ):
        assert GgufCheckpoint(write(metadata=untyped)).config.rope.scaling == LinearScaling(2.0)
    off = {"rope.scaling.type": "none", "rope.scaling.factor": 2.0}
    assert GgufCheckpoint(write(metadata=off)).config.rope.scaling is None
    factors = GgufCheckpoint(write(tensors={"rope_freqs.weight": (4,)})).config.rope.scaling
    assert factors == FrequencyFactors((1.0, 1.0, 1.0, 1.0))


def test_keys_that_change_nothing_are_accepted(write: Write) -> None:
    neutral = {
        "attention.causal": True,
        "attention.clamp_kqv": 0.0,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.finetuned": False,
        "tensor_data_layout": "any",
    }
    plain = GgufCheckpoint(write()).config
    assert GgufCheckpoint(write(metadata=neutral)).config == plain


def test_window_and_separate_output_are_read(write: Write) -> None:
    path = write(metadata={"attention.sliding_window": 9}, tensors={"output.weight": (16, 32)})
    config = GgufCheckpoint(path).config
    assert config.window_of(0) == 9
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("architecture", "metadata", "tensors", "reason"),
    [
        ("gpt2", {}, {}, "architecture `gpt2` is not supported; supported: llama, qwen2, qwen3"),
        ("qwen3moe", {}, {}, r"`qwen3moe` is not supported \(close to `qwen3`"),
        ("llama", {"split.count": 2}, {}, "`split.count` is 2; merge"),
        ("llama", {"embedding_length": None}, {}, "`embedding_length` is missing"),
        ("llama", {"block_count": 10**6}, {}, r"`block_count` is 1000000; expected 1..4096"),
        ("llama", {"expert_count": 8}, {}, "`expert_count` is 8; this changes the model's maths"),
        ("llama", {"attn_logit_softcapping": 50.0}, {}, "`attn_logit_softcapping` is 50.0"),
        ("llama", {"attention.scale": 0.5}, {}, "`attention.scale` is 0.5; this changes"),
        ("llama", {"attention.clamp_kqv": 8.0}, {}, "`attention.clamp_kqv` is 8.0; this changes"),
        ("llama", {"attention.causal": False}, {}, "`attention.causal` is False; this changes"),
        ("llama", {"embedding_scale": 12.0}, {}, "`embedding_scale` is 12.0; this changes"),
        ("llama", {"residual_scale": 0.5}, {}, "`residual_scale` is 0.5; this changes"),
        ("llama", {"rope.scaling.yarn_beta_fast": 8.0}, {}, "`rope.scaling.yarn_beta_fast` is 8.0"),
        ("llama", {"rope.scaling.yarn_log_multiplier": 0.1}, {}, "`.*yarn_log_mult.* unknown"),
        ("llama", {"swin_norm": True}, {}, "`swin_norm` is True; unknown"),
        (
            "llama",
            {"rope.scaling.factor": 8.0},
            {"rope_freqs.weight": (4,)},
            "both `rope.scaling` and the tensor `rope_freqs.weight`",
        ),
        ("llama", {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, {}, "longrope"),
        ("llama", {"rope.scaling.type": "linear"}, {}, "`rope.scaling.factor` is missing"),
        ("llama", {"rope.dimension_count": 4}, {}, "partial rotary; expected 8"),
        ("llama", {"attention.value_length": 4}, {}, "expected the key length, 8"),
        ("llama", {}, {"rope_freqs.weight": (3,)}, r"shape \[3\], expected \[4\]"),
        ("llama", {"attention.head_count_kv": 3}, {}, "4 is not a multiple of `num_kv_heads` 3"),
        ("llama", {}, {"output_norm.weight": None}, "1 missing tensors: `model.norm.weight`"),
        ("llama", {}, {"blk.0.strange.weight": (3,)}, "unexpected tensors: `blk.0.strange.weight`"),
        (
            "llama",
            {},
            {"blk.0.attn_v.weight": (32, 32)},
            r"`model.layers.0.self_attn.v_proj.weight` has shape \[32, 32\], expected \[16, 32\]",
        ),
        ("qwen2", {}, {}, "3 missing tensors: .*q_proj.bias"),
        ("qwen3", {}, {}, "2 missing tensors: .*q_norm.weight"),
    ],
)
def test_file_of_another_kind_is_refused(
    write: Write,
    architecture: str,
    metadata: dict[str, Any],
    tensors: dict[str, tuple[int, ...] | None],
    reason: str,
) -> None:
    path = write(architecture, metadata, tensors)
    with pytest.raises(ModelLoadError, match=reason):
        load_model(str(path))
