"""Owns the table that is logged when the server is ready: where the seconds of the start went."""

from serve_shim.engine.protocol import Engine
from serve_shim.engine.status import Phase, StartupStatus

_NOT_START = (Phase.READY, Phase.DRAINING, Phase.STOPPED, Phase.FAILED)


def startup_report(status: StartupStatus, engine: Engine) -> str:
    """One line per phase with its seconds, and what can be served with the memory there is."""
    rows = [(p.value, seconds) for p, seconds in status.report().items() if p not in _NOT_START]
    rows.append(("total", sum(seconds for _, seconds in rows)))
    lines = ["Start-up report:", f"  {'phase':<10}{'seconds':>9}"]
    lines += [f"  {name:<10}{seconds:>9.2f}" for name, seconds in rows]
    blocks = engine.stats().num_blocks
    lines.append(f"  {blocks} KV blocks, up to {engine.max_model_len} tokens per sequence")
    return "\n".join(lines)
