"""The diagnosis of a run: what its logs say, joined with the stacks of a hang and the snapshots in its folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raydebug import render
from raydebug.diagnose.answer import EXACT, FAILURE, LIKELY, NO_FAILURE, Answer, Diagnosis, Related, headline, origin
from raydebug.diagnose.cause import USER_CODE, diagnose
from raydebug.diagnose.inputs import LIMIT_S, open_job, read_logs, read_words, until
from raydebug.diagnose.read import Line
from raydebug.diagnose.scan import Kept, Stop, never
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol.secrets import scrubbed
from raydebug.runs.folder import DOCUMENT, RECORD_BYTES_MAX, SNAPSHOTS, STACKS, load_run, next_step, read_run, runs_dir
from raydebug.runs.record import Run
from raydebug.settings.files import read_json
from raydebug.snapshot.load import find_snapshots, group_same, name_processes
from raydebug.stacks.wait_kinds import CERTAIN

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard

HANG = "hang"
EXPLAIN_S = 60.0  # limit of what `run` waits for after a failure
EVIDENCE_CHARS = 300
_PROCESS = re.compile(r"\b(pid|rank)[ =]?(\d+)")


def find_run(word: str) -> Run | None:
    """Return the record of the run that a word of the command line names; None if it names something else."""
    path = Path(word)
    try:
        if path.exists():
            return read_run(path) if (path / DOCUMENT).is_file() else None
        return load_run(word)
    except RaydebugError:
        return None


def diagnose_words(
    words: Sequence[str], cluster: str, stop: Stop | None = None, *, only_files: bool = False
) -> tuple[Answer, Kept]:
    """Say what failed in the logs that words of the command line name, and return what was read of them.

    Raises:
        RaydebugError: there is no such file, run or job, it cannot be read, or all of them are empty.
    """
    stop = stop or until(LIMIT_S)
    kept = read_words(words, cluster, stop, only_files=only_files)
    run = find_run(words[0]) if len(words) == 1 else None
    answer = diagnose_run(kept.lines, run, stop)
    add_command(answer, run)
    answer.notes = list(dict.fromkeys([*kept.notes, *answer.notes]))
    if not kept.read_bytes and not answer.related:
        raise UsageError(
            "there is nothing to read", code="diagnose.empty",
            cause="; ".join(["the logs are empty", *kept.notes]),
            fix="give the logs of the run: raydebug diagnose FILE...",
        )  # fmt: skip
    return answer, kept


def diagnose_run(lines: Sequence[Line], run: Run | None, stop: Stop = never, *, has_failed: bool = False) -> Answer:
    """Say what failed, from the lines of a run's logs, and its record where there is one.

    Args:
        lines: of its logs.
        run: its record.
        stop: says why to stop judging.
        has_failed: it is known that the run has; its record may say so too.
    """
    if run is not None and run.status == "succeeded":
        return Answer(NO_FAILURE, [])  # whatever its logs have: it went on
    answer = diagnose(lines, stop, has_failed=has_failed or (run is not None and run.status == "failed"))
    if run is None:
        return answer
    folder, name = run.folder, _name_of(run)
    if run.deaths:
        from raydebug.diagnose.death import join_death

        join_death(answer, run)
    hang = _read_hang(run, name)
    if hang is not None:
        _join_hang(answer, hang)
        answer.related.append(Related("stacks", _show_stacks(folder / STACKS), "where each process was"))
    if (folder / SNAPSHOTS).is_dir():
        answer.related += _find_crash(folder, name, answer.first.process if answer.first is not None else "")
    return answer


def diagnose_job(dashboard: Dashboard, job: str, run: Run | None, limit_s: float) -> tuple[Answer, list[Line]]:
    """Say why a job has failed, from the logs of its processes, and return their lines that are worth a look.

    Raises:
        RaydebugError: the dashboard does not answer, or there is no such job.
    """
    stop = until(limit_s)
    lines = read_logs(open_job(dashboard, job), Kept(), stop).lines
    return diagnose_run(lines, run, stop, has_failed=True), lines


def explain_failure(dashboard: Dashboard, job: str) -> tuple[list[str], dict[str, str] | None, list[dict[str, str]]]:
    """Return why a job failed: lines for its user, and the first error and findings for the record of its run.

    All are empty where the logs show no failure. A hang is among the findings already.
    """
    run = find_run(job)
    try:
        answer, _ = diagnose_job(dashboard, job, run, EXPLAIN_S)
    except RaydebugError:
        return [], None, []
    if answer.first is None:
        return [], None, []
    add_command(answer, run)
    is_finding = answer.first.confidence == EXACT and answer.first.name != HANG
    findings = [as_finding(answer.first)] if is_finding else []
    crash = next((related.command for related in answer.related if related.kind == "snapshot"), "")
    steps = [next_step(job, *shlex.split(crash)[3:])]
    if answer.first.command is not None:
        steps.insert(0, f"next: {render.command('raydebug', 'run', '--again', job)}  (with this fix)")
    return [*failure_lines(answer.first), *steps], answer.first.as_first_error(), findings


def failure_lines(first: Diagnosis) -> list[str]:
    """Return what `run` says of a failure: what it is, where, the line of source; of a known class line and fix too."""
    record, at, error = first.as_first_error(), first.evidence[0], first.error
    is_users = first.name == USER_CODE
    lines = [
        record["cause"] if is_users else "".join(headline(record)),
        f"  {origin(record)}",
        f"    {error.source_line}" if error else "",
        "" if is_users else f"  {at.source}:{at.number}: {at.text.strip()[:EVIDENCE_CHARS]}",
        "" if is_users else f"fix: {first.fix}",
    ]
    return [scrubbed(line) for line in lines if line.strip() not in ("", "fix:")]


def as_finding(diagnosis: Diagnosis) -> dict[str, str]:
    """Return a diagnosis as the record of a run has it, without secrets: the report shows it."""
    at = diagnosis.evidence[0]
    finding = {
        "code": diagnosis.name, "severity": "error", "what": diagnosis.title, "why": diagnosis.cause,
        "fix": diagnosis.fix,
        "evidence": f"{at.source}:{at.number}: {at.text.strip()[:EVIDENCE_CHARS]}",
    }  # fmt: skip
    if diagnosis.command is not None:
        finding["command"] = diagnosis.command
    return {key: scrubbed(text) for key, text in finding.items()}


def add_command(answer: Answer, run: Run | None) -> None:
    """Give the first cause the command of its run with the fix, where there is one, and say how to run it."""
    first = answer.first
    if run is None or first is None or not (first.settings or first.variables):
        return
    from raydebug.diagnose.fix import fix_run  # the profiles: 30 ms, and few diagnoses need them

    fixed = fix_run(first, run)
    if fixed is None:
        return
    first.command = shlex.join(fixed.command)
    first.fix = f"{first.fix}; {', '.join(fixed.changes)}"
    if is_own(run):
        again = render.command("raydebug", "run", "--again", _name_of(run))
        answer.related.append(Related("again", again, "with this fix"))


def is_own(run: Run) -> bool:
    """Say whether a run is one of this account's."""
    return run.folder.resolve().parent == runs_dir().resolve()


