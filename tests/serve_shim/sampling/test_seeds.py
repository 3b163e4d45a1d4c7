import numpy as np

from ir_core.ops.sampling import uniform
from serve_shim.sampling.seeds import sequence_key


def test_keys_accept_any_64_bit_seed() -> None:
    seeds = (-(2**63), -1, 0, 1, 2**63, 2**64 - 1)
    keys = [sequence_key(seed, 63) for seed in seeds]
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert min(keys) < 0 < max(keys)
    assert sequence_key(-1, 0) == sequence_key(2**64 - 1, 0)


def test_seed_index_position_and_number_each_change_the_draw() -> None:
    draws = {
        uniform(sequence_key(seed, index), position, number)
        for seed in (1, 2)
        for index in (0, 1)
        for position in (0, 1)
        for number in (0, 1)
    }
    assert len(draws) == 16


def test_draws_are_spread_evenly_over_the_unit_interval() -> None:
    draws = np.array([uniform(sequence_key(3, 0), position, 0) for position in range(100_000)])
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    counts, _ = np.histogram(draws, bins=10, range=(0.0, 1.0))
    # Six standard deviations of a binomial count; the draws are fixed, so this cannot flake.
    assert np.abs(counts - 10_000).max() < 6 * np.sqrt(9_000)


def test_draws_of_neighbours_are_uncorrelated() -> None:
    key = sequence_key(1, 0)
    for draws in (
        [uniform(sequence_key(seed, 0), 9, 0) for seed in range(20_000)],
        [uniform(key, position, 0) for position in range(20_000)],
        [uniform(key, 5, number) for number in range(20_000)],
    ):
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.04
