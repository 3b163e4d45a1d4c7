"""Where the time of a step goes in the project's server, by number of streams and by sampling.

All streams of a level begin together with short prompts, so nearly all of its steps decode. The
figures are the server's own, from its metrics. Put what is to be given to the server after a `--`:
`… --streams 1,32 -- --dtype float32`. A model with a small hidden size shows the overhead alone.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.bench.completion_stream import Exchange, exchange
from tools.bench.engine import Engine, serve_shim
from tools.bench.machine import describe_machine
from tools.bench.machine_lock import MachineLock
from tools.bench.server_run import EngineError, running
from tools.bench.step_costs import StepCosts, costs_between, read_counters
from tools.bench.table import format_table, number, percent

SAMPLINGS: Mapping[str, Mapping[str, float]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_k": {"temperature": 0.8, "top_k": 40},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
}
_TIMEOUT_S = 600.0
_WARMUP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Level:
    """One number of streams with one way of sampling."""

    sampling: str
    streams: int
    costs: StepCosts


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the JSON; 1 if the server failed."""
    options = _parser().parse_args(arguments)
    engine, levels = serve_shim(*options.ours), list[Level]()
    try:
        _measure(engine, options, levels)
    except (EngineError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:  # what was measured before a failure is worth keeping
        _report(levels, options.json)
    return 0


def format_levels(levels: Sequence[Level]) -> str:
    """The table, times in microseconds."""
    phases = list(levels[0].costs.phase_us) if levels else []
    head = ("sampling", "streams", *phases, "overhead", "event loop", "share", "faults", "steps")
    rows = [
        (
            level.sampling,
            str(level.streams),
            *(number(level.costs.phase_us[phase], 0) for phase in phases),
            number(level.costs.overhead_us, 0),
            number(level.costs.event_loop_us, 0),
            percent(level.costs.share),
            number(level.costs.page_faults),
            str(level.costs.num_steps),
        )
        for level in levels
    ]
    return format_table(head, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-step-overhead", description=__doc__)
    parser.add_argument("--streams", type=_numbers, default=(1, 4, 16, 32), help="1,4,…")
    samplings = ", ".join(SAMPLINGS)
    parser.add_argument("--sampling", type=_samplings, default=tuple(SAMPLINGS), help=samplings)
    parser.add_argument("--max-tokens", type=_number, default=128, help="of each stream")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    lock = "lock it: shared while the server starts, exclusive in each level"
    parser.add_argument("--lock", type=Path, metavar="FILE", help=lock)
    parser.add_argument("ours", nargs="*", metavar="-- OPTION", help="options of the server")
    return parser


def _measure(engine: Engine, options: argparse.Namespace, levels: list[Level]) -> None:
    lock = MachineLock(options.lock)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with lock.shared():
            port = stack.enter_context(running(engine, scratch / "server.log"))
        for sampling in options.sampling:
            for streams in options.streams:
                print(f"{sampling}, {streams} streams", file=sys.stderr, flush=True)
                with lock.exclusive():
                    costs = _measure_level(engine, port, sampling, streams, options.max_tokens)
                levels.append(Level(sampling, streams, costs))


def _measure_level(
    engine: Engine, port: int, sampling: str, streams: int, max_tokens: int
) -> StepCosts:
    asyncio.run(_run_streams(engine, port, sampling, streams, _WARMUP_TOKENS))
    before = read_counters(port)
    asyncio.run(_run_streams(engine, port, sampling, streams, max_tokens))
    return costs_between(before, read_counters(port))


async def _run_streams(
    engine: Engine, port: int, sampling: str, streams: int, max_tokens: int
) -> None:
    bodies = [
        {
            **engine.body("", max_tokens),
            **SAMPLINGS[sampling],
            # Ids that any vocabulary has; the first differs, so that no prefix is shared.
            "prompt": [10 + stream, 7, 9, 8],
            "seed": stream,
        }
        for stream in range(streams)
    ]
    answers = await asyncio.gather(*(exchange(port, body, _TIMEOUT_S) for body in bodies))
    for answer in answers:
        if (failure := _failure(answer)) is not None:
            raise EngineError(f"`{engine.name}` failed a request: {failure}")


def _failure(answer: Exchange) -> str | None:
    """What is wrong with an answer; its text may be empty, where a model has no tokenizer."""
    if answer.error is not None:
        return answer.error
    data = b"".join(chunk for _, chunk in answer.chunks)
    is_whole = data.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in data
    return None if is_whole and b'"error":' not in data else repr(data[-300:])


def _report(levels: Sequence[Level], path: Path | None) -> None:
    print(format_levels(levels), flush=True)
    if path is not None:
        figures = [
            {
                **asdict(level),
                "step_us": level.costs.step_us,
                "overhead_us": level.costs.overhead_us,
                "share": level.costs.share,
            }
            for level in levels
        ]
        data = {"machine": describe_machine(), "levels": figures}
        path.write_text(json.dumps(data, indent=2) + "\n")


def _number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part) for part in text.split(","))


def _samplings(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(SAMPLINGS):
        raise argparse.ArgumentTypeError(f"{min(unknown)} is none of {', '.join(SAMPLINGS)}")
    return names


if __name__ == "__main__":
    # As an exception it passes through the `with` block that stops the server under measurement.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
