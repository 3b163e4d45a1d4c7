"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence


def align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """One line for each row, columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
