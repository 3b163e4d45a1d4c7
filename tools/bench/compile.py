"""What compiling costs and gains: seconds by phase and depth, and steps beside eager ones.

Models have the embedded model's layers and random weights, so that depth is free to choose. Each
depth is compiled in a process of its own with an empty cache of Inductor's, in which precompiled
headers lie too: the figures are those of a machine that never compiled anything.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.bench.machine import describe_machine
from tools.bench.machine_lock import MachineLock
from tools.bench.table import format_table, number

_ROUNDS = 40
_BLOCK_SIZE, _NUM_BLOCKS = 16, 512


@dataclass(frozen=True, slots=True)
class StepTime:
    """Median milliseconds of a forward pass of one token for each stream."""

    streams: int
    eager_ms: float
    compiled_ms: float


@dataclass(frozen=True, slots=True)
class Depth:
    """One depth: seconds by phase, pieces and how many are distinct, and steps if timed."""

    layers: int
    seconds: dict[str, float]
    pieces: int
    distinct: int
    steps: list[StepTime]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each depth in a process of its own, print the tables and write the JSON."""
    options = _parser().parse_args(arguments)
    if options.child is not None:
        print(json.dumps(asdict(_measure(options.child, options))))
        return 0
    depths: list[Depth] = []
    lock = MachineLock(options.lock)
    for layers in options.layers:
        with lock.exclusive():
            depths.append(_in_process(layers, options))
    print(_phases(depths), end="\n\n")
    print(_steps(depths[-1]))
    if options.json is not None:
        report = {"machine": describe_machine(), "depths": [asdict(each) for each in depths]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _in_process(layers: int, options: argparse.Namespace) -> Depth:
    streams = ",".join(map(str, options.streams if layers == options.layers[-1] else ()))
    command = [sys.executable, "-m", "tools.bench.compile", "--child", str(layers)]
    command += ["--dtype", options.dtype, "--backend", options.backend, "--streams", streams]
    if options.provider is not None:
        command += ["--provider", options.provider]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            command,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["steps"] = [StepTime(**each) for each in found["steps"]]
    return Depth(**found)


def _measure(layers: int, options: argparse.Namespace) -> Depth:
    # They are imported only where something is measured.
    import torch  # noqa: PLC0415

    import ir_core as ir  # noqa: PLC0415
    import ir_passes  # noqa: PLC0415
    from ir_passes.config import CacheMode, CompilationConfig  # noqa: PLC0415
    from serve_shim.compilation.compilable_model import DYNAMIC_DIMS  # noqa: PLC0415
    from tools.bench.decoder import arguments_of, make_decoder  # noqa: PLC0415

    if options.provider is not None:
        ir.load_plugins()
        ir.set_priority({name: [options.provider] for name in ir.registry()})
    with torch.inference_mode():
        model = make_decoder(layers, getattr(torch, options.dtype), _NUM_BLOCKS, _BLOCK_SIZE)
        compiled = ir_passes.compile(
            model,
            arguments_of(16, 3),
            dynamic_dims=DYNAMIC_DIMS,
            limits={"tokens": 512, "requests": 64, "starts": 65},
            config=CompilationConfig(backend=options.backend, cache_mode=CacheMode.OFF),
        )
        (program,) = compiled.report().programs
        steps = [_time(streams, model, compiled, arguments_of) for streams in options.streams]
    seconds = dict(compiled.report().seconds)
    return Depth(layers, seconds, program.num_pieces, len(program.pieces), steps)


def _time(streams: int, eager: Any, compiled: Any, arguments_of: Any) -> StepTime:
    arguments = arguments_of(streams, streams)
    times: dict[Any, list[float]] = {eager: [], compiled: []}
    for _ in range(_ROUNDS):
        for each, found in times.items():
            started = time.perf_counter()
            each(*arguments)
            found.append(1e3 * (time.perf_counter() - started))
    return StepTime(streams, *(statistics.median(found[2:]) for found in times.values()))


def _phases(depths: Sequence[Depth]) -> str:
    names = list(depths[0].seconds)
    rows = [
        [
            str(each.layers),
            *(number(each.seconds[name], 2) for name in names),
            number(sum(each.seconds.values()), 2),
            str(each.pieces),
            str(each.distinct),
        ]
        for each in depths
    ]
    head = ["layers", *(f"{name} s" for name in names), "all s", "pieces", "compiled"]
    return format_table(head, rows)


def _steps(depth: Depth) -> str:
    rows = [
        [
            str(each.streams),
            number(each.eager_ms, 2),
            number(each.compiled_ms, 2),
            number(each.eager_ms / each.compiled_ms, 2),
        ]
        for each in depth.steps
    ]
    return format_table(["streams", "eager ms", "compiled ms", "x eager"], rows)


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench-compile", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layers", type=_numbers, default=[2, 8, 24, 30])
    parser.add_argument("--streams", type=_numbers, default=[1, 4, 16, 32], help="of the last one")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--provider", help="for all ops, instead of the default priorities")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="hold a lock on it while timing")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
