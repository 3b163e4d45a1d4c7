"""What the steps of a server cost, read from its own metrics before and after they were made."""

from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection

from prometheus_client.parser import text_string_to_metric_families

_PREFIX = "vllm:"
_MODEL = ("forward", "logits")
"""Phases in which the model computes; all others are overhead."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A server's totals at one moment.

    Attributes:
        num_steps: steps that were made.
        num_tokens: tokens that were generated.
        phase_seconds: wall time of the engine's thread by phase, in the order of a step.
        event_loop_seconds: processor time of the thread that serves HTTP.
        page_faults: minor page faults of the process.
    """

    num_steps: int
    num_tokens: int
    phase_seconds: Mapping[str, float]
    event_loop_seconds: float
    page_faults: int


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Means over the steps between two moments, times in microseconds.

    `overhead_us` is what the engine's thread spends outside of the model; `share` is that and
    the event loop's time, of all the engine's time.
    """

    num_steps: int
    tokens_per_step: float
    phase_us: Mapping[str, float]
    event_loop_us: float
    page_faults: float

    @property
    def step_us(self) -> float:
        """A whole step of the engine's thread."""
        return sum(self.phase_us.values())

    @property
    def overhead_us(self) -> float:
        """All phases but the model's."""
        return sum(us for phase, us in self.phase_us.items() if phase not in _MODEL)

    @property
    def share(self) -> float:
        """Overhead and event loop as a share of the step."""
        return (self.overhead_us + self.event_loop_us) / self.step_us


def read_counters(port: int) -> Counters:
    """Ask the server on this machine's `port`; ValueError if its metrics are not ours."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        return parse_counters(connection.getresponse().read().decode())
    finally:
        connection.close()


def parse_counters(text: str) -> Counters:
    """Totals from metrics in the Prometheus text format; ValueError for the lack of one."""
    values: dict[str, float] = {}
    phases: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(_PREFIX)
            values[name] = values.get(name, 0.0) + sample.value
            if name == "engine_step_phase_seconds_sum":
                phases[sample.labels["phase"]] = sample.value
    try:
        return Counters(
            num_steps=int(values["iteration_tokens_total_count"]),
            num_tokens=int(values["generation_tokens_total"]),
            phase_seconds=phases,
            event_loop_seconds=values["event_loop_cpu_seconds_total"],
            page_faults=int(values["minor_page_faults_total"]),
        )
    except KeyError as error:
        raise ValueError(f"the server's metrics have no `{error.args[0]}`") from None


def costs_between(before: Counters, after: Counters) -> StepCosts:
    """Means of the steps from `before` to `after`; ValueError if there was none."""
    steps = after.num_steps - before.num_steps
    if steps < 1:
        raise ValueError("the server made no step")
    return StepCosts(
        num_steps=steps,
        tokens_per_step=(after.num_tokens - before.num_tokens) / steps,
        phase_us={
            phase: 1e6 * (seconds - before.phase_seconds.get(phase, 0.0)) / steps
            for phase, seconds in after.phase_seconds.items()
        },
        event_loop_us=1e6 * (after.event_loop_seconds - before.event_loop_seconds) / steps,
        page_faults=(after.page_faults - before.page_faults) / steps,
    )
