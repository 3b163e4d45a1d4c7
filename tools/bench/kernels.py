"""Linear and attention kernels beside torch and oneDNN, against the memory's read bandwidth.

Weights, and keys and values, are rotated among copies that fill --footprint, so that no call finds
in a cache what it reads. All contenders of a case and the plain reads are timed in turns.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from serve_shim.settings.tree import Settings
from serve_shim.startup import prepare_process
from tools.bench.kernel_grid import CONTEXTS, HEADS, LINEAR_FORMATS, REQUESTS, SIZES, TOKENS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables and write the JSON."""
    options = parse(arguments)
    prepare_process(Settings(threads=options.threads), os.environ)
    # torch reads the environment when it is imported.
    from tools.bench.kernel_run import run  # noqa: PLC0415

    return run(options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a run; ends the process with 2, saying which, if one is wrong."""
    parser = argparse.ArgumentParser(prog="bench-kernels", description=__doc__)
    add = parser.add_argument
    add("--op", choices=("linear", "attention"), help="only this one")
    add("--formats", type=_names, help=f"only these of {', '.join(LINEAR_FORMATS)}")
    provider = "only this one beside the baselines (repeatable)"
    add("--provider", action="append", default=[], metavar="NAME", help=provider)
    add("--sizes", type=_sizes, default=SIZES, help="of linear: INPUTSxOUTPUTS,…")
    add("--tokens", type=_numbers, default=TOKENS, help="of linear: 1,4,…")
    add("--contexts", type=_numbers, default=CONTEXTS, help="of attention: 128,1024,…")
    add("--requests", type=_numbers, default=REQUESTS, help="of attention: 1,32")
    add("--heads", type=_heads, default=HEADS, help="query heads, key heads, head size")
    add("--seconds", type=float, default=0.5, help="for each case (default: %(default)s)")
    add("--footprint", type=_number, default=256, metavar="MIB", help="default: %(default)s")
    add("--threads", type=_number, help="all cores by default")
    add("--json", type=Path, metavar="FILE", help="write every figure there")
    add("--lock", type=Path, metavar="FILE", help="hold a lock on it while a case is timed")
    return parser.parse_args(arguments)


def _number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(LINEAR_FORMATS):
        raise argparse.ArgumentTypeError(f"{min(unknown)} is none of {', '.join(LINEAR_FORMATS)}")
    return names


def _sizes(text: str) -> tuple[tuple[int, int], ...]:
    return tuple(_size(part) for part in text.split(","))


def _size(text: str) -> tuple[int, int]:
    inner, _, outer = text.partition("x")
    return _number(inner), _number(outer)


def _heads(text: str) -> tuple[int, int, int]:
    numbers = _numbers(text)
    if len(numbers) != 3 or numbers[0] % numbers[1]:
        raise argparse.ArgumentTypeError("give query heads, a multiple; key heads; head size")
    return numbers[0], numbers[1], numbers[2]


if __name__ == "__main__":
    sys.exit(main())
