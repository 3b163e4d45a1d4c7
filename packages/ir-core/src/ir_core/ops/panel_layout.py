"""Layout `panel16`: sixteen rows side by side, unit by unit. Registers it; knows no op's meaning.

A matrix [rows, …] is taken as bytes per row. Its rows form panels of 16 (the last one has what is
left), and within a panel of w rows each row is split into units of so many bytes (a last unit may
be shorter): unit 0 of all w rows comes first, then unit 1, so a panel is [units][w][unit]. Panels
follow each other, and nothing is padded.

A unit is 4 bytes for weights (1 float32, 2 bfloat16 or float16, 4 int8, 8 nibbles) and one element
for scales and minimums. So a bfloat16 panel [in / 2][16][2] is the B operand of a tile product and
sixteen lanes of a dot product of pairs, and a float32 one [in][16] is sixteen lanes of an FMA.
"""

from collections.abc import Iterator
from math import gcd

import torch
from torch import Tensor

from ir_core.op import IrOp

PANEL16 = "panel16"
PANEL_ROWS = 16
WEIGHT_UNIT = 4

# Torch splits a larger copy between threads, and on a busy machine each such copy waits for a
# core, which may cost more than the whole packing.
_MAX_ELEMENTS = 32767
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def register_panel16(op: IrOp) -> None:
    """Register `panel16` for an op whose first weight is the matrix and whose others scale it."""
    op.register_layout(PANEL16, pack=pack, unpack=unpack)


def pack(weight: Tensor, *scales: Tensor | None) -> tuple[Tensor | None, ...]:
    """Pack a weight and what scales it, in place where they are contiguous."""
    packed = (None if each is None else pack_panels(each, each.itemsize) for each in scales)
    return (pack_panels(weight, WEIGHT_UNIT), *packed)


def unpack(weight: Tensor, *scales: Tensor | None) -> tuple[Tensor | None, ...]:
    """Fresh plain tensors of what `pack` made."""
    plain = (None if each is None else unpack_panels(each, each.itemsize) for each in scales)
    return (unpack_panels(weight, WEIGHT_UNIT), *plain)


def pack_panels(matrix: Tensor, unit: int) -> Tensor:
    """Pack [rows, …] into panels: `matrix` itself, or a packed copy if it is not contiguous.

    `unit` is 1, 2, 4 or 8 bytes. Scratch is a copy of one panel, or of 32767 units of several.
    """
    matrix = matrix.contiguous()
    words, per_unit = _words(matrix.detach(), unit)
    for panels in _batches(words):
        rows = torch.empty_like(panels)
        _copy(rows, panels)
        for plain, packed in _parts(rows, panels, per_unit):
            _copy(packed, plain)
    return matrix


def unpack_panels(matrix: Tensor, unit: int) -> Tensor:
    """The plain matrix of one that `pack_panels` packed; a new tensor."""
    matrix = matrix.detach().contiguous()
    result = torch.empty_like(matrix)
    sources, per_unit = _words(matrix, unit)
    targets, _ = _words(result, unit)
    for packed_panels, panels in zip(_batches(sources), _batches(targets), strict=True):
        for plain, packed in _parts(panels, packed_panels, per_unit):
            _copy(plain, packed)
    return result


def _words(matrix: Tensor, unit: int) -> tuple[Tensor, int]:
    """[rows, words] of the largest words that rows and units are made of; words in a unit."""
    if matrix.numel() == 0:
        return matrix.new_empty(0, 0), unit
    rows = matrix.shape[0] if matrix.dim() else 1
    by_row = matrix.view(rows, matrix.numel() // rows)
    start = matrix.storage_offset() * matrix.itemsize
    word = gcd(unit, by_row.shape[1] * matrix.itemsize, start)
    return by_row.view(_WORDS[word]), unit // word


def _batches(words: Tensor) -> Iterator[Tensor]:
    """Panels [panels, rows of a panel, words], several at a time; the last, shorter one alone."""
    rows, width = words.shape
    step = PANEL_ROWS * max(1, _MAX_ELEMENTS // (PANEL_ROWS * max(1, width)))
    full = rows - rows % PANEL_ROWS
    for start in range(0, full, step):
        yield words[start : min(start + step, full)].unflatten(0, (-1, PANEL_ROWS))
    if full < rows:
        yield words[full:].unsqueeze(0)


def _parts(rows: Tensor, panels: Tensor, per_unit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of equal shape on plain rows and on packed panels: the whole units, then what is left.

    Both are [panels, rows of a panel, words].
    """
    num_panels, height, width = rows.shape
    units, rest = divmod(width, per_unit)
    flat = panels.flatten(1)
    whole = flat[:, : height * units * per_unit].view(num_panels, units, height, per_unit)
    yield rows[:, :, : units * per_unit].unflatten(2, (units, per_unit)).transpose(1, 2), whole
    if rest:
        left = flat[:, height * units * per_unit :].view(num_panels, height, rest)
        yield rows[:, :, units * per_unit :], left


def _copy(target: Tensor, source: Tensor) -> None:
    """Copy between tensors [panels, …, …] of one shape, in pieces along their dim 1."""
    step = max(1, _MAX_ELEMENTS * target.shape[1] // max(1, target.numel()))
    for start in range(0, target.shape[1], step):
        target[:, start : start + step].copy_(source[:, start : start + step])
