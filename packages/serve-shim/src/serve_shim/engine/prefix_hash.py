"""Owns the names of block contents: a sha256 chain over token ids; refuses partial blocks.

A name covers the block's tokens and, through its parent, all tokens before it. Two chains with
different roots share nothing.
"""

from hashlib import sha256

import numpy as np
import numpy.typing as npt

SHARED_ROOT = b"shared"
"""The root of all sequences that may share blocks with other requests."""


def extend_chain(
    chain: list[bytes], token_ids: npt.NDArray[np.int32], block_size: int, root: bytes
) -> None:
    """Append the names of the full blocks of `token_ids` that `chain` does not have yet."""
    parent = chain[-1] if chain else sha256(root).digest()
    for block in range(len(chain), len(token_ids) // block_size):
        tokens = token_ids[block * block_size : (block + 1) * block_size]
        parent = sha256(parent + tokens.tobytes()).digest()
        chain.append(parent)
