"""What one level of a load measured: throughput, waits and errors of one engine at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tools.bench.completion_stream import Completion
from tools.bench.quantiles import percentile


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One engine, one round, one number of streams; times in milliseconds unless named `_s`.

    Attributes:
        streams: requests in flight.
        requests: requests sent.
        errors: those that count for nothing.
        first_error: what the first of them said.
        wall_s: first request to last answer.
        client_cpu_s: CPU time of the client within it.
        other_cpus: CPUs' worth of work by strangers within it; None if unknown. Far from 0,
            distrust the rest.
        prompt_tokens: tokens of the prompts of the good requests.
        output_tokens: tokens generated for them.
        output_tok_s: these per second of `wall_s`.
        stream_tok_s: median over requests of tokens per second after the first.
        ttft_ms_p50: median time to the first token.
        ttft_ms_p99: 99th percentile of it.
        itl_ms_p50: median time between a stream's tokens.
        itl_ms_p99: 99th percentile of it.
        sample: beginning of one generated text, to see that an engine says something sensible.
    """

    streams: int
    requests: int
    errors: int
    first_error: str | None
    wall_s: float
    client_cpu_s: float
    other_cpus: float | None
    prompt_tokens: int
    output_tokens: int
    output_tok_s: float
    stream_tok_s: float | None
    ttft_ms_p50: float | None
    ttft_ms_p99: float | None
    itl_ms_p50: float | None
    itl_ms_p99: float | None
    sample: str


def summarize(
    streams: int,
    completions: Sequence[Completion],
    wall_s: float,
    client_cpu_s: float,
    other_cpus: float | None = None,
) -> LevelResult:
    """The figures of a level's completions; those with an error count only as errors."""
    good = [each for each in completions if each.error is None]
    errors = [each.error for each in completions if each.error is not None]
    ttft = [1e3 * (each.token_times[0] - each.start) for each in good]
    itl = [1e3 * (late - early) for each in good for early, late in pairwise(each.token_times)]
    rates = [rate for each in good if (rate := _decode_rate(each)) is not None]
    output_tokens = sum(each.num_tokens for each in good)
    return LevelResult(
        streams=streams,
        requests=len(completions),
        errors=len(errors),
        first_error=errors[0] if errors else None,
        wall_s=wall_s,
        client_cpu_s=client_cpu_s,
        other_cpus=other_cpus,
        prompt_tokens=sum(each.num_prompt_tokens for each in good),
        output_tokens=output_tokens,
        output_tok_s=output_tokens / wall_s,
        stream_tok_s=percentile(rates, 50),
        ttft_ms_p50=percentile(ttft, 50),
        ttft_ms_p99=percentile(ttft, 99),
        itl_ms_p50=percentile(itl, 50),
        itl_ms_p99=percentile(itl, 99),
        sample=good[0].text[:80] if good else "",
    )


def _decode_rate(completion: Completion) -> float | None:
    seconds = completion.token_times[-1] - completion.token_times[0]
    return (completion.num_tokens - 1) / seconds if seconds > 0 else None