def _name_of(run: Run) -> str:
    folder = run.folder
    return folder.name if folder.parent == runs_dir() else str(folder)


def _read_hang(run: Run, name: str) -> Diagnosis | None:
    """Return the verdict that `run --hang-after` has left; None if the run did not hang."""
    path = run.folder / STACKS
    try:
        verdict = read_json(path, bytes_max=RECORD_BYTES_MAX, what="a record")["verdict"]
        text, certainty = str(verdict["text"]), str(verdict["certainty"])
    except (ValueError, LookupError, TypeError):
        return None
    return Diagnosis(
        HANG, EXACT if certainty == CERTAIN else LIKELY, "the job hangs", text,
        f"{_show_stacks(path)}; `raydebug run --on-hang pause` pauses the process that the verdict names",
        [Line(str(path), 1, text, name)],
    )  # fmt: skip


def _show_stacks(path: Path) -> str:
    return render.command("raydebug", "stacks", "--from", str(path))


def _join_hang(answer: Answer, hang: Diagnosis) -> None:
    """Put a hang before what follows from one, such as a collective that timed out, and after what may cause one."""
    diagnoses = answer.diagnoses
    explains = diagnoses and (diagnoses[0].confidence == EXACT or diagnoses[0].name == USER_CODE)
    diagnoses.insert(1 if explains else 0, hang)
    diagnoses[0].effects = [diagnosis.name for diagnosis in diagnoses[1:]]
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
        if any(
            ids & {("pid", snapshot.summary.get("pid")), ("rank", snapshot.summary.get("rank"))} for snapshot in same
        )
    ]
    at = next(iter(of_it), 0)
    same = groups[at]
    pick = f" --pick {at + 1}" if at else ""
    what = same[0].summary.get("exception") or same[0].summary.get("kind", "?")
    text = f"{what} at {same[0].place}, {name_processes(same)}"
    return [Related("snapshot", render.command("raydebug", "open", name) + pick, text)]
