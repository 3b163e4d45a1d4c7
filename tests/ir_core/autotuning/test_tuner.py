from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from priced_ops import CLOCK, Price, priced_registry, priced_step
from torch import Tensor

from ir_core import Implementation, IrOp, NoImplementationError, Registry
from ir_core.autotuning.call_compiler import CompiledCall
from ir_core.autotuning.recorder import CallRecorder, RecordedCalls
from ir_core.autotuning.table import TunedChoice, format_timings
from ir_core.autotuning.tuner import tune

WEIGHTS = {1: 4.0, 8: 1.0}
BLOCKED = {1: "steps of 1 tokens are captured at 8"}


def calls_of(registry: Registry, step: object) -> dict[int, RecordedCalls]:
    CLOCK.reset()
    recorded: dict[int, RecordedCalls] = {}
    for count in WEIGHTS:
        with CallRecorder(registry) as recorder:
            step(count)  # type: ignore[operator]
        (recorded[count],) = recorder.calls.values()
    return recorded


def tuned(blocked: Mapping[int, str] = {}, **prices: float | Price) -> TunedChoice:
    registry = priced_registry()
    calls = calls_of(registry, priced_step(registry["scale"]))
    CLOCK.reset(**prices)
    return tune(calls, WEIGHTS, is_fused=False, blocked=blocked, clock=CLOCK)


def few(count: int) -> float:
    """The price of one that is fast for one token, and slow for more."""
    return 1e-5 if count == 1 else 5e-5


def test_the_fastest_is_chosen_and_all_times_are_kept() -> None:
    choice = tuned(steady=4e-5, rival=2e-5, native=5e-5)
    assert (choice.default, choice.provider) == ("steady", "rival")
    assert choice.is_changed
    assert choice.to_text() == (
        "1 token: steady 40.0 µs, native 50.0 µs, rival 20.0 µs; "
        "8 tokens: steady 40.0 µs, native 50.0 µs, rival 20.0 µs"
    )


def test_the_default_stays_where_nothing_is_faster() -> None:
    choice = tuned(steady=2e-5, rival=1.95e-5, native=5e-5)
    assert choice.provider == "steady"
    assert not choice.is_changed


def test_each_range_of_rows_gets_its_fastest() -> None:
    choice = tuned(steady=2e-5, native=9e-5, rival=few)
    assert choice.winners == "1..1: rival, 2..: steady"
    assert choice.is_changed
    assert choice.remark == ""
    assert tuned(steady=2e-5, native=9e-5, rival=few) == choice


def test_small_steps_decide_where_sizes_disagree_and_no_range_may_end() -> None:
    choice = tuned(BLOCKED, steady=2e-5, native=9e-5, rival=few)
    assert (choice.provider, choice.later) == ("rival", ())
    assert choice.remark == ("one provider for several sizes: steps of 1 tokens are captured at 8")


def test_what_blocks_a_range_is_no_remark_where_times_ask_for_none() -> None:
    assert tuned(BLOCKED, steady=2e-5, native=9e-5, rival=1e-5).remark == ""


def twice(op: IrOp) -> object:
    """A step whose calls have two rows for each token."""
    return lambda count: priced_step(op)(2 * count)


def mixed(op: IrOp) -> object:
    """A step with a call for each token, then one for a single row, as of the last token."""

    def step(count: int) -> None:
        priced_step(op)(count)
        priced_step(op)(1)

    return step


@pytest.mark.parametrize("make", [twice, mixed])
def test_calls_whose_rows_are_not_tokens_have_one_winner(
    make: Callable[[IrOp], object],
) -> None:
    registry = priced_registry()
    calls = calls_of(registry, make(registry["scale"]))
    CLOCK.reset(steady=2e-5, native=9e-5, rival=lambda count: 1e-5 if count < 3 else 5e-5)
    choice = tune(calls, WEIGHTS, is_fused=False, clock=CLOCK)
    assert choice.later == ()
    if make is twice:
        assert choice.remark == (
            "one provider for several sizes: rows of such calls are not the tokens of a step"
        )


def test_a_candidate_that_raises_is_rejected_with_its_error() -> None:
    def broken(count: int) -> float:
        raise RuntimeError("no such unit")

    choice = tuned(steady=4e-5, rival=broken, native=2e-5)
    assert choice.provider == "native"
    assert [(each.provider, each.reason) for each in choice.rejections] == [
        ("rival", "raised RuntimeError: no such unit")
    ]


def test_a_default_that_raises_stays() -> None:
    def broken(count: int) -> float:
        raise RuntimeError("no such unit")

    choice = tuned(steady=broken, rival=1e-5)
    assert choice.provider == "steady"
    assert choice.timings == ()


def test_what_a_compiler_fuses_is_not_timed() -> None:
    registry = priced_registry()
    calls = calls_of(registry, priced_step(registry["scale"]))
    CLOCK.reset()
    choice = tune(calls, WEIGHTS, is_fused=True, clock=CLOCK)
    assert CLOCK.num_calls <= 3  # each once, to see whether it is fused
    assert choice.provider == "steady"
    assert choice.to_text() == "nothing was timed"


def wrong(x: Tensor, weight: Tensor, factor: float = 1.0) -> Tensor:
    CLOCK.spend("wrong", x)
    return x * weight * factor + 1


