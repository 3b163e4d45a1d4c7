"""The decoder's contract: caches are checked, merged rows are covered, padding does not leak."""

from dataclasses import replace

import pytest
import torch
from one_sequence import OneSequence

import ir_core as ir
from serve_shim.models import AttentionStep, CausalLM, ModelConfig, RopeConfig, plan_sharding
from serve_shim.models.weight_slots import weight_slots

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
_EVERYTHING = replace(_CONFIG, qk_norm=True, qkv_bias=True, output_bias=True, mlp_bias=True)


def _model(config: ModelConfig = _CONFIG, dtype: torch.dtype = torch.float32) -> CausalLM:
    model = CausalLM(config, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


@pytest.mark.parametrize(
    "config", [_CONFIG, _EVERYTHING, replace(_CONFIG, tie_word_embeddings=True)]
)
def test_slots_cover_every_parameter_exactly_once(config: ModelConfig) -> None:
    model = CausalLM(config, dtype=torch.float32)
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.zero_()
    slots = list(weight_slots(plan_sharding(config)))
    assert len({slot.name for slot in slots}) == len(slots)
    for slot in slots:
        rows = parameters[slot.parameter][slot.start : slot.start + slot.shape[0]]
        assert rows.shape == slot.shape
        rows.add_(1)
    assert all((parameter == 1).all() for parameter in parameters.values())


@pytest.mark.parametrize("config", [_CONFIG, _EVERYTHING])
def test_chunks_give_the_logits_of_the_whole(config: ModelConfig) -> None:
    model = _model(config)
    ids = list(range(20))
    whole = OneSequence(model).step(ids)
    sequence = OneSequence(model)
    parts = torch.cat([sequence.step(ids[:7]), sequence.step(ids[7:8]), sequence.step(ids[8:])])
    torch.testing.assert_close(parts, whole)


def test_requests_and_padding_of_one_step_are_independent() -> None:
    model = _model()
    alone = [OneSequence(model).step(ids) for ids in ([1, 2, 3], [7])]
    block, shape = 8, (4, 2, 2, 8, 12)
    model.bind_kv_cache([torch.full(shape, float("nan")) for _ in range(2)])
    step = AttentionStep(
        block_table=torch.tensor([[2], [0]], dtype=torch.int32),
        seq_lens=torch.tensor([3, 1], dtype=torch.int32),
        query_start_loc=torch.tensor([0, 3, 4], dtype=torch.int32),
        slot_mapping=torch.tensor([2 * block, 2 * block + 1, 2 * block + 2, 0, -1, -1]),
    )
    with torch.inference_mode():
        ids, positions = torch.tensor([1, 2, 3, 7, 5, 5]), torch.tensor([0, 1, 2, 0, 0, 0])
        logits = model.compute_logits(model(ids, positions, step)[:4])
    torch.testing.assert_close(logits, torch.cat(alone))


def test_every_op_of_a_step_goes_through_the_ir() -> None:
    OneSequence(_model()).step([1, 2, 3])
    executed = {row.op for row in ir.selections()}
    wanted = {"linear", "rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding"}
    assert wanted | {"paged_attention", "embedding"} <= executed


@pytest.mark.parametrize(
    ("shape", "count", "dtype", "reason"),
    [
        ((4, 2, 2, 8, 12), 1, torch.float32, "1 caches given for 2 layers"),
        ((4, 2, 8, 2, 12), 2, torch.float32, r"layer 0 has shape \[4, 2, 8, 2, 12\], expected"),
        ((4, 2, 2, 8), 2, torch.float32, "expected .num_blocks, 2, 2, block_size, 12"),
        ((4, 2, 2, 8, 12), 2, torch.float16, "is torch.float16, the model torch.float32"),
    ],
)
def test_cache_of_another_shape_is_refused(
    shape: tuple[int, ...], count: int, dtype: torch.dtype, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        _model().bind_kv_cache([torch.zeros(shape, dtype=dtype)] * count)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_in_its_dtype(dtype: torch.dtype) -> None:
    logits = OneSequence(_model(dtype=dtype)).step([1, 2, 3])
    assert logits.dtype is dtype
    exact = OneSequence(_model()).step([1, 2, 3])
    assert (logits.float() - exact).abs().max() < 0.1 * exact.abs().max()
