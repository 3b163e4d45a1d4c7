"""Costs of steps from two scrapes."""

import pytest

from tools.bench.step_costs import costs_between, parse_counters

_METRICS = """
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{{model_name="m",le="+Inf"}} {steps}
vllm:iteration_tokens_total_count{{model_name="m"}} {steps}
vllm:iteration_tokens_total_sum{{model_name="m"}} 1
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{model_name="m"}} {tokens}
# TYPE vllm:engine_step_phase_seconds histogram
vllm:engine_step_phase_seconds_bucket{{model_name="m",phase="schedule",le="+Inf"}} {steps}
vllm:engine_step_phase_seconds_count{{model_name="m",phase="schedule"}} {steps}
vllm:engine_step_phase_seconds_sum{{model_name="m",phase="schedule"}} {schedule}
vllm:engine_step_phase_seconds_bucket{{model_name="m",phase="forward",le="+Inf"}} {steps}
vllm:engine_step_phase_seconds_count{{model_name="m",phase="forward"}} {steps}
vllm:engine_step_phase_seconds_sum{{model_name="m",phase="forward"}} {forward}
# TYPE vllm:event_loop_cpu_seconds_total counter
vllm:event_loop_cpu_seconds_total {loop}
# TYPE vllm:minor_page_faults_total counter
vllm:minor_page_faults_total {faults}
"""


def text(steps: int, tokens: int, schedule: float, forward: float, loop: float, faults: int) -> str:
    return _METRICS.format(
        steps=steps, tokens=tokens, schedule=schedule, forward=forward, loop=loop, faults=faults
    )


def test_costs_are_means_over_the_steps_between() -> None:
    before = parse_counters(text(2, 10, 1.0, 5.0, 0.5, 100))
    after = parse_counters(text(6, 18, 1.4, 8.6, 0.7, 104))
    costs = costs_between(before, after)
    assert (costs.num_steps, costs.tokens_per_step, costs.page_faults) == (4, 2.0, 1.0)
    assert costs.phase_us == pytest.approx({"schedule": 1e5, "forward": 9e5})
    assert costs.overhead_us == pytest.approx(1e5)
    assert costs.event_loop_us == pytest.approx(5e4)
    assert costs.share == pytest.approx(0.15)


def test_metrics_of_another_server_are_named() -> None:
    with pytest.raises(ValueError, match="have no `iteration_tokens_total_count`"):
        parse_counters("# TYPE up gauge\nup 1\n")


def test_no_step_is_an_error() -> None:
    counters = parse_counters(text(2, 10, 1.0, 5.0, 0.5, 100))
    with pytest.raises(ValueError, match="made no step"):
        costs_between(counters, counters)
