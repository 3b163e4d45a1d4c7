"""Owns how GGML's blocks of integers become the tensors of a quantised matrix, without loss.

Refuses formats that such a matrix cannot hold exactly: those are expanded (`gguf_quants`). Layouts:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from serve_shim.models.weight_form import W4A16, W4A16_MINIMUM, W8A16, WeightForm

Blocks = npt.NDArray[np.uint8]
Split = Callable[[Blocks], tuple[npt.NDArray[np.generic], ...]]
"""Takes blocks [num_blocks, block_bytes]; returns the form's tensors, a row for each block."""


def _halves(blocks: Blocks, start: int) -> npt.NDArray[np.float16]:
    return blocks[:, start : start + 2].view(np.float16)


def _neighbours(packed: Blocks) -> Blocks:
    """Return bytes of the weights 2j and 2j + 1, given bytes [n, 16] of the weights j and j + 16.

    Two bytes at a time, as words b1 << 8 | b0: their low halves make one byte, the high ones too.
    """
    words = np.ascontiguousarray(packed).view(np.uint16)
    low, high = words & 0x0F0F, (words >> 4) & 0x0F0F
    out = np.empty(packed.shape, np.uint8)
    for half, nibbles in ((out[:, :8], low), (out[:, 8:], high)):
        np.copyto(half, nibbles | nibbles >> 4, casting="unsafe")  # drops the upper byte
    return out


def _signed(packed: Blocks, offset: int) -> npt.NDArray[np.int8]:
    """Return the weights [n, 32] of bytes [n, 16] of the weights j and j + 16, less `offset`."""
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=1)
    return nibbles.view(np.int8) - np.int8(offset)


def _q4_0(blocks: Blocks) -> tuple[npt.NDArray[np.generic], ...]:
    return _neighbours(blocks[:, 2:]), _halves(blocks, 0)


def _q4_0_as_bytes(blocks: Blocks) -> tuple[npt.NDArray[np.generic], ...]:
    return _signed(blocks[:, 2:], 8), _halves(blocks, 0)


def _q4_1(blocks: Blocks) -> tuple[npt.NDArray[np.generic], ...]:
    return _neighbours(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2)


def _q5_0(blocks: Blocks) -> tuple[npt.NDArray[np.generic], ...]:
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little").view(np.int8)
    return _signed(blocks[:, 6:], 16) + (fifth << 4), _halves(blocks, 0)


def _q8_0(blocks: Blocks) -> tuple[npt.NDArray[np.generic], ...]:
    return blocks[:, 2:].view(np.int8), _halves(blocks, 0)


SPLITS: Mapping[str, Mapping[WeightForm, Split]] = {
    "Q4_0": {W4A16: _q4_0, W8A16: _q4_0_as_bytes},
    "Q4_1": {W4A16_MINIMUM: _q4_1},
    "Q5_0": {W8A16: _q5_0},
    "Q8_0": {W8A16: _q8_0},
}
"""By format, the forms that hold its blocks exactly; the smallest first."""
