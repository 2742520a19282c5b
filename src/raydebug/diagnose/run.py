"""The diagnosis of a run: what its logs say, joined with the stacks of a hang and the snapshots in its folder."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raydebug.diagnose.cause import EXACT, FAILURE, LIKELY, USER_CODE, Answer, Diagnosis, Related, diagnose
from raydebug.diagnose.inputs import open_job, read_logs
from raydebug.diagnose.read import Line
from raydebug.errors import RaydebugError
from raydebug.jobs.run_folder import DOCUMENT, SNAPSHOTS, STACKS, load_run, read_run, runs_dir
from raydebug.protocol.secrets import Scrubber
from raydebug.snapshot.load import find_snapshots, group_same, name_processes
from raydebug.stacks.waits import CERTAIN

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard

HANG = "hang"
EVIDENCE_CHARS = 300
_PROCESS = re.compile(r"\b(pid|rank)[ =]?(\d+)")


def find_folder(word: str) -> Path | None:
    """Return the folder of the run that a word of the command line names; None if it names something else."""
    path = Path(word)
    if path.exists():
        return path if (path / DOCUMENT).is_file() else None
    try:
        return Path(load_run(word)["folder"])
    except RaydebugError:
        return None


def diagnose_run(lines: Sequence[Line], folder: Path | None) -> Answer:
    """Say what failed.

    Args:
        lines: of the run's logs.
        folder: the run's; None without one.
    """
    answer = diagnose(lines)
    if folder is None:
        return answer
    name = folder.name if folder.parent == runs_dir() else str(folder)
    hang = _read_hang(folder, name)
    if hang is not None:
        _join_hang(answer, hang)
        saved = f"raydebug stacks --from {shlex.quote(str(folder / STACKS))}"
        answer.related.append(Related("stacks", saved, "where each process was"))
    if (folder / SNAPSHOTS).is_dir():
        answer.related += _find_crash(folder, name, answer.diagnoses[0].process if answer.diagnoses else "")
    return answer


def explain_failure(dashboard: Dashboard, job: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return cause and fix of a job that failed: lines for its user, and findings for the record of its run.

    Both are empty where no rule is sure of it. A hang is in the record already.
    """
    try:
        answer = diagnose_run(read_logs(open_job(dashboard, job)).lines, find_folder(job))
    except RaydebugError:
        return [], []
    first = answer.diagnoses[0] if answer.status == FAILURE else None
    if first is None or (first.confidence != EXACT and first.name != HANG):
        return [], []
    lines = [f"diagnosis: {first.title} ({first.name}); {first.cause}", f"fix: {first.fix}"]
    return [*lines, f"next: raydebug diagnose {job}"], [] if first.name == HANG else [as_finding(first)]


def as_finding(one: Diagnosis) -> dict[str, str]:
    """Return a diagnosis as the record of a run has it, without secrets: the report shows it."""
    at = one.evidence[0]
    finding = {
        "code": one.name, "severity": "error", "what": one.title, "why": one.cause, "fix": one.fix,
        "evidence": f"{at.source}:{at.number}: {at.text.strip()[:EVIDENCE_CHARS]}",
    }  # fmt: skip
    scrub = Scrubber(()).scrub
    return {key: scrub(text) for key, text in finding.items()}


def _read_hang(folder: Path, name: str) -> Diagnosis | None:
    """Return the verdict that `run --hang-after` has left; None if the run did not hang, or went on to its end."""
    try:
        if read_run(folder).get("status") == "succeeded":
            return None
        verdict = json.loads((folder / STACKS).read_text(encoding="utf-8"))["verdict"]
        text, certainty = str(verdict["text"]), str(verdict["certainty"])
    except (RaydebugError, OSError, ValueError, LookupError, TypeError):
        return None
    return Diagnosis(
        HANG, EXACT if certainty == CERTAIN else LIKELY, "the job hangs", text,
        "raydebug stacks --from the file of this line; `run --on-hang pause` pauses the process that it names",
        [Line(str(folder / STACKS), 1, text, name)],
    )  # fmt: skip


def _join_hang(answer: Answer, hang: Diagnosis) -> None:
    """Put a hang before what follows from one, such as a collective that timed out, and after what may cause one."""
    found = answer.diagnoses
    explains = found and (found[0].confidence == EXACT or found[0].name == USER_CODE)
    found.insert(1 if explains else 0, hang)
    found[0].effects = [one.name for one in found[1:]]
    answer.status = FAILURE


def _find_crash(folder: Path, name: str, process: str) -> list[Related]:
    """Return how to open the snapshot of a process, or the first one where none is of that process."""
    groups = group_same(find_snapshots(str(folder)))
    if not groups:
        return []
    ids = {(kind, int(number)) for kind, number in _PROCESS.findall(process)}
    of_it = [
        number
        for number, same in enumerate(groups)
        if any(ids & {("pid", one.summary.get("pid")), ("rank", one.summary.get("rank"))} for one in same)
    ]
    at = next(iter(of_it), 0)
    same = groups[at]
    pick = f" --pick {at + 1}" if at else ""
    what = same[0].summary.get("exception") or same[0].summary.get("kind", "?")
    text = f"{what} at {same[0].place}, {name_processes(same)}"
    return [Related("snapshot", f"raydebug open {shlex.quote(name)}{pick}", text)]
