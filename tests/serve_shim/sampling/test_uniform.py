import numpy as np

from serve_shim.sampling.uniform import draw_uniform, sequence_key


def draw(seed: int, index: int, positions: range) -> np.ndarray:
    keys = np.full(len(positions), sequence_key(seed, index), np.uint64)
    return draw_uniform(keys, np.array(positions, np.int64))


def test_draws_depend_on_seed_index_and_position_only() -> None:
    alone = draw(7, 0, range(5, 6))
    among = draw_uniform(
        np.array([sequence_key(s, 0) for s in (1, 7, 9)], np.uint64), np.array([3, 5, 8])
    )
    assert alone[0] == among[1]
    assert (
        len({draw(s, i, range(p, p + 1))[0] for s in (1, 2) for i in (0, 1) for p in (0, 1)}) == 8
    )


def test_draws_are_spread_evenly_over_the_unit_interval() -> None:
    draws = draw(3, 0, range(100_000))
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    counts, _ = np.histogram(draws, bins=10, range=(0.0, 1.0))
    # Six standard deviations of a binomial count; the draws are fixed, so this cannot flake.
    assert np.abs(counts - 10_000).max() < 6 * np.sqrt(9_000)


def test_draws_of_neighbouring_keys_and_positions_are_uncorrelated() -> None:
    by_seed = np.array([draw(seed, 0, range(10))[9] for seed in range(20_000)])
    by_position = draw(1, 0, range(20_000))
    for draws in (by_seed, by_position):
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.04


def test_keys_accept_any_64_bit_seed() -> None:
    seeds = (-(2**63), -1, 0, 1, 2**63, 2**64 - 1)
    assert all(0 <= sequence_key(seed, 63) < 2**64 for seed in seeds)
    assert sequence_key(-1, 0) == sequence_key(2**64 - 1, 0)
