"""Checks provider `triton` in Triton's interpreter; prints the report as JSON.

A program of its own, since triton reads TRITON_INTERPRET when it is imported. The interpreter takes
some 20 ms for a program of a grid, so without arguments it makes the checks of numerics on small
workloads in bfloat16, whose rounding shows everything, and a few more on one of them. With the name
of an op it makes every check of it, on every workload and dtype.
"""

import json
import sys

import torch
from triton_launches import OPS

import ir_core as ir
from ir_core.testing import (
    CHECKS,
    Case,
    Check,
    CheckRejected,
    Finding,
    Report,
    cases,
    check,
    check_case,
    require_selected,
)

MAX_TOKENS = 24
OF_ALL = ("matches-native", "rounds-like-native")
OF_ONE = (
    "passes-on-non-finite",
    "keeps-its-inputs",
    "gives-fresh-outputs",
    "reads-strides",
    "agrees-with-fake",
    "keeps-rows-apart",
)
# The interpreter has one thread, whatever torch has.
MEANINGLESS = ("keeps-threads-apart",)


def brief(op: ir.IrOp) -> list[Finding]:
    """Numerics of small cases, and a few more checks of one."""
    return [
        check_case(case, each)
        for case in cases([op], providers=["triton"], dtypes=[torch.bfloat16])
        if case.workload.inputs["num_tokens"] <= MAX_TOKENS and is_accepted(case)
        for each in CHECKS
        if is_due(each, case)
    ]


def is_accepted(case: Case) -> bool:
    """Whether the provider takes a case: else native would be checked in its place."""
    try:
        require_selected(case.implementation, case.arguments())
    except CheckRejected:
        return False
    return True


def is_due(check: Check, case: Case) -> bool:
    """Whether a brief run makes a check of a case."""
    chosen = (*OF_ALL, *OF_ONE) if case.workload.name == "odd-count" else OF_ALL
    return check.name in chosen and check.applies(case)


def main(names: list[str]) -> None:
    """Check the named ops thoroughly, or all of them briefly, and print."""
    ir.load_plugins()
    if names:
        checks = [each for each in CHECKS if each.name not in MEANINGLESS]
        report = check([ir.registry()[name] for name in names], providers=["triton"], checks=checks)
    else:
        report = Report(tuple(each for name in OPS for each in brief(ir.registry()[name])))
    print(json.dumps(report.to_json()))


if __name__ == "__main__":
    main(sys.argv[1:])
