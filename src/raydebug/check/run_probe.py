"""Run a probe in the cluster's own Python: one process with a time limit, its answer as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from raydebug import process
from raydebug.check.probes import BUSY_TIMES, MARK, Facts
from raydebug.check.target import Target
from raydebug.findings import Finding, error

KILL_AFTER_BUDGETS = 3
LIMIT_LEAST_S = 15.0  # a machine under load is no finding: starting Python alone may take seconds there
GRACE_S = 10.0  # the other side ends its child itself; we step in where it does not


@dataclass(frozen=True)
class StageResult:
    """The result of one stage.

    Args:
        findings: errors, warnings and notes.
        read: the files that the result depends on, by their paths in the cluster; empty if it depends on more than
            files, so that it cannot be cached.
    """

    findings: list[Finding]
    read: tuple[str, ...] = ()


class NoAnswer(Exception):
    """A probe that returned no facts; `finding` has the reason."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


def run_probe(target: Target, question: str, *, budget_s: float, **request: Any) -> Facts:
    """Return the facts that one module of `probes` gathers.

    Args:
        target: where to ask.
        question: the module's name.
        budget_s: how long it may take; after three times as long (15 s at least) it is killed.
        **request: arguments of the probe.

    Raises:
        NoAnswer: it failed, died or was killed.
        RaydebugError: the cluster's Python could not be run.
    """
    limit_s = max(budget_s * KILL_AFTER_BUDGETS, LIMIT_LEAST_S)
    document = json.dumps({**request, "question": question, "limit_s": limit_s})
    printed = target.place.run_python(
        ["-m", "raydebug.check.probes", document],
        target.folder,
        environ=target.environ,
        timeout_s=limit_s * BUSY_TIMES + GRACE_S,
    )
    lines = [line for line in printed.splitlines() if line.startswith(MARK)]
    if not lines:
        raise process.CommandFailed(
            ["python", "-m", "raydebug.check.probes"], 0, printed, fix="install this raydebug in the cluster's Python"
        )
    return facts_of(json.loads(lines[-1].removeprefix(MARK)), question, limit_s)


def facts_of(answer: Facts, question: str, limit_s: float) -> Facts:
    """Return the facts in an answer.

    Raises:
        NoAnswer: there are none in it.
    """
    if "facts" in answer:
        facts: Facts = answer["facts"]
        facts.setdefault("output", answer.get("output", ""))
        return facts
    last = (answer.get("output") or "").strip().splitlines()[-1:] or ["(it printed nothing)"]
    if answer.get("late"):
        raise NoAnswer(
            error(
                "check.out-of-time",
                f"the check '{question}' did not end within {limit_s:g} s",
                why=f"it was ended; its last line: {last[0]}",
                fix="look at what that line waits for; on a busy machine run the check again",
            )
        )
    if "signal" in answer:
        raise NoAnswer(
            error(
                "check.died",
                f"the process of the check '{question}' died: {_death(answer['signal'])}",
                why=f"it printed last: {last[0]}",
                fix="run the same import by hand; a signal in native code mostly means packages that do not fit",
            )
        )
    failed = answer["failed"]
    raise NoAnswer(
        error(
            "check.failed",
            f"the check '{question}' failed: {failed['type']}: {failed['message']}",
            why=f"{failed['where']} raised it",
            fix="if that is no file of yours, report it with what `--json` prints",
        )
    )


def _death(number: int) -> str:
    return f"signal {number}" if number > 0 else f"exit code {-number}"
