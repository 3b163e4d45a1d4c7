"""How fast all threads together read memory. Reads; says nothing of who could use it.

Machines read a small buffer faster than a large one, even where neither fits in a cache, so a
bandwidth is always one of a footprint.
"""

import functools

import torch

from serve_shim.huge_pages import HugePages
from tools.bench.contender import Contender

# Products with a vector that stays in the cache, over rows of several lengths: which of them keeps
# most reads in flight differs between machines.
_ROW_ELEMENTS = (2048, 8192, 65536)


@functools.lru_cache(maxsize=1)
def readers(num_bytes: int) -> tuple[Contender, ...]:
    """Ways to read a buffer of about `num_bytes` once; the fastest of them is the bandwidth."""
    rows = max(1, num_bytes // (4 * _ROW_ELEMENTS[-1]))
    size = rows * _ROW_ELEMENTS[-1]
    data = HugePages(4 * size).tensor((size,), torch.float32).fill_(1)
    calls = {"dot": functools.partial(torch.dot, data, data)}
    for width in _ROW_ELEMENTS:
        matrix, vector = data.view(-1, width), torch.ones(width)
        calls[f"rows of {width}"] = functools.partial(torch.mv, matrix, vector)
    return tuple(Contender(name, [call], data.nbytes) for name, call in calls.items())
