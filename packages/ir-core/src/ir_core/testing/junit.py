"""A report as JUnit XML, for CI systems. Decides nothing: the outcomes are the report's."""

import re
from xml.etree import ElementTree

from ir_core.testing.report import Finding, Outcome, Report

_NOT_XML = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def to_junit(report: Report) -> str:
    """One `testsuite` per op, one `testcase` per finding; what did not run is `skipped`."""
    root = ElementTree.Element("testsuites", name="ir check")
    by_op: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_op.setdefault(finding.op, []).append(finding)
    for op, findings in by_op.items():
        root.append(_suite(op, findings))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(op: str, findings: list[Finding]) -> ElementTree.Element:
    failed = sum(each.outcome is Outcome.FAILED for each in findings)
    passed = sum(each.outcome is Outcome.PASSED for each in findings)
    suite = ElementTree.Element(
        "testsuite",
        name=op,
        tests=str(len(findings)),
        failures=str(failed),
        skipped=str(len(findings) - failed - passed),
        time=f"{sum(each.seconds for each in findings):.3f}",
    )
    suite.extend(_case(each) for each in findings)
    return suite


def _case(finding: Finding) -> ElementTree.Element:
    parts = (finding.layout, finding.workload, finding.dtype)
    arguments = f"[{'-'.join(part for part in parts if part)}]" if finding.workload else ""
    case = ElementTree.Element(
        "testcase",
        classname=f"{finding.op}.{finding.provider}",
        name=f"{finding.check}{arguments}",
        time=f"{finding.seconds:.3f}",
    )
    if finding.outcome is Outcome.PASSED:
        return case
    detail = _NOT_XML.sub("?", finding.detail)
    if finding.outcome is Outcome.FAILED:
        message = detail.partition("\n")[0]
        ElementTree.SubElement(case, "failure", message=message).text = detail
    else:
        ElementTree.SubElement(case, "skipped", message=f"{finding.outcome}: {detail}")
    return case
