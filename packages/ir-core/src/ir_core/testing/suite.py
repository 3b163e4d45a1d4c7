"""The conformance suite: every check on every case, as a report. Defines no check itself."""

import time
from collections.abc import Iterable, Sequence

import torch

from ir_core.implementation import Implementation
from ir_core.op import IrOp
from ir_core.testing.case import DTYPES, Case, cases, require_selected
from ir_core.testing.checks import CHECKS, Check
from ir_core.testing.errors import CheckDeclined, CheckRejected, ConformanceError
from ir_core.testing.report import Finding, Outcome, Report


def check(
    ops: Iterable[IrOp],
    *,
    providers: Sequence[str] | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    checks: Sequence[Check] = CHECKS,
) -> Report:
    """Run `checks` on every implementation of `ops`, or on those of `providers` only.

    Never raises for what an implementation does: that is a finding.
    """
    chosen = [
        implementation
        for op in ops
        for provider, implementation in op.implementations.items()
        if providers is None or provider in providers
    ]
    return check_implementations(chosen, dtypes=dtypes, checks=checks)


def check_implementations(
    implementations: Iterable[Implementation],
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    checks: Sequence[Check] = CHECKS,
) -> Report:
    """Run `checks` on these implementations, as `check` does."""
    findings: list[Finding] = []
    for implementation in implementations:
        findings += _check_implementation(implementation, dtypes, checks)
    return Report(tuple(findings))


def check_case(case: Case, check: Check) -> Finding:
    """Make one check on one case."""
    start = time.perf_counter()
    outcome, detail = _outcome(case, check)
    seconds = time.perf_counter() - start
    return Finding(
        case.op.name,
        case.provider,
        check.name,
        case.workload.name,
        case.dtype_name,
        outcome,
        detail,
        seconds,
        case.layout_name,
    )


def _check_implementation(
    implementation: Implementation, dtypes: Sequence[torch.dtype], checks: Sequence[Check]
) -> Iterable[Finding]:
    op, provider = implementation.op, implementation.provider
    if not implementation.supported:
        reason = implementation.unsupported_reason
        return [Finding(op.name, provider, "all", "", "", Outcome.UNAVAILABLE, reason)]
    if not op.has_input_generator:
        reason = "the op has no input generator; add one with `register_input_generator`"
        return [Finding(op.name, provider, "all", "", "", Outcome.SKIPPED, reason)]
    return _check_cases(cases([op], providers=[provider], dtypes=dtypes), checks)


def _check_cases(all_cases: Sequence[Case], checks: Sequence[Check]) -> Iterable[Finding]:
    done: dict[str, set[torch.dtype]] = {}
    for case in all_cases:
        verdict = check_case(case, _ACCEPTS)
        if verdict.outcome is not Outcome.PASSED:
            yield verdict
            continue
        dtypes = done.setdefault(case.layout, set())
        is_first = case.has_several_tokens and case.dtype not in dtypes
        for each in checks:
            is_due = each.num_dtypes is None or (is_first and len(dtypes) < each.num_dtypes)
            if is_due and each.applies(case):
                yield check_case(case, each)
        if is_first:
            dtypes.add(case.dtype)


def _require_accepted(case: Case) -> None:
    require_selected(case.implementation, case.arguments())


# What ends a case before its checks: rejected, or no arguments to be had.
_ACCEPTS = Check("accepts", _require_accepted, bool)


def _outcome(case: Case, check: Check) -> tuple[Outcome, str]:
    try:
        check.run(case)
    except CheckRejected as rejected:
        return Outcome.REJECTED, str(rejected)
    except CheckDeclined as declined:
        return Outcome.SKIPPED, str(declined)
    except ConformanceError as error:
        return Outcome.FAILED, str(error)
    except Exception as error:  # an implementation may raise anything
        return Outcome.FAILED, f"raised {type(error).__name__}: {error}"
    return Outcome.PASSED, ""
