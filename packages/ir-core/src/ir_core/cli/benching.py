"""`ir bench`: providers side by side over an op's workloads, and the overhead of dispatch.

Asserts no speed. Bytes are those of tensor arguments and outputs, each counted once; they say
something only of a workload that is marked `moves_all_bytes`.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import ir_core as ir
from ir_core.cli.arguments import parse_dtype
from ir_core.cli.errors import UsageError
from ir_core.cli.overhead import measure_overhead
from ir_core.cli.stopwatch import median_microseconds
from ir_core.errors import UnknownProviderError
from ir_core.implementation import NATIVE
from ir_core.op import IrOp
from ir_core.suggestion import suggest
from ir_core.testing import Case, CheckDeclined, Workload, require_selected, workloads_of
from ir_core.weight_layouts import PLAIN

# Larger than any cache in use, so that reading it is reading memory.
_BANDWIDTH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Measurement:
    """One provider on one workload; the time is None where `reason` says why it did not run.

    The other numbers are None too unless moving the tensors' bytes is what bounds the workload.
    `layout` is that of the weights, "" for an op without any.
    """

    workload: str
    provider: str
    microseconds: float | None
    gigabytes_per_second: float | None
    share_of_bandwidth: float | None
    reason: str = ""
    layout: str = ""

    def to_text(self) -> str:
        """One line of the table."""
        reader = f"{self.provider} ({self.layout})" if self.layout else self.provider
        if self.microseconds is None:
            return f"{self.workload:14} {reader:22} {self.reason}"
        row = f"{self.workload:14} {reader:22} {self.microseconds:10.1f} us "
        if self.gigabytes_per_second is None:
            return f"{row} {'-':>12} {'-':>6}"
        return f"{row} {self.gigabytes_per_second:7.2f} GB/s {self.share_of_bandwidth:6.1%}"


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    ir.load_plugins()
    if options.overhead:
        overhead = measure_overhead(options.seconds)
        print(json.dumps(asdict(overhead), indent=2) if options.json else overhead.to_text())
        return 0
    if options.op is None:
        raise UsageError("name the OP to time, or use --overhead")
    op = ir.registry()[options.op]
    bandwidth = read_bandwidth()
    rows = measure(op, parse_dtype(options.dtype), options.provider, options.seconds, bandwidth)
    if options.json:
        data = {"op": op.name, "dtype": options.dtype, "read_bandwidth": bandwidth}
        print(json.dumps({**data, "measurements": [asdict(row) for row in rows]}, indent=2))
    else:
        print(f"{op.name}, {options.dtype}, {torch.get_num_threads()} threads")
        print(f"read bandwidth {bandwidth:.1f} GB/s; a share above 100% means the cache was enough")
        print("\n".join(row.to_text() for row in rows))
    return 0


def read_bandwidth() -> float:
    """Gigabytes per second at which a sum reads memory, the best of a few runs."""
    data = torch.ones(_BANDWIDTH_BYTES // 4)
    microseconds = median_microseconds({"sum": data.sum}, 0.2)["sum"]
    return _BANDWIDTH_BYTES / microseconds / 1e3


def measure(
    op: IrOp,
    dtype: torch.dtype,
    providers: Sequence[str] | None,
    seconds: float,
    bandwidth: float,
) -> list[Measurement]:
    """A measurement per bench workload, provider and layout it reads; they are taken in turns."""
    for provider in providers or ():
        if provider not in op.implementations:
            known = suggest(provider, op.implementations)
            raise UnknownProviderError(f"Op `{op.name}` has no provider `{provider}`; {known}")
    chosen = tuple(providers or op.implementations)
    rows: list[Measurement] = []
    for workload in bench_workloads(op):
        rows += _measure_workload(op, workload, dtype, chosen, seconds, bandwidth)
    return rows


def bench_workloads(op: IrOp) -> list[Workload]:
    """The workloads an op marks for benches; without such, the standard ones that have tokens."""
    if not op.has_input_generator:
        raise UsageError(f"`{op.name}` has no input generator, so there is nothing to time")
    everything = workloads_of(op)
    marked = [each for each in everything if each.bench]
    return marked or [each for each in everything if each.inputs.get("num_tokens") != 0]


def _measure_workload(
    op: IrOp,
    workload: Workload,
    dtype: torch.dtype,
    providers: Sequence[str],
    seconds: float,
    bandwidth: float,
) -> list[Measurement]:
    plain = Case(op.native, workload, dtype).arguments()
    runnable: dict[_Reader, Callable[[], object]] = {}
    reasons: dict[_Reader, str] = {}
    with torch.inference_mode():
        for reader in _readers(op, providers):
            implementation = op.implementations[reader[0]]
            arguments = op.pack(_cloned(plain), reader[1])
            try:
                require_selected(implementation, arguments)
            except CheckDeclined as declined:
                reasons[reader] = str(declined)
            else:
                runnable[reader] = partial(implementation.fn, *arguments)
        times = median_microseconds(runnable, seconds) if runnable else {}
        num_bytes = _num_bytes(plain, op.native(*_cloned(plain)))
    moved = num_bytes if workload.moves_all_bytes else None
    rows: list[Measurement] = []
    for reader in _readers(op, providers):
        provider, layout = reader[0], reader[1] if op.weights else ""
        row = _row(workload.name, provider, times.get(reader), moved, bandwidth)
        rows.append(replace(row, reason=reasons.get(reader, ""), layout=layout))
    return rows


_Reader = tuple[str, str]  # provider, layout


def _readers(op: IrOp, providers: Sequence[str]) -> list[_Reader]:
    """Each provider in each layout that it reads; native unpacks, which is not worth a time."""
    return [
        (provider, layout)
        for provider in providers
        for layout in op.implementations[provider].layouts
        if provider != NATIVE or layout == PLAIN
    ]


def _cloned(arguments: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(each.clone() if isinstance(each, Tensor) else each for each in arguments)


def _num_bytes(arguments: Sequence[object], returned: object) -> int:
    outputs = returned if isinstance(returned, tuple) else (returned,)
    return sum(each.nbytes for each in (*arguments, *outputs) if isinstance(each, Tensor))


def _row(
    workload: str,
    provider: str,
    microseconds: float | None,
    num_bytes: int | None,
    bandwidth: float,
) -> Measurement:
    if num_bytes is None or microseconds is None:
        return Measurement(workload, provider, microseconds, None, None)
    speed = num_bytes / microseconds / 1e3
    return Measurement(workload, provider, microseconds, speed, speed / bandwidth)
