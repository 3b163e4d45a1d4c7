"""Markdown tables that are also readable as plain text."""

from collections.abc import Sequence


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Columns padded to a width; the first `text_columns` to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    marks = [
        "-" * (width + 2) if at < text_columns else "-" * (width + 1) + ":"
        for at, width in enumerate(widths)
    ]
    lines = [_line(cells, widths, text_columns) for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(marks)}|", *lines[1:]])


def number(value: float | None, digits: int = 1) -> str:
    """The value with that many digits after the point, `-` if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share as whole percent, `-` if there is none."""
    return "-" if value is None else f"{value:.0%}"


def _line(cells: Sequence[str], widths: Sequence[int], text_columns: int) -> str:
    padded = [
        f"{cell:<{width}}" if at < text_columns else f"{cell:>{width}}"
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
