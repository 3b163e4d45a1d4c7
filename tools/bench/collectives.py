"""What an all-reduce costs: over shared memory, over gloo in order of ranks, and by gloo itself.

And what it costs with the residual add and norm that follow it in a model, as one op and as two.

Ranks are plain processes that share the cores; each call is timed on rank 0, all ranks calling in a
row, as the layers of a model do.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ir_kernels.all_reduce.segment import new_name, open_segment, remove_name
from tools.bench.machine import describe_machine, num_cpus
from tools.bench.machine_lock import MachineLock
from tools.bench.quantiles import percentile
from tools.bench.table import format_table, number

_WARMUP_CALLS = 20
_TIMEOUT_S = 300.0
_MOST_HIDDEN = 2048


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of a call, bfloat16.

    `torch` is gloo's own all-reduce, in no fixed order; `two ops` are `shm` and then the C++ norm,
    in place as in a compiled model.
    """

    op: str
    ranks: int
    num_bytes: int
    provider: str
    median_us: float
    p95_us: float


class RankFailedError(Exception):
    """A rank ended with an error; the message is what it said last."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the JSON; 1 if a rank failed."""
    options = _parser().parse_args(arguments)
    if options.child is not None:
        print(json.dumps([asdict(each) for each in _measure(options)]))
        return 0
    lock = MachineLock(options.lock)
    costs: list[Cost] = []
    try:
        for ranks in options.ranks:
            with lock.exclusive():
                costs += _in_processes(ranks, options)
    except RankFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print(format_costs(costs))
    if options.json is not None:
        report = {"machine": describe_machine(), "costs": [asdict(each) for each in costs]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def format_costs(costs: Sequence[Cost]) -> str:
    """The table; the last column is the median of the op by gloo over the row's."""
    gloo = {
        (each.op, each.ranks, each.num_bytes): each.median_us
        for each in costs
        if each.provider == "gloo"
    }
    rows = [
        [
            each.op,
            each.provider,
            str(each.ranks),
            str(each.num_bytes),
            number(each.median_us),
            number(each.p95_us),
            number(gloo[each.op, each.ranks, each.num_bytes] / each.median_us),
        ]
        for each in costs
    ]
    header = ("op", "provider", "ranks", "bytes", "median us", "p95 us", "x gloo")
    return format_table(header, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-collectives", description=__doc__)
    parser.add_argument("--ranks", type=_numbers, default=(2, 4), help="2,4,…")
    parser.add_argument("--bytes", type=_numbers, default=(4096, 65536, 1048576), help="4096,…")
    parser.add_argument("--calls", type=_number, default=500, help="of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="lock it while measuring")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    parser.add_argument("--segment", help=argparse.SUPPRESS)
    return parser


def _in_processes(ranks: int, options: argparse.Namespace) -> list[Cost]:
    segment = new_name()
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "tools.bench.collectives"]
        command += ["--ranks", str(ranks), "--calls", str(options.calls)]
        command += ["--bytes", ",".join(map(str, options.bytes))]
        command += ["--meet", str(Path(scratch) / "store"), "--segment", segment]
        processes = [
            subprocess.Popen(
                [*command, "--child", str(rank)],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            # Ranks say next to nothing, so that no pipe fills while another one is read.
            said = [each.communicate(timeout=_TIMEOUT_S) for each in processes]
        finally:
            for each in processes:
                each.kill()
                each.wait()
            remove_name(segment)
    for rank, (process, (_, errors)) in enumerate(zip(processes, said, strict=True)):
        if process.returncode != 0:
            raise RankFailedError(f"rank {rank} of {ranks} failed: {errors[-2000:]}")
    return [Cost(**each) for each in json.loads(said[0][0].splitlines()[-1])]


def _measure(options: argparse.Namespace) -> list[Cost]:
    import torch  # noqa: PLC0415
    from torch import distributed  # noqa: PLC0415

    from ir_core import groups  # noqa: PLC0415

    rank, (ranks,) = options.child, options.ranks
    torch.set_num_threads(max(1, num_cpus() // ranks))
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(options.meet, ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=_TIMEOUT_S),
    )
    segment = open_segment(options.segment, "tp", rank, ranks)
    transports: dict[str, Any] = {"gloo": distributed.group.WORLD, "shm": segment}
    groups.set_group(groups.Group("tp", rank, ranks, transports))
    costs: list[Cost] = []
    with torch.inference_mode():
        for num_bytes in options.bytes:
            count = num_bytes // 2
            x = torch.zeros(count, dtype=torch.bfloat16).view(-1, math.gcd(count, _MOST_HIDDEN))
            for op, contenders in (
                ("all_reduce", _sums()),
                ("all_reduce_add_rms_norm", _sums_with_norm(x)),
            ):
                for provider, call in contenders.items():
                    distributed.barrier()
                    times = _times(call, x, options.calls)
                    figures = (percentile(times, 50) or 0.0, percentile(times, 95) or 0.0)
                    costs.append(Cost(op, ranks, num_bytes, provider, *figures))
    # A process group that is destroyed late, or while other ranks still use it, aborts the process.
    distributed.barrier()
    groups.unset_group("tp")
    transports.clear()
    segment.close()
    distributed.destroy_process_group()
    return costs


def _sums() -> dict[str, Callable[[Any], Any]]:
    from torch import distributed  # noqa: PLC0415

    from ir_kernels.all_reduce import gloo, shm  # noqa: PLC0415

    return {"shm": shm.all_reduce, "gloo": gloo.all_reduce, "torch": distributed.all_reduce}


def _sums_with_norm(x: Any) -> dict[str, Callable[[Any], Any]]:
    import torch  # noqa: PLC0415

    from ir_kernels.all_reduce.shm import all_reduce  # noqa: PLC0415
    from ir_kernels.all_reduce_add_rms_norm import gloo, shm  # noqa: PLC0415
    from ir_kernels.fused_add_rms_norm.vllm_c import fused_add_rms_norm  # noqa: PLC0415

    rest = (torch.ones_like(x), torch.ones_like(x[0]), 1e-5)
    return {
        "shm": lambda x: shm.all_reduce_add_rms_norm(x, *rest),
        "two ops": lambda x: fused_add_rms_norm(all_reduce(x), *rest),
        "gloo": lambda x: gloo.all_reduce_add_rms_norm(x, *rest),
    }


def _times(call: Callable[[Any], Any], x: Any, num_calls: int) -> list[float]:
    times: list[float] = []
    for _ in range(_WARMUP_CALLS + num_calls):
        started = time.perf_counter()
        call(x)
        times.append(1e6 * (time.perf_counter() - started))
    return times[_WARMUP_CALLS:]


def _number(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{text} is not 2 or more")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
