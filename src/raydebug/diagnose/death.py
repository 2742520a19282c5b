"""The death certificates of a run in its diagnosis: before what follows from an end, after what explains one."""

from __future__ import annotations

import re

from raydebug.diagnose.answer import EXACT, FAILURE, LIKELY, Answer, Diagnosis
from raydebug.diagnose.cause import USER_CODE
from raydebug.diagnose.read import Line
from raydebug.diagnose.rules import CAUSE, load_rules
from raydebug.jobs.certificate import FOLLOWED
from raydebug.runs.folder import DOCUMENT
from raydebug.runs.record import Run

DEATH = "process-death"
MOST_LINES = 40
_MEMORY = "fewer workers on the node, smaller batches, or more memory for it; `raydebug report` has the curve of each"
_NATIVE = "the stack names the native code: another version of that library, or its synchronous mode"
FIXES = {
    "kernel-oom-container": f"a higher memory limit of the container, or {_MEMORY}",
    "kernel-oom-machine": _MEMORY,
    "ray-oom": f"{_MEMORY}; Ray's limit is RAY_memory_usage_threshold",
    "sigsegv": _NATIVE, "sigabrt": _NATIVE, "sigfpe": _NATIVE,
    "sigbus": "free space in /dev/shm (--shm-size of the container), and no file that is cut while it is mapped",
    "sigkill": "ask who may end processes there: a person, a scheduler, `timeout`, a watchdog",
    "sigterm": "ask who may end processes there: a scheduler at its limit, a preemption, `kill`",
    "disk-full": "free space where the program writes: checkpoints, TMPDIR, Ray's temp dir",
    "os-exit": "the line that calls it", "exit-code": "the line that exits",
    "node-lost": "the machine's own log, or the scheduler's: preempted, rebooted, no network",
    "node-stopped": "the scheduler's or the container engine's events",
}  # fmt: skip
# Exceptions of the user's are what other processes say of these ends.
BEFORE_USERS = ("kernel-oom-container", "kernel-oom-machine", "ray-oom", "sigkill", "sigterm", "sigsegv", "sigbus",
                "node-lost", "node-stopped", "ray-stop", "raylet-ended", "ray-kill")  # fmt: skip


LATE_S = 5.0  # so long Ray may hold back a line: a step that is printed sooner may have ended before a death
# What the program itself has asked for: jobs/certificate.py `_killed_by_ray`, `_signalled`.
_ASKED = re.compile(r"\bray\.kill\b|\bos\.kill\b|\bkill\(\) at\b")


def join_death(answer: Answer, run: Run) -> None:
    """Put the first death certificate of a run into its diagnosis, unless the run went on after it."""
    last_step = max((step["end_s"] for step in run.steps), default=0.0) + (run.started or 0.0)
    deaths = [
        death
        for death in run.deaths
        if death.get("kind") != FOLLOWED and not (run.steps and float(death.get("at") or 0) + LATE_S < last_step)
    ]
    if not deaths:
        return
    first = min(deaths, key=lambda death: float(death.get("at") or 0))
    lines = [*(str(death.get("text")) for death in deaths), *first.get("evidence", []), *first.get("stack", [])]
    source, kind, unknown = str(run.folder / DOCUMENT), str(first.get("kind")), first.get("unknown", [])
    cause = "; ".join([*first.get("evidence", [])[:3], *(f"not known: {fact}" for fact in unknown)])
    certificate = Diagnosis(
        DEATH, LIKELY if unknown else EXACT, lines[0] if first is deaths[0] else str(first.get("text")), cause,
        FIXES.get(kind, ""), [Line(source, at, text, "") for at, text in enumerate(lines[:MOST_LINES], 1)],
        process=f"{first.get('who')} pid={first.get('pid')}",
    )  # fmt: skip
    diagnoses, causes = answer.diagnoses, {rule.name for rule in load_rules() if rule.role == CAUSE}
    best = answer.first
    is_asked = kind == "ray-kill" or _ASKED.search(str(first.get("text"))) is not None
    is_cause = best is not None and best.name in causes and best.confidence == EXACT
    is_before = kind in BEFORE_USERS and not unknown and not is_asked  # a guess comes after what the user's code says
    is_users = best is not None and best.error is not None and best.name == USER_CODE and not is_before
    diagnoses.insert(1 if is_cause or is_users else 0, certificate)
    diagnoses[0].effects = [diagnosis.name for diagnosis in diagnoses[1:]]
    answer.status = FAILURE
