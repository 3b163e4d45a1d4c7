"""Each mode captures what its name says, and every step finds the smallest graph that holds it."""

import pytest

from ir_passes.config import CudagraphMode
from serve_shim.compilation.graph_table import GraphKey, GraphTable, Uncaptured

SIZES = (1, 2, 4, 8)
NUM_SEQS = 3

PIECEWISE, FULL = CudagraphMode.PIECEWISE, CudagraphMode.FULL
DECODE_ONLY, BOTH = CudagraphMode.FULL_DECODE_ONLY, CudagraphMode.FULL_AND_PIECEWISE


def table(mode: CudagraphMode) -> GraphTable:
    return GraphTable(mode, SIZES, NUM_SEQS)


def pieces(tokens: int) -> GraphKey:
    return GraphKey(PIECEWISE, tokens)


def full(tokens: int, requests: int, uniform: bool) -> GraphKey:
    return GraphKey(FULL, tokens, requests, uniform)


def test_graphs_of_each_mode_the_largest_first() -> None:
    assert table(PIECEWISE).keys == tuple(pieces(size) for size in (8, 4, 2, 1))
    decode = (full(4, 3, True), full(2, 2, True), full(1, 1, True))
    assert table(DECODE_ONLY).keys == decode
    mixed_sizes = [size for size in SIZES if size > 1]
    assert set(table(BOTH).keys) == {*decode, *map(pieces, mixed_sizes)}
    mixed = {full(size, min(size, NUM_SEQS), False) for size in mixed_sizes}
    assert set(table(FULL).keys) == {*mixed, *decode}
    for mode in (PIECEWISE, FULL, DECODE_ONLY, BOTH):
        tokens = [key.tokens for key in table(mode).keys]
        assert tokens == sorted(tokens, reverse=True)
        assert len(set(table(mode).keys)) == len(tokens)


CHOICES: list[tuple[CudagraphMode, int, int, GraphKey | Uncaptured]] = [
    (PIECEWISE, 3, 3, pieces(4)),
    (PIECEWISE, 8, 1, pieces(8)),
    (PIECEWISE, 9, 1, Uncaptured.TOO_LARGE),
    (DECODE_ONLY, 3, 3, full(4, 3, True)),
    (DECODE_ONLY, 3, 2, Uncaptured.NOT_UNIFORM),
    (BOTH, 2, 2, full(2, 2, True)),
    (BOTH, 2, 1, pieces(2)),
    (BOTH, 9, 2, Uncaptured.TOO_LARGE),
    (FULL, 1, 1, full(1, 1, True)),
    (FULL, 5, 2, full(8, 3, False)),
    (FULL, 9, 2, Uncaptured.TOO_LARGE),
]


@pytest.mark.parametrize(("mode", "tokens", "requests", "wanted"), CHOICES)
def test_step_runs_the_smallest_graph_that_holds_it(
    mode: CudagraphMode, tokens: int, requests: int, wanted: GraphKey | Uncaptured
) -> None:
    assert table(mode).find(tokens, requests) == wanted


@pytest.mark.parametrize("mode", [PIECEWISE, FULL, DECODE_ONLY, BOTH])
@pytest.mark.parametrize("sizes", [(1,), (5,), (2, 7), (3, 4, 100)])
@pytest.mark.parametrize("num_seqs", [1, 3, 4, 60])
def test_whatever_is_found_was_captured_and_holds_the_step(
    mode: CudagraphMode, sizes: tuple[int, ...], num_seqs: int
) -> None:
    graphs = GraphTable(mode, sizes, num_seqs)
    for tokens in range(1, 102):
        for requests in range(1, min(tokens, num_seqs) + 1):
            found = graphs.find(tokens, requests)
            if isinstance(found, GraphKey):
                assert found in graphs.keys
                assert found.tokens >= tokens
                assert found.requests is None or found.requests >= requests
