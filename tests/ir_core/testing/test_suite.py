"""The suite finds each kind of wrong implementation, names it, and passes right ones."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core import testing
from ir_core.op import IrOp
from ir_core.testing import Outcome, Report

from .toy_ops import projection, scaled_add

Pair = tuple[Tensor, Tensor]
Function = Callable[[Tensor, Tensor, Tensor | None, float], Pair]
CHECKS = {check.name: check for check in testing.CHECKS}
LAYOUT_CHECKS = {"packs-and-unpacks", "native-reads-it-packed"}


def _right(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
    wide, other = x.double(), x_other.double()
    scaled = wide if factor is None else wide * factor.double()
    return (scaled + other * power).to(x.dtype), (wide - other).to(x.dtype)


def _check(function: Function, *only: str, **flags: object) -> tuple[IrOp, Report]:
    op = scaled_add()
    op.register_impl("fast", **flags)(function)  # type: ignore[arg-type]
    checks = [CHECKS[name] for name in only] or testing.CHECKS
    return op, testing.check([op], providers=["fast"], checks=checks)


def _failed_checks(report: Report) -> set[str]:
    return {failure.check for failure in report.failures}


def test_right_implementation_passes_everything() -> None:
    op, report = _check(_right, batch_invariant=True)
    assert report.ok, report.to_text()
    made = {finding.check for finding in report.findings}
    assert made == set(CHECKS) - LAYOUT_CHECKS
    assert {finding.outcome for finding in report.findings} == {Outcome.PASSED}
    assert op.registry.selections()[-1].provider == "fast"


def test_right_in_place_implementation_passes_everything() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        first, second = _right(x, x_other, factor, power)
        return x.copy_(first), x_other.copy_(second)

    _, report = _check(fast, inplace=True)
    assert report.ok, report.to_text()


def test_wrong_value_names_op_provider_and_worst_element() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        first, second = _right(x, x_other, factor, power)
        second = second.clone()
        if second.shape[0] > 2:
            second[2, 1] += 3
        return first, second

    _, report = _check(fast, "matches-native")
    failure = report.failures[0]
    assert (failure.op, failure.provider) == ("scaled_add", "fast")
    assert "output 1: worst at index [2, 1]: got " in failure.detail
    assert "expected " in failure.detail
    assert "input there: x=" in failure.detail
    assert "scaled_add fast [odd-count float32]" in report.to_text()


def test_rounding_in_another_place_fails_where_no_tolerance_sees_it() -> None:
    (op,) = testing.fresh_registry([ir.ops.rms_norm]).values()

    @op.register_impl("wide")
    def _wide(
        x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> Tensor:
        # The weight is multiplied in float32; native rounds to the weight's dtype before.
        normal = op.native.fn(x.float(), None, epsilon, variance_size)
        return (normal if weight is None else normal * weight.float()).to(x.dtype)

    checks = [CHECKS["matches-native"], CHECKS["rounds-like-native"]]
    report = testing.check([op], providers=["wide"], checks=checks)
    assert _failed_checks(report) == {"rounds-like-native"}
    assert {failure.dtype for failure in report.failures} == {"bfloat16", "float16"}
    assert "float32-weight" not in {failure.workload for failure in report.failures}
    assert "rounds somewhere else than native does. First at index" in report.failures[0].detail


def test_undeclared_write_into_an_input_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        result = _right(x, x_other, factor, power)
        x_other.zero_()
        return result

    _, report = _check(fast, "keeps-its-inputs")
    assert "writes into its input `x_other`" in report.failures[0].detail


def test_aliasing_in_one_dtype_only_fails_in_that_dtype() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        wide = x.float()
        wide.mul_(1 if factor is None else factor.float())
        return (wide + x_other.float() * power).to(x.dtype), _right(x, x_other, None)[1]

    _, report = _check(fast, "keeps-its-inputs")
    assert {failure.dtype for failure in report.failures} == {"float32"}


def test_output_that_aliases_an_input_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        return _right(x, x_other, factor, power)[0], x.view(-1).view(x.shape)

    _, report = _check(fast, "gives-fresh-outputs")
    assert "output 1 shares memory with the input `x`" in report.failures[0].detail


def test_outputs_that_alias_each_other_fail() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        first = _right(x, x_other, factor, power)[0]
        return first, first[:]

    _, report = _check(fast, "gives-fresh-outputs")
    assert "outputs 0 and 1 share memory" in report.failures[0].detail


def test_output_of_the_wrong_dtype_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        return tuple(each.float() for each in _right(x, x_other, factor, power))  # type: ignore[return-value]

    _, report = _check(fast, "gives-the-activation-dtype", "agrees-with-fake")
    assert {each.check for each in report.failures} == {
        "gives-the-activation-dtype",
        "agrees-with-fake",
    }
    assert {each.dtype for each in report.failures} == {"bfloat16", "float16"}


def test_native_that_leaks_another_dtype_fails() -> None:
    registry = testing.fresh_registry()

    @registry.register_op
    def leaking(x: Tensor) -> Tensor:
        return x.float() * 2

    leaking.register_input_generator(
        lambda num_tokens, dtype: (torch.ones(num_tokens, 3).to(dtype),)
    )
    checks = [CHECKS["gives-the-activation-dtype"]]
    report = testing.check([leaking], checks=checks)
    assert {each.dtype for each in report.failures} == {"bfloat16", "float16"}
    assert "output 0 is torch.float32, `x` is torch.bfloat16" in report.failures[0].detail
    # An op that says so in a fake of its own may.
    leaking.register_fake(lambda x: x.new_empty(x.shape, dtype=torch.float32))
    assert not testing.check([leaking], checks=checks).findings


def test_output_with_other_strides_than_the_fake_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        first, second = _right(x, x_other, factor, power)
        return first.T.contiguous().T, second

    _, report = _check(fast, "agrees-with-fake")
    assert "output 0 is ((7, 5), (1, 7)" in report.failures[0].detail


def test_implementation_that_ignores_strides_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        packed = torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset())
        return _right(packed, x_other, factor, power)

    _, report = _check(fast, "matches-native", "reads-strides")
    assert _failed_checks(report) == {"reads-strides"}


def test_in_place_implementation_that_ignores_strides_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        packed = torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset())
        first, second = _right(packed, x_other, factor, power)
        return x.copy_(first), x_other.copy_(second)

    _, report = _check(fast, "donates-without-a-trace", "reads-strides", inplace=True)
    assert _failed_checks(report) == {"reads-strides"}
    assert "of strided inputs differs from that of dense ones" in report.failures[0].detail


def test_implementation_that_writes_beside_its_arguments_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        first, second = _right(x, x_other, factor, power)
        # Whole rows, from the first element of the first to the last of the last.
        length = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) + 1
        if x.numel():
            x.as_strided((length,), (1,)).zero_()
        return x.copy_(first), x_other.copy_(second)

    _, report = _check(fast, "donates-without-a-trace", "reads-strides", inplace=True)
    assert _failed_checks(report) == {"reads-strides"}
    assert "writes beside `x`" in report.failures[0].detail


def test_implementation_that_ignores_the_strides_of_a_weight_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        if factor is not None:
            factor = torch.as_strided(factor, factor.shape, (1,), factor.storage_offset())
        return _right(x, x_other, factor, power)

    _, report = _check(fast, "matches-native", "reads-strides")
    assert _failed_checks(report) == {"reads-strides"}


def test_predicate_that_refuses_strides_is_reported_as_rejected() -> None:
    def dense(x, x_other, factor, power=2.0):  # type: ignore[no-untyped-def]
        return factor is None or factor.stride(0) == 1 or "the factor has gaps"

    _, report = _check(_right, "reads-strides", "matches-native", supports_args=dense)
    assert not report.failures
    rejected = [each for each in report.findings if each.outcome is Outcome.REJECTED]
    assert {each.check for each in rejected} == {"reads-strides"}
    assert {each.detail for each in rejected} == {"the factor has gaps"}
    assert "the factor has gaps" in report.to_text()


def test_implementation_that_swallows_nan_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        first, second = _right(x, x_other, factor, power)
        return first.nan_to_num(), second

    _, report = _check(fast, "matches-native", "passes-on-non-finite")
    assert _failed_checks(report) == {"passes-on-non-finite"}
    assert "expected nan" in report.failures[0].detail


def test_claimed_batch_invariance_that_does_not_hold_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        first, second = _right(x, x_other, factor, power)
        return first * (1 + 1e-6 * (x.shape[0] > 1)), second

    _, report = _check(fast, "keeps-rows-apart", batch_invariant=True)
    assert "it claims to be batch-invariant" in report.failures[0].detail
    _, unclaimed = _check(fast, "keeps-rows-apart")
    assert not unclaimed.findings


def test_row_that_depends_on_its_thread_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        first, second = _right(x, x_other, factor, power)
        if torch.get_num_threads() > 1 and x.numel() > 2 * 32768:
            first[len(first) // 2 :] *= 1.01
        return first, second

    _, report = _check(fast, "keeps-threads-apart", batch_invariant=True)
    assert "it claims to be batch-invariant" in report.failures[0].detail


def test_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    _check(_right, "keeps-threads-apart", batch_invariant=True)
    assert torch.get_num_threads() == before


def test_checks_that_do_not_run_on_every_case_see_a_batch_in_two_dtypes() -> None:
    _, report = _check(_right, "compiles-to-the-same", "passes-on-non-finite")
    made = {(each.check, each.workload, each.dtype) for each in report.findings}
    assert {each for each in made if each[0] == "compiles-to-the-same"} == {
        ("compiles-to-the-same", "odd-count", "float32"),
        ("compiles-to-the-same", "odd-count", "bfloat16"),
    }
    # A single row, or none, would have nothing odd in it.
    assert {each[1] for each in made if each[0] == "passes-on-non-finite"} == {
        "odd-count",
        "wide",
        "no-factor",
    }


def test_number_of_tokens_is_a_symbol_when_compiled() -> None:
    op, counts = scaled_add(), set[type]()

    @op.register_fake
    def _fake(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        counts.add(type(x.shape[0]))
        return torch.empty_like(x), torch.empty_like(x)

    report = testing.check([op], checks=[CHECKS["compiles-to-the-same"]])
    assert report.ok, report.to_text()
    assert torch.SymInt in counts


def test_predicate_that_reads_the_batch_fails_with_its_place() -> None:
    def small(x, x_other, factor, power=2.0):  # type: ignore[no-untyped-def]
        return x.shape[0] <= 4

    _, report = _check(_right, supports_args=small)
    assert report.failures
    assert "`x.shape[0]`" in report.failures[0].detail
    assert "test_suite.py" in report.failures[0].detail
    assert report.count(Outcome.PASSED) == 0


def test_predicate_that_changes_its_mind_fails() -> None:
    answers = iter(range(10_000))

    def moody(x, x_other, factor, power=2.0):  # type: ignore[no-untyped-def]
        return next(answers) % 3 != 2

    _, report = _check(_right, "selects-by-static-facts", supports_args=moody)
    assert "depends on the number of tokens" in report.failures[0].detail


@pytest.mark.parametrize(
    "check",
    [
        "runs-as-itself",
        "binds-every-call-form",
        "donates-without-a-trace",
        "compiles-to-the-same",
        "keeps-rows-apart",
        "passes-opcheck",
    ],
)
def test_implementation_that_differs_from_call_to_call_fails(check: str) -> None:
    calls = iter(range(10_000))

    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        first, second = _right(x, x_other, factor, power)
        return first + next(calls), second

    _, report = _check(fast, check, batch_invariant=True)
    assert report.failures, report.to_text()
    passed = {each.workload for each in report.findings if each.outcome is Outcome.PASSED}
    assert passed <= {"no-tokens"}


def test_opcheck_finds_a_write_that_the_schema_does_not_declare() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        result = _right(x, x_other, factor, power)
        x.zero_()
        return result

    _, report = _check(fast, "passes-opcheck")
    assert "opcheck of `ir_test_" in report.failures[0].detail


def test_torch_schema_that_leaves_out_a_write_fails() -> None:
    op = scaled_add()
    op.mutates = ("x",)
    report = testing.check([op], checks=[CHECKS["has-native-schema"]])
    assert "marks [] as written, the op ['x']" in report.failures[0].detail


def test_maybe_inplace_that_differs_from_default_fails() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        x_other.sub_(x).neg_()
        first, _ = _right(x, x_other, factor, power)
        return x.copy_(first), x_other

    _, report = _check(fast, "matches-native", "donates-without-a-trace", inplace=True)
    assert "matches-native" in _failed_checks(report)


def test_rejected_and_unavailable_are_never_counted_as_passed() -> None:
    def never(x, x_other, factor, power=2.0):  # type: ignore[no-untyped-def]
        return "not today"

    _, rejected = _check(_right, supports_args=never)
    assert {each.outcome for each in rejected.findings} == {Outcome.REJECTED}
    assert {each.detail for each in rejected.findings} == {"not today"}
    _, unavailable = _check(_right, supported=(False, "needs a moon"))
    (finding,) = unavailable.findings
    assert (finding.outcome, finding.detail) == (Outcome.UNAVAILABLE, "needs a moon")
    assert not rejected.ok
    assert not unavailable.ok


def test_implementation_that_raises_is_a_finding() -> None:
    def fast(x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0) -> Pair:
        raise ValueError("no such kernel")

    _, report = _check(fast, "matches-native")
    assert report.failures[0].detail == "raised ValueError: no such kernel"


def test_op_without_inputs_is_skipped_with_what_to_do() -> None:
    registry = testing.fresh_registry()

    @registry.register_op
    def bare(x: Tensor) -> Tensor:
        return x + 1

    (finding,) = testing.check([bare]).findings
    assert finding.outcome is Outcome.SKIPPED
    assert "register_input_generator" in finding.detail


@pytest.mark.parametrize("check", ["matches-native", "keeps-its-inputs"])
def test_op_that_writes_an_argument_is_judged_by_what_it_wrote(check: str) -> None:
    registry = testing.fresh_registry()

    @registry.register_op(mutates=("target",))
    def store(x: Tensor, target: Tensor) -> None:
        target.copy_(x * 2)

    @store.register_input_generator
    def _inputs(num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return torch.ones(num_tokens, 3, dtype=dtype), torch.zeros(num_tokens, 3, dtype=dtype)

    @store.register_impl("forgetful")
    def _forgetful(x: Tensor, target: Tensor) -> None:
        target[1:].copy_(x[1:] * 2)

    native = testing.check([store], providers=["native"], checks=[CHECKS[check]])
    assert native.ok, native.to_text()
    wrong = testing.check([store], providers=["forgetful"], checks=[CHECKS[check]])
    assert wrong.ok is (check == "keeps-its-inputs")
    if check == "matches-native":
        assert "`target` after the call: worst at index [0, 0]: got 0" in wrong.failures[0].detail


def _check_projection(function: Callable[..., Tensor], *layouts: str) -> Report:
    op = projection()

    @op.register_impl("fast", layouts=layouts)
    def _(x: Tensor, weight: Tensor, layout: str = "plain") -> Tensor:
        return function(x, weight, layout)

    return testing.check([op], providers=["fast"])


def _right_projection(x: Tensor, weight: Tensor, layout: str) -> Tensor:
    return torch.nn.functional.linear(x, weight.flip(0) if layout == "upside_down" else weight)


def test_implementation_is_checked_in_every_layout_that_it_reads() -> None:
    report = _check_projection(_right_projection, "upside_down", "plain")
    assert report.ok, report.to_text()
    made = {layout: set[str]() for layout in ("upside_down", "plain")}
    for finding in report.findings:
        made[finding.layout].add(finding.check)
    assert made["upside_down"] - made["plain"] == LAYOUT_CHECKS
    assert made["plain"] < made["upside_down"]
    assert "ok    projection  fast (upside_down)  " in report.to_text()


def test_implementation_that_misreads_its_layout_fails_in_that_layout_alone() -> None:
    report = _check_projection(
        lambda x, weight, layout: torch.nn.functional.linear(x, weight), "upside_down", "plain"
    )
    assert {each.layout for each in report.failures} == {"upside_down"}
    assert "matches-native" in _failed_checks(report)
    assert "FAILED matches-native: projection fast (upside_down) [" in report.to_text()


def test_packed_weights_that_are_written_are_found() -> None:
    def writes(x: Tensor, weight: Tensor, layout: str) -> Tensor:
        return torch.nn.functional.linear(x, weight.copy_(weight.flip(0)))

    report = _check_projection(writes, "upside_down")
    assert "keeps-its-inputs" in _failed_checks(report)


@pytest.mark.parametrize(
    ("pack", "unpack", "words"),
    [
        (lambda w: (w.flip(0),), lambda w: (w.clone(),), "packed in `upside_down` and unpacked is"),
        (lambda w: (w.flip(0),), lambda w: (w,), "unpacked from `upside_down` is not a copy"),
        (lambda w: (w.zero_(),), lambda w: (w.clone(),), "`weight` packed in .* holds other bytes"),
        (lambda w: (w.mT.contiguous().mT,), lambda w: (w.clone(),), "is not contiguous"),
        (lambda w: (w.double(),), lambda w: (w.float(),), "a layout keeps shape, dtype"),
    ],
    ids=["no-inverse", "alias", "other-bytes", "strided", "dtype"],
)
def test_layout_that_is_no_permutation_is_found(
    pack: Callable[..., Any], unpack: Callable[..., Any], words: str
) -> None:
    op = projection(pack, unpack)
    report = testing.check([op], providers=["native"], dtypes=[torch.float32])
    found = {each.detail for each in report.failures if each.layout == "upside_down"}
    assert any(re.search(words, each) for each in found), found
    assert not any(each.layout == "plain" for each in report.failures)


def test_native_that_is_read_otherwise_packed_is_found() -> None:
    op = projection()
    case = next(each for each in testing.cases([op]) if each.layout == "upside_down")
    wrong = dataclasses.replace(op.native, fn=lambda x, weight, layout="plain": x @ weight.T)
    op._implementations = {"native": wrong}
    finding = testing.check_case(case, CHECKS["native-reads-it-packed"])
    assert finding.outcome is Outcome.FAILED
    assert "of native on weights in `upside_down` is" in finding.detail
