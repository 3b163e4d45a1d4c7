import torch
from torch import Tensor

from ir_core.ops.paged_cache import gather_exact, gather_padded, write_tokens

# 4 blocks, 2 key heads, 3 rows, head size 2: each element says where it is.
_SHAPE = (4, 2, 2, 3, 2)


def _cache() -> Tensor:
    return torch.arange(4 * 2 * 2 * 3 * 2, dtype=torch.float32).reshape(_SHAPE)


def test_write_tokens_skips_negative_slots() -> None:
    cache = _cache()
    new = torch.full((3, 2, 2), -1.0)
    write_tokens(new, new * 2, cache, torch.tensor([5, -1, 9]))
    changed = cache != _cache()
    assert changed.sum() == 2 * 2 * 2 * 2
    assert (cache[1, 0, :, 2] == -1).all()
    assert (cache[3, 1, :, 0] == -2).all()


def test_write_tokens_rounds_to_the_dtype_of_the_cache() -> None:
    cache = torch.zeros(_SHAPE, dtype=torch.bfloat16)
    new = torch.full((1, 2, 2), 1.001)
    write_tokens(new, new, cache, torch.tensor([0]))
    assert cache[0, 0, 0, 0, 0] == 1


def test_gather_exact_follows_the_blocks_from_the_oldest_key() -> None:
    cache = _cache()
    got = gather_exact(cache, torch.tensor([2, 0, 3], dtype=torch.int32), 4, 8)
    rows = [(0, 1), (0, 2), (3, 0), (3, 1)]
    expected = torch.stack([cache[block, :, :, row] for block, row in rows], dim=2)
    assert torch.equal(got, expected)


def test_gather_padded_repeats_the_last_key() -> None:
    cache = _cache()
    table = torch.tensor([[2, 0], [1, 0]], dtype=torch.int32)
    got = gather_padded(cache, table, torch.tensor([0, 0]), torch.tensor([4, 2]), 4)
    assert torch.equal(got[0], gather_exact(cache, table[0], 0, 4))
    assert torch.equal(got[1, :, :, :2], gather_exact(cache, table[1], 0, 2))
    assert torch.equal(got[1, :, :, 2:], cache[1, :, :, 1:2].expand(2, 2, 2, 2))


def test_gather_padded_starts_at_each_requests_oldest_key() -> None:
    cache = _cache()
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
    got = gather_padded(cache, table, torch.tensor([1, 2]), torch.tensor([4, 5]), 3)
    assert torch.equal(got[0], gather_exact(cache, table[0], 1, 4))
    assert torch.equal(got[1], gather_exact(cache, table[1], 2, 5))
