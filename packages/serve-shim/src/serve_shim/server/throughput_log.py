"""Owns the line about load that is logged every ten seconds while there is any."""

import asyncio
import logging
import time
from dataclasses import replace

from serve_shim.server.metrics.sink import Totals
from serve_shim.server.service import Service

_INTERVAL_S = 10.0
_log = logging.getLogger(__name__)


async def log_throughput(service: Service, interval_s: float = _INTERVAL_S) -> None:
    """Logs until it is cancelled; an idle interval is silent, the first one is said at DEBUG."""
    before, then, was_busy = replace(service.metrics.sink.totals), time.monotonic(), False
    while True:
        await asyncio.sleep(interval_s)
        after, now = replace(service.metrics.sink.totals), time.monotonic()
        is_busy = after != before or len(service.in_flight) > 0
        if is_busy or was_busy:
            level = logging.INFO if is_busy else logging.DEBUG
            _log.log(level, "%s", describe(service, before, after, now - then))
        before, then, was_busy = after, now, is_busy


def describe(service: Service, before: Totals, after: Totals, seconds: float) -> str:
    """Tokens per second between two totals, and the load now."""
    prompt = (after.prompt_tokens - before.prompt_tokens) / seconds
    generation = (after.generation_tokens - before.generation_tokens) / seconds
    queries = after.prefix_queries - before.prefix_queries
    hits = after.prefix_hits - before.prefix_hits
    line = f"prompt {prompt:.1f} tok/s, generation {generation:.1f} tok/s"
    if service.engine is not None:
        stats = service.engine.stats()
        line += (
            f", running {stats.num_running}, waiting {stats.num_waiting}"
            f", KV cache {100 * stats.kv_usage:.1f} %"
        )
    return line + (f", prefix cache hits {100 * hits / queries:.1f} %" if queries else "")
