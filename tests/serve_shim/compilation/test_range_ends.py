"""Ranges of rows end only where eager and compiled steps of each size agree."""

from pathlib import Path

import pytest
from tuned_starts import settings

import ir_core as ir
from ir_passes.config import PassConfig
from serve_shim.compilation.range_ends import blocked_ends, padded_size
from serve_shim.engine.config import EngineConfig
from serve_shim.errors import SettingsError

BOUNDS = EngineConfig(max_model_len=64, num_blocks=32, max_num_seqs=8)


@pytest.mark.parametrize(
    ("count", "sizes", "padded"),
    [(8, (), 8), (8, (8, 16), 8), (8, (4, 16), 16), (8, (16, 4), 16), (8, (1, 4), 8), (1, (4,), 4)],
)
def test_a_step_runs_at_the_smallest_size_that_holds_it(
    count: int, sizes: tuple[int, ...], padded: int
) -> None:
    assert padded_size(count, sizes) == padded


def test_only_sizes_that_are_padded_are_blocked(tmp_path: Path) -> None:
    captured = settings(tmp_path, tmp_path, "on", 2, cudagraph_capture_sizes=[1, 4, 16])
    assert blocked_ends((1, 8, 64), captured, BOUNDS) == {
        8: "a step of 8 runs at the captured size 16"
    }


def test_a_size_that_no_step_has_is_an_error_as_without_tuning(tmp_path: Path) -> None:
    captured = settings(tmp_path, tmp_path, "on", 2, cudagraph_capture_sizes=[4096])
    with pytest.raises(SettingsError, match="names 4096"):
        blocked_ends((1, 8), captured, BOUNDS)


def test_under_batch_invariance_there_is_one_range(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ir.registry(), "is_batch_invariant", lambda: True)
    ended = blocked_ends((1, 8), settings(tmp_path, tmp_path, "on"), BOUNDS)
    assert set(ended) == {1, 8}
    assert "batch invariance is on" in ended[8]


def test_a_pass_that_gives_ops_a_shard_of_the_rows_leaves_one_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"pass_config": PassConfig(enable_sp=True)}
    compiled = settings(tmp_path, tmp_path, "on", 2, **config)
    assert blocked_ends((1, 8), compiled, BOUNDS) == {}
    monkeypatch.setattr("ir_core.groups.axis_sizes", lambda: {"tp": 2})
    assert blocked_ends((1, 8), compiled, BOUNDS) == dict.fromkeys(
        (1, 8), "pass `shard_sequence` gives calls a part of a step's rows"
    )
    assert blocked_ends((1, 8), settings(tmp_path, tmp_path, "on", 2), BOUNDS) == {}
    assert blocked_ends((1, 8), settings(tmp_path, tmp_path, "on", 0), BOUNDS) == {}
