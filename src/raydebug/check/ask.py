"""Ask the cluster's own Python for facts: one process for a question, with a limit, its answer as data."""

from __future__ import annotations

import json
from typing import Any

from raydebug import process
from raydebug.check import finding
from raydebug.check.finding import Finding
from raydebug.check.inside.wire import BUSY_TIMES, MARK
from raydebug.check.subject import Subject

KILL_AFTER_BUDGETS = 3
LIMIT_LEAST_S = 15.0  # a machine under load is no finding: starting Python alone may take seconds there
GRACE_S = 10.0  # the other side ends its child itself; we step in where it does not


class NoAnswer(Exception):
    """The question was not answered; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


def ask(subject: Subject, question: str, *, budget_s: float, **request: Any) -> dict[str, Any]:
    """Return the facts that one module of `inside` gathers.

    Args:
        subject: where to ask.
        question: the module's name.
        budget_s: how long it may take; after three times as long (15 s at least) it is killed.
        **request: what it is told.

    Raises:
        NoAnswer: it failed, died or was killed.
        RaydebugError: the cluster's Python could not be run.
    """
    limit_s = max(budget_s * KILL_AFTER_BUDGETS, LIMIT_LEAST_S)
    document = json.dumps({**request, "question": question, "limit_s": limit_s})
    printed = subject.place.run_python(
        ["-m", "raydebug.check.inside", document],
        subject.folder,
        environ=subject.environ,
        timeout_s=limit_s * BUSY_TIMES + GRACE_S,
    )
    lines = [line for line in printed.splitlines() if line.startswith(MARK)]
    if not lines:
        raise process.CommandFailed(
            ["python", "-m", "raydebug.check.inside"], 0, printed, fix="install this raydebug in the cluster's Python"
        )
    return facts_of(json.loads(lines[-1].removeprefix(MARK)), question, limit_s)


def facts_of(answer: dict[str, Any], question: str, limit_s: float) -> dict[str, Any]:
    """Return the facts in an answer.

    Raises:
        NoAnswer: there are none in it.
    """
    if "facts" in answer:
        facts: dict[str, Any] = answer["facts"]
        facts.setdefault("output", answer.get("output", ""))
        return facts
    last = (answer.get("output") or "").strip().splitlines()[-1:] or ["(it printed nothing)"]
    if answer.get("late"):
        raise NoAnswer(
            finding.error(
                "check.out-of-time",
                f"the check '{question}' did not end within {limit_s:g} s",
                why=f"it was ended; it said last: {last[0]}",
                fix="look at what that line waits for; on a busy machine run the check again",
            )
        )
    if "signal" in answer:
        raise NoAnswer(
            finding.error(
                "check.died",
                f"the process of the check '{question}' died: {_death(answer['signal'])}",
                why=f"it said last: {last[0]}",
                fix="run the same import by hand; a signal in native code mostly means packages that do not fit",
            )
        )
    failed = answer["failed"]
    raise NoAnswer(
        finding.error(
            "check.failed",
            f"the check '{question}' failed: {failed['type']}: {failed['message']}",
            why=f"{failed['where']} raised it",
            fix="if that is no file of yours, report it with what `--json` prints",
        )
    )


def _death(number: int) -> str:
    return f"signal {number}" if number > 0 else f"exit code {-number}"
