"""Conformance testing for ops and implementations, in the tree or not; shipped with the core.

`check` runs the suite and gives a `Report`; `cases` and `check_case` do the same step by step for
pytest; `assert_matches_native` and `fresh_registry` are for tests of one's own.
"""

from ir_core.ops.workload import InputGenerator, Workload, workloads
from ir_core.testing.assertions import assert_matches_native, fresh_registry
from ir_core.testing.case import (
    DTYPES,
    STANDARD_WORKLOADS,
    Case,
    cases,
    forced,
    require_selected,
    workloads_of,
)
from ir_core.testing.checks import CHECKS, Check
from ir_core.testing.errors import CheckDeclined, CheckRejected, ConformanceError
from ir_core.testing.junit import to_junit
from ir_core.testing.report import Finding, Outcome, Report
from ir_core.testing.suite import check, check_case, check_implementations

__all__ = [
    "CHECKS",
    "DTYPES",
    "STANDARD_WORKLOADS",
    "Case",
    "Check",
    "CheckDeclined",
    "CheckRejected",
    "ConformanceError",
    "Finding",
    "InputGenerator",
    "Outcome",
    "Report",
    "Workload",
    "assert_matches_native",
    "cases",
    "check",
    "check_case",
    "check_implementations",
    "forced",
    "fresh_registry",
    "require_selected",
    "to_junit",
    "workloads",
    "workloads_of",
]
