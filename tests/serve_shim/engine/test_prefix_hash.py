import numpy as np

from serve_shim.engine.prefix_hash import SHARED_ROOT, extend_chain


def chain(tokens: list[int], size: int = 4, root: bytes = SHARED_ROOT) -> list[bytes]:
    names: list[bytes] = []
    extend_chain(names, np.array(tokens, np.int32), size, root)
    return names


def test_only_full_blocks_have_names() -> None:
    assert [len(chain(list(range(n)))) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_name_covers_all_tokens_before_the_block() -> None:
    first, second = chain([1, 2, 3, 4, 5, 6, 7, 8])
    other = chain([9, 2, 3, 4, 5, 6, 7, 8])
    assert other[0] != first
    assert other[1] != second
    third = chain([1, 2, 3, 4, 5, 6, 7, 9])
    assert third[0] == first
    assert third[1] != second


def test_chain_can_be_extended_piece_by_piece() -> None:
    tokens = np.arange(12, dtype=np.int32)
    names: list[bytes] = []
    for length in (5, 8, 11, 12):
        extend_chain(names, tokens[:length], 4, SHARED_ROOT)
    assert names == chain(list(range(12)))


def test_roots_and_token_boundaries_separate_chains() -> None:
    assert chain([1, 2, 3, 4]) != chain([1, 2, 3, 4], root=b"request 1")
    # The same bytes cut into other blocks are other contents.
    assert chain([1, 2, 3, 4], size=2)[1] != chain([1, 2, 3, 4], size=4)[0]
