"""One run of the kernel bench: which cases, in which order, and its report."""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch

import ir_core as ir
from tools.bench.attention_cases import Heads, attention_cases
from tools.bench.contender import Case
from tools.bench.kernel_grid import CACHE_FORMATS, LINEAR_FORMATS
from tools.bench.kernel_rows import KernelRow, format_kernel_rows, measure_case
from tools.bench.linear_cases import linear_cases
from tools.bench.machine import describe_machine
from tools.bench.machine_lock import MachineLock

_MIB = 1 << 20


def run(options: argparse.Namespace) -> int:
    """Measure and report as the options say; always 0."""
    ir.load_plugins()
    rows: list[KernelRow] = []
    with torch.inference_mode():
        for title, cases in _families(options):
            found = _measure(cases, options)
            print(f"{title}, {torch.get_num_threads()} threads\n\n{format_kernel_rows(found)}\n")
            rows += found
    if options.json is not None:
        options.json.write_text(json.dumps(_report(options, rows), indent=2) + "\n")
    return 0


def _families(options: argparse.Namespace) -> Iterator[tuple[str, Iterable[Case]]]:
    """A table's title and its cases, which are made as they are asked for."""
    footprint: int = options.footprint * _MIB
    if options.op != "attention":
        for name in _chosen(options, LINEAR_FORMATS):
            cases = (
                case
                for size in options.sizes
                for case in linear_cases(name, size, options.tokens, footprint)
            )
            yield f"linear, {name}", cases
    if options.op != "linear":
        heads = Heads(*options.heads)
        for name in _chosen(options, CACHE_FORMATS):
            cases = (
                case
                for requests in options.requests
                for case in attention_cases(name, requests, options.contexts, heads, footprint)
            )
            yield f"paged_attention, {name}", cases


def _chosen(options: argparse.Namespace, formats: tuple[str, ...]) -> list[str]:
    return [name for name in formats if options.formats is None or name in options.formats]


def _measure(cases: Iterable[Case], options: argparse.Namespace) -> list[KernelRow]:
    lock = MachineLock(options.lock)
    rows: list[KernelRow] = []
    for case in cases:
        with lock.exclusive():
            rows += measure_case(case.only(options.provider), options.seconds)
    return rows


def _report(options: argparse.Namespace, rows: list[KernelRow]) -> dict[str, Any]:
    return {
        "machine": describe_machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "footprint_mib": options.footprint,
        "heads": options.heads,
        "rows": [asdict(row) for row in rows],
    }
