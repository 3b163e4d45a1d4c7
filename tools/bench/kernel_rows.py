"""Measured cases as rows: time, bandwidth, its share of what reading alone reaches, speed-ups."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tools.bench.contender import Case
from tools.bench.read_bandwidth import readers
from tools.bench.table import format_table, number, percent
from tools.bench.turns import measure_in_turns

_HEAD = ("size", "tokens", "provider", "layout", "us", "GB/s", "read GB/s", "of read")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One contender in one case; all figures are None where `reason` says why it did not run.

    Attributes:
        op, format, size, tokens, provider, layout: which.
        is_selected: whether the default priority chooses it.
        microseconds: median time of a call.
        gigabytes_per_second: bytes of weights, or of keys and values, over that time.
        read_bandwidth: GB/s at which reading alone goes through as many bytes as all copies have,
            measured in turns with the contender.
        share_of_read: the one over the other.
        speedups: for each baseline its time over this one's.
        reason: why it declined.
    """

    op: str
    format: str
    size: str
    tokens: int
    provider: str
    layout: str = ""
    is_selected: bool = False
    microseconds: float | None = None
    gigabytes_per_second: float | None = None
    read_bandwidth: float | None = None
    share_of_read: float | None = None
    speedups: dict[str, float] | None = None
    reason: str = ""


def measure_case(case: Case, seconds: float) -> list[KernelRow]:
    """Time everything of a case in turns, with reads of as many bytes as the copies have."""
    reads = readers(case.footprint)
    times = measure_in_turns([*reads, *case.contenders], seconds)
    bandwidth = max(read.num_bytes / us / 1e3 for read, us in zip(reads, times, strict=False))
    timed = list(zip(case.contenders, times[len(reads) :], strict=True))
    baselines = {each.name: us for each, us in timed if each.is_baseline}
    rows: list[KernelRow] = []
    for contender, us in timed:
        speed = contender.num_bytes / us / 1e3
        rows.append(
            KernelRow(
                case.op,
                case.format,
                case.size,
                case.tokens,
                contender.name,
                contender.layout,
                contender.is_selected,
                us,
                speed,
                bandwidth,
                speed / bandwidth,
                {name: baseline / us for name, baseline in baselines.items()},
            )
        )
    return rows + [
        KernelRow(case.op, case.format, case.size, case.tokens, name, reason=reason)
        for name, reason in case.declined
    ]


def format_kernel_rows(rows: Sequence[KernelRow]) -> str:
    """A table of the rows that ran, `*` where selected; below it who declined, and why."""
    ran = [row for row in rows if row.speedups is not None]
    baselines = list(dict.fromkeys(name for row in ran for name in row.speedups or ()))
    cells = [
        (
            row.size,
            str(row.tokens),
            row.provider + (" *" if row.is_selected else ""),
            row.layout or "-",
            number(row.microseconds),
            number(row.gigabytes_per_second),
            number(row.read_bandwidth),
            percent(row.share_of_read),
            *(number((row.speedups or {}).get(name), 2) for name in baselines),
        )
        for row in ran
    ]
    head = (*_HEAD, *(f"x {name}" for name in baselines))
    return "\n".join([format_table(head, cells, text_columns=4), *_declined(rows)])


def _declined(rows: Iterable[KernelRow]) -> Iterable[str]:
    return dict.fromkeys(f"{row.provider}: {row.reason}" for row in rows if row.reason)
