"""The death certificates of a run in its diagnosis: before what follows from an end, after what explains one."""

from __future__ import annotations

from raydebug.diagnose.answer import EXACT, FAILURE, LIKELY, Answer, Diagnosis
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


def join_death(answer: Answer, run: Run) -> None:
    """Put the first death certificate of a run into its diagnosis."""
    kept = [one for one in run.deaths if one.get("kind") != FOLLOWED]
    if not kept:
        return
    first = min(kept, key=lambda one: float(one.get("at") or 0))
    lines = [*(str(one.get("text")) for one in kept), *first.get("evidence", []), *first.get("stack", [])]
    source, kind, unknown = str(run.folder / DOCUMENT), str(first.get("kind")), first.get("unknown", [])
    cause = "; ".join([*first.get("evidence", [])[:3], *(f"not known: {one}" for one in unknown)])
    death = Diagnosis(
        DEATH, LIKELY if unknown else EXACT, lines[0] if first is kept[0] else str(first.get("text")), cause,
        FIXES.get(kind, ""), [Line(source, at, text, "") for at, text in enumerate(lines[:MOST_LINES], 1)],
        process=f"{first.get('who')} pid={first.get('pid')}",
    )  # fmt: skip
    found, causes = answer.diagnoses, {rule.name for rule in load_rules() if rule.role == CAUSE}
    known = found[0] if found else None
    is_cause = known is not None and known.name in causes and known.confidence == EXACT
    is_before = kind in BEFORE_USERS and not unknown  # a guess comes after what the user's code has said
    is_users = known is not None and known.error is not None and known.name == "user-code" and not is_before
    found.insert(1 if is_cause or is_users else 0, death)
    found[0].effects = [one.name for one in found[1:]]
    answer.status = FAILURE
