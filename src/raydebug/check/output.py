"""The result of a check: text, JSON, JUnit, a run folder for `raydebug report`, and the commands to run next."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from raydebug.check.stages import FAILED, SKIPPED, Outcome
from raydebug.check.target import Target
from raydebug.errors import Exit
from raydebug.findings import Finding
from raydebug.protocol.secrets import without_secret_arguments
from raydebug.runs.folder import RunFolder, remove_oldest
from raydebug.runs.record import CHECK, Phase, Run
from raydebug.settings.flavours import digest_of

VERSION = 1
COMMAND_CHARS_MAX = 120  # a longer one is named, not repeated


def as_json(outcomes: Sequence[Outcome]) -> dict[str, object]:
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
    from xml.etree import ElementTree

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


def record(target: Target, outcomes: Sequence[Outcome], started: float) -> None:
    """Write the outcome into a run folder of its own, as a run does; ignore a full disk. `started` is Unix time."""
    cluster = target.cluster
    failed = next((outcome for outcome in outcomes if outcome.status == FAILED), None)
    first_error = None
    if failed:
        error = next(finding for finding in failed.findings if finding.severity == "error")
        first_error = {"kind": error.code, "text": error.what, "who": f"stage {failed.stage}", "place": ""}
    python = None if cluster is None or cluster.kind == "compose" else cluster.python
    moment = datetime.fromtimestamp(started).strftime("%H%M%S")  # noqa: DTZ006 - as the user's clock has it
    run = Run(
        kind=CHECK,
        id=f"{CHECK}-{moment}-{os.urandom(3).hex()}",
        command=without_secret_arguments(target.command),
        cluster={name: getattr(cluster, name) for name in ("name", "kind", "flavour", "debugger")} if cluster else {},
        profile=target.profile,
        lock={"flavour": cluster.flavour, "sha256": digest_of(cluster.flavour, python)} if cluster else {},
        started=started,
        ended=time.time(),
        status="failed" if failed else "succeeded",
        exit_code=1 if failed else 0,
        first_error=first_error,
        phases=_phases(outcomes),
        findings=[
            {**finding.as_json(), "stage": outcome.stage} for outcome in outcomes for finding in outcome.findings
        ],
    )
    with contextlib.suppress(OSError):
        RunFolder(run.id).write(run)
        remove_oldest(CHECK)


def _phases(outcomes: Sequence[Outcome]) -> list[Phase]:
    """Return the stages that ran, one after the other."""
    spans, before_s = [], 0.0
    for outcome in outcomes:
        if outcome.status != SKIPPED:
            after_s = before_s + outcome.seconds
            spans.append(Phase(name=f"stage {outcome.stage}", start_s=round(before_s, 3), end_s=round(after_s, 3)))
            before_s = after_s
    return spans


@dataclass(frozen=True)
class Tried:
    """The result of `raydebug try`.

    Args:
        code: the run's exit code; None if nothing was run.
        seconds: duration of the run, including its own cluster if it had one.
        debugger: the requested mode; None is the default.
        cluster: whether a cluster was running before.
        warnings: how many the numbers of the run gave.
    """

    command: str
    outcomes: Sequence[Outcome]
    code: int | None
    seconds: float
    debugger: str | None
    cluster: bool
    warnings: int = 0


def next_steps(tried: Tried) -> Iterator[str]:
    """Yield the last lines of a try: its result, and the commands to run next."""
    command = tried.command if len(tried.command) <= COMMAND_CHARS_MAX else "COMMAND"
    failed = next((outcome for outcome in tried.outcomes if outcome.status == FAILED), None)
    if tried.code is None and failed is not None:
        yield f"tried: stage {failed.stage} failed; nothing was run"
        if any(finding.overrides or finding.variables for finding in failed.findings):
            yield f"next: raydebug check {failed.stage} --fix --profile debug -- {command}"
            yield "      applies the fixes that are settings or variables, and prints the fixed command"
        else:
            yield "next: fix that and try again; stages that passed are not run twice"
        return
    if tried.code == Exit.INTERRUPTED:
        yield "tried: interrupted"
        return
    if tried.code != 0:
        yield f"tried: the checks passed, the small run failed with code {tried.code} after {tried.seconds:.0f} s"
        if tried.debugger in (None, "off", "breakpoint"):
            yield f"next: raydebug try --debugger post-mortem -- {command}"
            yield "      stops at the frame that raises, for `raydebug attach`"
        else:
            yield "next: fix that and try again; stages that passed are not run twice"
        yield "      raydebug report: what the run did until then"
    else:
        plural = "s" if tried.warnings > 1 else ""
        how = f"with {tried.warnings} warning{plural} (above)" if tried.warnings else "well"
        yield f"tried: the checks passed, the small run ended {how} in {tried.seconds:.0f} s"
        yield f"next: raydebug check -- {command}"
        yield f"      raydebug run -- {command}"
        yield "      the same at its full size; `raydebug report` shows what the small run spent its time on"
    if not tried.cluster:
        yield "      raydebug up: a cluster that stays up saves the next try its start"
