"""A ladder's outcome as text, JSON and JUnit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from raydebug.check.finding import Finding
from raydebug.check.ladder import FAILED, SKIPPED, Outcome

VERSION = 1


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the document of `--json`."""
    return {
        "version": VERSION,
        "ok": all(outcome.status != FAILED for outcome in outcomes),
        "stages": [outcome.as_json() for outcome in outcomes],
    }


def as_lines(outcome: Outcome) -> Iterator[str]:
    """Yield the lines about one stage: its status, then each finding in three lines."""
    if outcome.status == SKIPPED:
        yield f"{outcome.stage:<7} skipped  {outcome.reason}"
    else:
        over = f", over its budget of {outcome.budget_s:g} s" if outcome.seconds > outcome.budget_s else ""
        yield f"{outcome.stage:<7} {outcome.status:<8} {outcome.seconds:.1f} s{over}"
    for finding in outcome.findings:
        yield from _finding(finding)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"  {finding.severity}: {finding.what}  [{finding.code}]"
    yield f"    why: {finding.why}"
    yield f"    fix: {finding.fix}"


def as_junit(outcomes: Sequence[Outcome]) -> str:
    """Return the outcome as JUnit's XML: one test case for each stage, one failure for each error."""
    suite = ElementTree.Element(
        "testsuite",
        name="raydebug check",
        tests=str(len(outcomes)),
        failures=str(sum(outcome.status == FAILED for outcome in outcomes)),
        skipped=str(sum(outcome.status == SKIPPED for outcome in outcomes)),
        time=f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    )
    for outcome in outcomes:
        case = ElementTree.SubElement(
            suite, "testcase", classname="raydebug.check", name=outcome.stage, time=f"{outcome.seconds:.3f}"
        )
        if outcome.status == SKIPPED:
            ElementTree.SubElement(case, "skipped", message=outcome.reason or "")
        for finding in outcome.findings:
            text = "\n".join(_finding(finding))
            if finding.severity == "error":
                ElementTree.SubElement(
                    case, "failure", type=finding.code, message=_xml(finding.what)
                ).text = _xml(text)  # fmt: skip
            else:
                ElementTree.SubElement(case, "system-out").text = _xml(text)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _xml(text: str) -> str:
    """Return text without the control characters that XML 1.0 cannot hold."""
    return "".join(c if c in "\n\t" or c >= " " else "\N{REPLACEMENT CHARACTER}" for c in text)
