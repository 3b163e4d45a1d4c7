"""Owns the keys of random numbers; the numbers are hashes of a key and a position.

A sequence draws the same numbers alone, among any batch mates, and again after a pre-emption,
since the op `sample_tokens` has no state.
"""

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15


def sequence_key(seed: int, index: int) -> int:
    """The key of completion `index` of a request with this seed: int64, for any 64-bit seed."""
    key = _mix(_mix(seed & _MASK) + (index + 1) * _GAMMA)
    return key - 2**64 if key >= 2**63 else key


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    z = value & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
