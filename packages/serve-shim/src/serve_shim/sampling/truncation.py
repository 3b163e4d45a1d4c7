"""Owns min_p, top_k and top_p; refuses to normalise: it zeroes weights and leaves the rest as is.

Weights are proportional to the probabilities, at any scale. The three cuts apply in that order,
each to what the one before it left. Tokens as likely as the last one that a cut keeps are kept
too, so the result does not depend on the order of the vocabulary.
"""

import numpy as np
import numpy.typing as npt


def truncate(weights_V: npt.NDArray[np.float32], *, min_p: float, top_k: int, top_p: float) -> None:
    """Zero the weights of one row that the cuts remove, in place; the largest always stays.

    A row that holds a NaN, or no positive weight, is left as it is.
    """
    if not weights_V.max() > 0.0:
        return
    kept, edge = weights_V, np.float32(0.0)
    if min_p > 0.0:
        edge = np.float32(min_p) * weights_V.max()
        kept = kept[kept >= edge]
    if 0 < top_k < kept.size:
        edge = np.partition(kept, kept.size - top_k)[kept.size - top_k]
        kept = kept[kept >= edge]
    if top_p < 1.0:
        edge = _nucleus_edge(kept, top_p)
    np.multiply(weights_V, weights_V >= edge, out=weights_V)


def _nucleus_edge(kept: npt.NDArray[np.float32], top_p: float) -> np.float32:
    """The smallest weight of the smallest set of likeliest tokens with at least `top_p` mass."""
    total = float(np.add.reduce(kept, dtype=np.float64))
    # All tokens below this weight hold less than 1 - top_p together, so the edge is above it and
    # only the few others need sorting. The margin covers the rounding of `total`.
    floor = np.float32(0.999 * (1.0 - top_p) * total / kept.size)
    likely = np.sort(kept[kept >= floor])[::-1]
    mass = np.cumsum(likely, dtype=np.float64)
    last = int(np.searchsorted(mass, top_p * total, side="left"))
    return likely[min(last, likely.size - 1)]
