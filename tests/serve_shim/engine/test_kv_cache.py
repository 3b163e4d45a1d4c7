import pytest
import torch

from serve_shim.engine.kv_cache import (
    CacheLayout,
    allocate_caches,
    check_size,
    choose_num_blocks,
)
from serve_shim.errors import SettingsError

LAYOUT = CacheLayout(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4, dtype=torch.bfloat16)
BIG = CacheLayout(num_layers=32, num_kv_heads=8, head_dim=128, block_size=16, dtype=torch.float32)


def choose(layout: CacheLayout, **changes: int | None) -> int:
    bounds: dict[str, int | None] = {
        "max_num_seqs": 64,
        "max_model_len": 4096,
        "memory_bytes": None,
        "available_bytes": 2**36,
    }
    return choose_num_blocks(layout, **{**bounds, **changes})  # pyright: ignore[reportArgumentType]


def test_block_counts_keys_and_values_of_all_layers() -> None:
    assert LAYOUT.bytes_per_block == 3 * 2 * 2 * 4 * 8 * 2


def test_cache_is_no_larger_than_all_sequences_can_use() -> None:
    assert choose(LAYOUT, max_num_seqs=2, max_model_len=10) == 2 * 3


def test_cache_stays_within_a_gibibyte_by_default() -> None:
    assert choose(LAYOUT, max_num_seqs=10**6) == 2**30 // LAYOUT.bytes_per_block


def test_cache_grows_so_that_one_context_fits() -> None:
    assert choose(BIG, max_model_len=8192) == 512


def test_cache_never_takes_most_of_the_memory() -> None:
    blocks = choose(BIG, max_model_len=8192, available_bytes=2**30)
    assert blocks * BIG.bytes_per_block <= 0.4 * 2**30


def test_given_bound_is_kept() -> None:
    assert choose(BIG, memory_bytes=5 * BIG.bytes_per_block + 1) == 5


def test_bound_below_one_block_is_refused() -> None:
    with pytest.raises(SettingsError, match="`kv_cache_memory_bytes`"):
        choose(BIG, memory_bytes=10)


def test_cache_must_fit_into_the_memory() -> None:
    size = LAYOUT.bytes_per_block
    check_size(LAYOUT, 5, 5 * size)
    with pytest.raises(SettingsError, match=f"take {5 * size} bytes.*{5 * size - 1}.* at most 4"):
        check_size(LAYOUT, 5, 5 * size - 1)


@pytest.mark.parametrize("num_blocks", [2**40, 2**60])
def test_memory_that_the_system_refuses_is_a_setting_error(num_blocks: int) -> None:
    with pytest.raises(SettingsError, match=r"cannot be allocated .*lower `num_blocks`"):
        allocate_caches(BIG, num_blocks)


def test_caches_are_zero_writable_and_separate() -> None:
    caches = allocate_caches(LAYOUT, 5)
    assert [tuple(cache.shape) for cache in caches] == [(5, 2, 2, 4, 8)] * 3
    assert all(cache.dtype is torch.bfloat16 and not cache.any() for cache in caches)
    caches[0][4, 1] = 1.0
    assert float(caches[0].sum()) == 64.0
    assert not caches[1].any()
    assert all(cache.data_ptr() % 64 == 0 for cache in caches)
