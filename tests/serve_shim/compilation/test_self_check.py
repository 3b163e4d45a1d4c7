"""A compiled forward pass that computes something else stops the start."""

import pytest
import torch
from torch import Tensor

from serve_shim.compilation.self_check import check_against_eager
from serve_shim.engine.config import EngineConfig
from serve_shim.errors import ModelLoadError
from serve_shim.models.attention_step import AttentionStep

BOUNDS = EngineConfig(max_model_len=32, num_blocks=4, max_num_seqs=2, max_num_batched_tokens=16)


class Forward:
    """Doubles positions; off by `error` at prompts of `wrong` tokens. Notes the lengths."""

    def __init__(self, wrong: int = 0, error: float = 0.0) -> None:
        self.wrong, self.error = wrong, error
        self.lengths: list[int] = []

    def __call__(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        length = len(input_ids)
        self.lengths.append(length)
        assert step.seq_lens.tolist() == [length]
        assert step.slot_mapping.tolist() == list(range(length))
        shift = self.error if length == self.wrong else 0.0
        return 2.0 * positions[:, None].float() + 1 + shift


def test_lengths_are_those_that_one_step_can_hold() -> None:
    compiled = Forward()
    assert check_against_eager(Forward(), compiled, BOUNDS, [1, 7, 7, 500]) == 0.0
    assert compiled.lengths == [1, 7, 16]


def test_small_difference_is_told_and_large_one_refused() -> None:
    worst = check_against_eager(Forward(), Forward(7, 1e-4), BOUNDS, [1, 7])
    assert 0 < worst < 1e-4
    with pytest.raises(ModelLoadError, match=r"differs from the eager one by .* for 7 tokens"):
        check_against_eager(Forward(), Forward(7, 0.5), BOUNDS, [1, 7])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_result_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ModelLoadError):
        check_against_eager(Forward(), Forward(1, value), BOUNDS, [1])
