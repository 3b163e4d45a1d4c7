"""Whether each op's default provider is the fastest here: all that run, in turns, by token count.

What a platform prefers by default rests on this table. Collectives are left out: they need ranks.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ir_core as ir
from ir_core.cli.arguments import parse_dtype
from ir_core.cli.stopwatch import median_microseconds
from ir_core.implementation import NATIVE
from ir_core.op import IrOp
from ir_core.testing import CheckDeclined, require_selected
from tools.bench.machine import describe_machine
from tools.bench.machine_lock import MachineLock
from tools.bench.table import format_table, number

Shape = Mapping[str, Any]

# Of a model of some billion parameters; a weight is larger than the caches near a core.
_SHAPES: Mapping[str, Shape] = {
    "linear": {"shape": (2048, 2048)},
    "embedding": {"shape": (49152, 576)},
    "silu": {"width": 8192},
    "gelu": {"width": 8192},
    "rms_norm": {"hidden": 2048},
    "fused_add": {"hidden": 2048},
    "quantize": {"hidden": 2048},
    "sample": {"size": 49152, "temperature": 0.8},
}
_CONTEXT = 512
_MOST_DECODED = 64
_HOPELESS = 8


@dataclass(frozen=True, slots=True)
class Comparison:
    """Microseconds of a call by each provider that takes it; `default` is the one chosen."""

    op: str
    dtype: str
    num_tokens: int
    default: str
    microseconds: dict[str, float]

    @property
    def other(self) -> str:
        """The fastest of the others."""
        others = {name: us for name, us in self.microseconds.items() if name != self.default}
        return min(others, key=lambda name: others[name])

    @property
    def gain(self) -> float:
        """Its time over the default's: above 1 the default is faster."""
        return self.microseconds[self.other] / self.microseconds[self.default]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the JSON."""
    options = _parser().parse_args(arguments)
    ir.load_plugins()
    found: list[Comparison] = []
    with MachineLock(options.lock).exclusive(), torch.inference_mode():
        for op in _ops(options.op):
            for dtype in options.dtypes:
                found += compare(op, dtype, options.tokens, options.seconds)
    print(format_comparisons(found))
    if options.json is not None:
        report = {"machine": describe_machine(), "comparisons": [asdict(each) for each in found]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def format_comparisons(found: Sequence[Comparison]) -> str:
    """The table; the last column is above 1 where the default is the faster one."""
    head = ("op", "dtype", "default", "next", "tokens", "us", "next us", "next over default")
    rows = [
        (
            each.op,
            each.dtype,
            each.default,
            each.other,
            str(each.num_tokens),
            number(each.microseconds[each.default]),
            number(each.microseconds[each.other]),
            number(each.gain, 2),
        )
        for each in found
    ]
    return format_table(head, rows, text_columns=4)


def compare(
    op: IrOp, dtype: torch.dtype, tokens: Sequence[int], seconds: float
) -> Iterator[Comparison]:
    """A comparison for each number of tokens; none where only one provider takes the call."""
    for num_tokens in tokens:
        inputs = op.generate_inputs(num_tokens=num_tokens, dtype=dtype, **_shape(op, num_tokens))
        values = op.schema.bind(op.name, inputs, {})
        calls = dict(_calls(op, values))
        if len(calls) < 2:
            return
        default = op.choose_layout(*values).selection.provider
        name = str(dtype).removeprefix("torch.")
        yield Comparison(op.name, name, num_tokens, default, _times(calls, seconds))


def _times(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Medians; of a call that is many times slower than another, the least of three."""
    once = {name: _microseconds(call) for name, call in calls.items()}
    near = {name: calls[name] for name, us in once.items() if us < _HOPELESS * min(once.values())}
    return once | median_microseconds(near, seconds)


def _microseconds(call: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return min(times)


def _shape(op: IrOp, num_tokens: int) -> Shape:
    if "paged_attention" in op.name:
        if num_tokens <= _MOST_DECODED:
            return {"context": _CONTEXT}
        return {"context": num_tokens, "query_len": num_tokens}
    return next((shape for name, shape in _SHAPES.items() if op.name.startswith(name)), {})


def _calls(op: IrOp, values: Sequence[Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each provider that takes the call, in the weight layout that it likes best."""
    for name, implementation in op.implementations.items():
        layout = "plain" if name == NATIVE else implementation.layouts[0]
        copies = [each.clone() if isinstance(each, Tensor) else each for each in values]
        arguments = op.pack(copies, layout) if op.weights else tuple(copies)
        try:
            require_selected(implementation, arguments)
        except CheckDeclined:
            continue
        yield name, partial(implementation.fn, *arguments)


def _ops(names: Sequence[str] | None) -> Iterator[IrOp]:
    for name, op in sorted(ir.registry().items()):
        if name in names if names else op.has_input_generator and "group" not in op.schema.names:
            yield op


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools.bench.defaults", description=__doc__)
    parser.add_argument("--op", action="append", metavar="OP", help="only this op")
    parser.add_argument("--tokens", type=_numbers, default=(1, 32, 512), metavar="N,N")
    parser.add_argument(
        "--dtypes", type=_dtypes, default=(torch.bfloat16, torch.float32), metavar="D,D"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="an flock to measure under")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def _dtypes(text: str) -> tuple[torch.dtype, ...]:
    return tuple(parse_dtype(each) for each in text.split(","))


if __name__ == "__main__":
    raise SystemExit(main())
