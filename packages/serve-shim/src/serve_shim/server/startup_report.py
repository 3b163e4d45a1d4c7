"""Owns what a start cost: a table for the log when the server is ready, and JSON."""

import resource
import sys
from typing import Any

from serve_shim.engine.protocol import Engine
from serve_shim.engine.status import Phase, StartupStatus

_NOT_START = (Phase.READY, Phase.DRAINING, Phase.STOPPED, Phase.FAILED)


def startup_report(status: StartupStatus, engine: Engine) -> str:
    """One line per phase with its seconds, the memory, and what can be served with it."""
    facts = startup_facts(status)
    rows: dict[str, float] = facts["seconds"]
    lines = ["Start-up report:", f"  {'phase':<10}{'seconds':>9}"]
    for name, seconds in {**rows, "total": sum(rows.values())}.items():
        note = f"  {_cache_note(engine)}" if name == Phase.COMPILE else ""
        lines.append(f"  {name:<10}{seconds:>9.2f}{note}".rstrip())
    lines.append(f"  peak memory {facts['peak_memory_bytes'] / (1 << 20):.0f} MiB")
    blocks = engine.stats().num_blocks
    lines.append(f"  {blocks} KV blocks, up to {engine.max_model_len} tokens per sequence")
    return "\n".join(lines)


def startup_facts(status: StartupStatus) -> dict[str, Any]:
    """Seconds by phase of the start, and the most memory that the process has held so far."""
    seconds = status.report().items()
    return {
        "seconds": {p.value: round(each, 3) for p, each in seconds if p not in _NOT_START},
        "peak_memory_bytes": _peak_bytes(),
    }


def _cache_note(engine: Engine) -> str:
    report = engine.compile_report
    return "" if report is None else f"cache: {report.cache.status.value}"


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
