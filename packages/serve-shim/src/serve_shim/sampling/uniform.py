"""Owns the random numbers of sampling; refuses hidden state: a draw is a function of its counter.

A draw hashes (key, position) with the SplitMix64 finaliser (Steele, Lea, Flood 2014), so a
sequence draws the same numbers alone, among any batch mates, and again after a pre-emption.
"""

import numpy as np
import numpy.typing as npt

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def sequence_key(seed: int, index: int) -> int:
    """The 64-bit key of completion `index` of a request with this seed (any 64-bit integer)."""
    return _mix(_mix(seed & _MASK) + (index + 1) * _GAMMA)


def draw_uniform(
    keys: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """One float64 in [0, 1) per (key, position) pair, with 53 random bits."""
    z = keys + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: int) -> int:
    z = value & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)