def test_the_fastest_must_agree_with_native() -> None:
    registry = priced_registry()
    registry["scale"].register_impl("wrong")(wrong)
    calls = calls_of(registry, priced_step(registry["scale"]))
    CLOCK.reset(steady=4e-5, rival=3e-5, native=5e-5, wrong=2e-5)
    choice = tune(calls, WEIGHTS, is_fused=False, clock=CLOCK)
    assert choice.provider == "rival"
    (rejection,) = choice.rejections
    assert rejection.provider == "wrong"
    assert rejection.reason.startswith("differs from native: worst at index [0, 0]: got 2, ")
    assert "wrong 20.0 µs" in choice.to_text()


def test_a_winner_of_one_range_must_agree_with_native_too() -> None:
    registry = priced_registry()
    registry["scale"].register_impl("wrong")(wrong)
    calls = calls_of(registry, priced_step(registry["scale"]))
    CLOCK.reset(steady=4e-5, native=9e-5, rival=lambda n: 3e-5 if n == 1 else 9e-5, wrong=few)
    choice = tune(calls, WEIGHTS, is_fused=False, clock=CLOCK)
    assert choice.winners == "1..1: rival, 2..: steady"
    assert "wrong" in {each.provider for each in choice.rejections}


@pytest.fixture
def spoiling(writing: IrOp) -> IrOp:
    """`add_twice`, whose in-place implementation is the default."""
    writing.registry.priorities.set({"add_twice": "writer"})
    return writing


def test_in_place_implementations_spoil_no_argument_of_others(spoiling: IrOp) -> None:
    with CallRecorder(spoiling.registry) as recorder:
        spoiling(torch.ones(2, 4), torch.ones(2, 4))
    (calls,) = recorder.calls.values()
    tune({2: calls}, {2: 1.0}, is_fused=False)
    assert torch.equal(calls.samples[0][0], torch.ones(2, 4))


def test_calls_that_nothing_can_run_are_an_error() -> None:
    registry = priced_registry()
    calls = calls_of(registry, priced_step(registry["scale"]))
    registry.set_batch_invariant(True)
    with pytest.raises(NoImplementationError):
        tune(calls, WEIGHTS, is_fused=False, clock=CLOCK)


class PricedCompiler:
    """Compiled calls that cost what `CLOCK` says for `compiled NAME`; some cannot be compiled."""

    description = "priced"

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.compiled: list[str] = []

    def compile(
        self, implementation: Implementation, calls: Mapping[int, Sequence[Any]]
    ) -> Mapping[int, CompiledCall]:
        name = implementation.provider
        self.compiled.append(name)
        if name in self.broken:
            raise RuntimeError("no such instruction")

        def call(tensors: Sequence[Tensor]) -> None:
            CLOCK.spend(f"compiled {name}", tensors[0])

        return dict.fromkeys(calls, call)


def compiled(compiler: PricedCompiler, **prices: float) -> TunedChoice:
    registry = priced_registry()
    calls = calls_of(registry, priced_step(registry["scale"]))
    named = {f"compiled {name}": price for name, price in prices.items()}
    CLOCK.reset(steady=4e-5, rival=1e-5, native=8e-5, **named)
    return tune(calls, WEIGHTS, is_fused=True, compiler=compiler, clock=CLOCK)


def test_what_a_compiler_fuses_is_timed_as_compiled_and_both_times_are_kept() -> None:
    compiler = PricedCompiler()
    choice = compiled(compiler, steady=4e-5, rival=3e-5, native=2e-5)
    assert compiler.compiled == ["steady", "native", "rival"]
    assert choice.provider == "native"
    assert choice.to_text().startswith("1 token: steady 40.0 µs, native 20.0 µs, rival 30.0 µs")
    assert format_timings(choice.as_written).startswith(
        "1 token: steady 40.0 µs, native 80.0 µs, rival 10.0 µs"
    )


def test_what_cannot_be_compiled_is_out_with_the_error() -> None:
    choice = compiled(PricedCompiler("native"), steady=4e-5, rival=3e-5)
    assert choice.provider == "rival"
    assert [(each.provider, each.reason) for each in choice.rejections] == [
        ("native", "is not compiled to be timed: RuntimeError: no such instruction")
    ]


def test_a_default_that_cannot_be_compiled_stays() -> None:
    choice = compiled(PricedCompiler("steady"), rival=1e-5, native=2e-5)
    assert (choice.provider, choice.timings, choice.as_written) == ("steady", (), ())


def test_one_that_only_loses_as_compiled_is_shown_as_written() -> None:
    choice = compiled(PricedCompiler(), steady=1e-5, rival=9e-5, native=8e-5)
    assert [each.provider for each in choice.timings] == ["steady"]
    assert [each.provider for each in choice.as_written] == ["steady"]
    assert "took 9.0 times as long as `steady`" in choice.rejections[1].reason


def test_nothing_is_compiled_where_nothing_would_be_fused() -> None:
    registry = Registry()

    @registry.register_op
    def project(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight

    project.register_impl("other", opaque=True)(plain_product)
    calls = calls_of(registry, lambda count: project(torch.ones(count, 2), torch.ones(2, 2)))
    compiler = PricedCompiler()
    choice = tune(calls, WEIGHTS, is_fused=True, compiler=compiler)
    assert compiler.compiled == []
    assert {each.provider for each in choice.timings} >= {"native"}
    assert choice.as_written == ()


def plain_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(x, weight)
