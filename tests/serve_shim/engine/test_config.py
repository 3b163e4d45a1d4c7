from dataclasses import replace

import pytest

from serve_shim.engine.config import EngineConfig
from serve_shim.errors import SettingsError


def test_budget_must_hold_a_token_for_each_running_sequence() -> None:
    with pytest.raises(
        SettingsError, match=r"`max_num_batched_tokens` \(4\).*`max_num_seqs` \(8\)"
    ):
        EngineConfig(max_model_len=16, num_blocks=9, max_num_seqs=8, max_num_batched_tokens=4)


def test_one_context_must_fit_into_the_cache() -> None:
    with pytest.raises(SettingsError, match=r"`max_model_len` \(33\) exceeds .* 32 tokens"):
        EngineConfig(max_model_len=33, num_blocks=2, block_size=16)


def test_step_holds_a_whole_prompt_without_chunked_prefill() -> None:
    chunked = EngineConfig(max_model_len=1000, num_blocks=100, max_num_batched_tokens=128)
    assert chunked.max_step_tokens == 128
    assert replace(chunked, enable_chunked_prefill=False).max_step_tokens == 1000


def test_block_table_has_room_for_a_last_partial_block() -> None:
    assert EngineConfig(max_model_len=33, num_blocks=9, block_size=16).max_blocks_per_sequence == 3
