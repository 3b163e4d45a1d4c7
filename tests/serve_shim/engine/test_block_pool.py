import pytest

from serve_shim.engine.block_pool import BlockPool


def take(pool: BlockPool, count: int) -> list[int]:
    return [pool.allocate() for _ in range(count)]


def test_released_blank_blocks_are_handed_out_again() -> None:
    pool = BlockPool(2)
    blocks = take(pool, 2)
    assert pool.num_free == 0
    pool.release(blocks)
    assert sorted(take(pool, 2)) == [0, 1]


def test_published_block_is_found_while_held_and_after_release() -> None:
    pool = BlockPool(3)
    (block,) = take(pool, 1)
    pool.publish(block, b"a")
    assert pool.find([b"a", b"b"]) == [block]
    pool.release([block])
    assert (pool.num_free, pool.num_cached) == (3, 1)
    assert pool.find([b"a"]) == [block]


def test_find_stops_at_the_first_gap_in_the_chain() -> None:
    pool = BlockPool(3)
    first, third = take(pool, 2)
    pool.publish(first, b"1")
    pool.publish(third, b"3")
    assert pool.find([b"1", b"2", b"3"]) == [first]


def test_blank_blocks_go_before_cached_ones_and_the_oldest_cached_goes_first() -> None:
    pool = BlockPool(4)
    blocks = take(pool, 3)
    for block, name in zip(blocks, (b"x", b"y", b"z"), strict=True):
        pool.publish(block, name)
    pool.release([blocks[1]])
    pool.release([blocks[0]])
    assert pool.allocate() not in blocks
    assert pool.allocate() == blocks[1]
    assert pool.find([b"y"]) == []
    assert pool.find([b"x"]) == [blocks[0]]


def test_chain_is_evicted_from_its_end() -> None:
    pool = BlockPool(3)
    blocks = take(pool, 3)
    for block, name in zip(blocks, (b"1", b"2", b"3"), strict=True):
        pool.publish(block, name)
    pool.release(blocks)
    pool.allocate()
    assert pool.find([b"1", b"2", b"3"]) == blocks[:2]


def test_shared_block_stays_until_its_last_holder_is_gone() -> None:
    pool = BlockPool(2)
    (block,) = take(pool, 1)
    pool.publish(block, b"a")
    pool.reference([block])
    pool.release([block])
    assert pool.num_free == 1
    pool.check([[block]])
    pool.release([block])
    assert pool.num_free == 2


def test_second_block_with_a_content_stays_nameless() -> None:
    pool = BlockPool(3)
    first, second = take(pool, 2)
    pool.publish(first, b"a")
    pool.publish(second, b"a")
    assert pool.find([b"a"]) == [first]
    pool.release([second])
    assert pool.num_cached == 0


def test_cached_blocks_that_are_shared_cannot_be_allocated_too() -> None:
    pool = BlockPool(2)
    blocks = take(pool, 2)
    pool.publish(blocks[0], b"a")
    pool.release(blocks)
    assert pool.can_take([blocks[0]], 1)
    assert not pool.can_take([blocks[0]], 2)
    assert pool.can_take([], 2)


def test_forgetting_makes_all_free_blocks_blank_and_keeps_references() -> None:
    pool = BlockPool(3)
    held, freed = take(pool, 2)
    pool.publish(held, b"h")
    pool.publish(freed, b"f")
    pool.release([freed])
    pool.forget_all()
    pool.check([[held]])
    assert pool.find([b"h"]) == pool.find([b"f"]) == []
    assert (pool.num_free, pool.num_cached) == (2, 0)


def test_check_notices_a_lost_and_a_doubly_held_block() -> None:
    pool = BlockPool(2)
    (block,) = take(pool, 1)
    with pytest.raises(RuntimeError, match="reference count"):
        pool.check([])
    with pytest.raises(RuntimeError, match="reference count"):
        pool.check([[block], [block]])
    pool.check([[block]])
