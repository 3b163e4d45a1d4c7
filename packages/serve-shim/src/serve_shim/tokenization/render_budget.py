"""Owns the limits of one chat-template rendering: time, steps and sizes; refuses to exceed them.

Nothing interrupts Python code from outside, least of all a C call, so everything a template can
make large or repeat is charged here before it happens.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from jinja2.utils import Namespace


class BudgetExceededError(Exception):
    """A rendering went over a limit; the message says which."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may use: seconds, turns and calls, characters made, and printed."""

    seconds: float = 2.0
    steps: int = 10_000_000
    work_chars: int = 64 << 20
    output_chars: int = 8 << 20


@dataclass(slots=True)
class RenderBudget:
    """What was used of `limits`; methods raise `BudgetExceededError` where it is too much."""

    limits: RenderLimits
    deadline: float = field(init=False)
    steps: int = 0
    work_chars: int = 0
    output_chars: int = 0

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limits.seconds

    def take_steps(self, count: int = 1) -> None:
        """Charge `count` loop turns, calls or operations, and look at the clock."""
        self.steps += count
        if self.steps > self.limits.steps:
            raise BudgetExceededError(f"more than {self.limits.steps} steps")
        if time.monotonic() > self.deadline:
            raise BudgetExceededError(f"more than {self.limits.seconds:g} seconds")

    def take_chars(self, count: int) -> None:
        """Charge `count` characters or items that are about to be made."""
        self.work_chars += count
        if self.work_chars > self.limits.work_chars:
            raise BudgetExceededError(f"more than {self.limits.work_chars} characters of work")

    def take_output(self, count: int) -> None:
        """Charge `count` characters of output."""
        self.output_chars += count
        if self.output_chars > self.limits.output_chars:
            raise BudgetExceededError(f"more than {self.limits.output_chars} characters of output")

    def weigh(self, value: object) -> int:
        """Return about how many characters printing `value` takes, shared parts counted each time.

        Nested containers that share parts print exponentially long, so the walk is charged too
        and ends with `BudgetExceededError` at the limit of work.
        """
        weight, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, Namespace):
                item = namespace_values(item)
            weight += 1 + len(item) if isinstance(item, str | list | tuple | dict) else 32
            if isinstance(item, dict):
                self.take_steps(2 * len(item))
                waiting += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple):
                self.take_steps(len(item))
                waiting += item
            if weight > self.limits.work_chars:
                raise BudgetExceededError(f"a value of more than {weight} characters")
        return weight


def namespace_values(namespace: Namespace) -> dict[str, object]:
    """Return the attributes of a template's `namespace()` object."""
    return getattr(namespace, "_Namespace__attrs")  # noqa: B009 - the name would be mangled


_current: ContextVar[RenderBudget] = ContextVar("render_budget")


def current_budget() -> RenderBudget:
    """Return the budget of the rendering that runs in this context."""
    return _current.get()


@contextmanager
def render_budget(limits: RenderLimits) -> Generator[RenderBudget]:
    """Run the body under a fresh budget."""
    budget = RenderBudget(limits)
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)
