"""The diagnosis of a run: what its logs say, joined with the stacks of a hang and the snapshots in its folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug import render
from raydebug.diagnose.cause import EXACT, FAILURE, LIKELY, NO_FAILURE, USER_CODE, Answer, Diagnosis, Related, diagnose
from raydebug.diagnose.inputs import LIMIT_S, open_job, read_logs, read_words, until
from raydebug.diagnose.read import Line, read_line
from raydebug.diagnose.scan import Kept, never
from raydebug.errors import Exit, RaydebugError
from raydebug.jobs.run_folder import DOCUMENT, RECORD_BYTES_MAX, SNAPSHOTS, STACKS, load_run, read_run, runs_dir
from raydebug.protocol import variables
from raydebug.protocol.secrets import HIDDEN, scrubbed
from raydebug.settings.files import read_json
from raydebug.snapshot.load import find_snapshots, group_same, name_processes
from raydebug.stacks.waits import CERTAIN

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard

HANG = "hang"
EXPLAIN_S = 60.0  # limit of what `run` waits for after a failure
EVIDENCE_CHARS = 300
_PROCESS = re.compile(r"\b(pid|rank)[ =]?(\d+)")


def find_run(word: str) -> Mapping[str, Any] | None:
    """Return the record of the run that a word of the command line names; None if it names something else."""
    path = Path(word)
    try:
        if path.exists():
            return read_run(path) if (path / DOCUMENT).is_file() else None
        return load_run(word)
    except RaydebugError:
        return None


def diagnose_words(
    words: Sequence[str], cluster: str, stop: Callable[[], str] | None = None, *, only_files: bool = False
) -> tuple[Answer, Kept]:
    """Say what failed in the logs that words of the command line name, and return what was read of them.

    Args:
        words: files, folders, `-`, runs and jobs.
        cluster: name of the one that may know a job.
        stop: asked from time to time; a reason ends it. LIMIT_S seconds if not given.
        only_files: whether pipes and standard input are refused.

    Raises:
        RaydebugError: there is no such file, run or job, it cannot be read, or all of them are empty.
    """
    stop = stop or until(LIMIT_S)
    kept = read_words(words, cluster, stop, only_files=only_files)
    answer = diagnose_run(kept.lines, find_run(words[0]) if len(words) == 1 else None, stop)
    answer.notes = list(dict.fromkeys([*kept.notes, *answer.notes]))
    if not kept.read_bytes and not answer.related:
        raise RaydebugError(
            "there is nothing to read", code="diagnose.empty", exit_code=Exit.USAGE,
            cause="; ".join(["the logs are empty", *kept.notes]),
            fix="give the logs of the run: raydebug diagnose FILE...",
        )  # fmt: skip
    return answer, kept


def diagnose_run(lines: Sequence[Line], run: Mapping[str, Any] | None, stop: Callable[[], str] = never) -> Answer:
    """Say what failed.

    Args:
        lines: of the run's logs.
        run: its record, of `find_run`; None without one.
        stop: asked from time to time; a reason ends the judging, and is a note.
    """
    if run is not None and run.get("status") == "succeeded":
        return Answer(NO_FAILURE, [])  # whatever its logs have: it went on
    answer = diagnose(lines, stop)
    if run is None:
        return answer
    folder = Path(run["folder"])
    name = folder.name if folder.parent == runs_dir() else str(folder)
    hang = _read_hang(run, name)
    if hang is not None:
        _join_hang(answer, hang)
        answer.related.append(Related("stacks", _show_stacks(folder / STACKS), "where each process was"))
    first = next(iter(answer.diagnoses), None)
    if (folder / SNAPSHOTS).is_dir():
        answer.related += _find_crash(folder, name, "" if first is None else first.process)
    if first is not None and _add_command(first, run) and _is_own(run):
        answer.related.append(Related("again", render.command("raydebug", "run", "--again", name), "with this fix"))
    return answer


def explain_failure(dashboard: Dashboard, job: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return cause and fix of a job that failed: lines for its user, and findings for the record of its run.

    Both are empty where no rule is sure of it. A hang is in the record already.
    """
    try:
        stop = until(EXPLAIN_S)
        answer = diagnose_run(read_logs(open_job(dashboard, job), Kept(), stop).lines, find_run(job), stop)
    except RaydebugError:
        return [], []
    first = answer.diagnoses[0] if answer.status == FAILURE else None
    if first is None or (first.confidence != EXACT and first.name != HANG):
        return [], []
    lines = [f"diagnosis: {first.title} ({first.name}); {first.cause}", f"fix: {first.fix}"]
    if first.command is not None:
        lines.append(f"next: {render.command('raydebug', 'run', '--again', job)}  (with this fix)")
    lines.append(f"next: {render.command('raydebug', 'diagnose', job)}")
    return [scrubbed(line) for line in lines], [] if first.name == HANG else [as_finding(first)]


def as_finding(one: Diagnosis) -> dict[str, str]:
    """Return a diagnosis as the record of a run has it, without secrets: the report shows it."""
    at = one.evidence[0]
    finding = {
        "code": one.name, "severity": "error", "what": one.title, "why": one.cause, "fix": one.fix,
        "evidence": f"{at.source}:{at.number}: {at.text.strip()[:EVIDENCE_CHARS]}",
    }  # fmt: skip
    if one.command is not None:
        finding["command"] = one.command
    return {key: scrubbed(text) for key, text in finding.items()}


def _add_command(one: Diagnosis, run: Mapping[str, Any]) -> bool:
    """Give a diagnosis the command of its run with the fix; return whether there is one."""
    command = run.get("command")
    if not isinstance(command, list) or not (one.settings or one.variables):
        return False
    from raydebug.diagnose.fix import apply_fix  # the profiles: 30 ms, and few diagnoses need them

    folder = Path(str(run.get("working_dir") or Path.cwd()))
    fixed = apply_fix(
        [str(word) for word in command], one.settings, one.variables, folder=folder, profile=run.get("profile")
    )
    if fixed is not None:
        one.command = shlex.join(fixed.command)
        one.fix = f"{one.fix}; {', '.join(fixed.changes)}"
    return fixed is not None


def _read_hang(run: Mapping[str, Any], name: str) -> Diagnosis | None:
    """Return the verdict that `run --hang-after` has left; None if the run did not hang."""
    path = Path(run["folder"]) / STACKS
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
    return [Related("snapshot", render.command("raydebug", "open", name) + pick, text)]


# run --again


@dataclass(frozen=True)
class Again:
    """How a recorded run is run again.

    Args:
        command: its words, with the fix where there is one.
        folder: where it ran; None if its record does not say.
        profile: its profile.
        tiny: what a tiny version replaced.
        notes: for the user: what is run, and why.
    """

    command: list[str]
    folder: Path | None
    profile: str | None
    tiny: list[str]
    notes: list[str]


def plan_again(word: str, cluster: str) -> Again:
    """Return how to run a recorded run again: with the fix that its logs ask for, or the line that `run` has shown.

    The fix is computed from the command of the run. A command in a finding is text for people, and is never run.

    Args:
        word: the run, as `load_run` takes it.
        cluster: name of the one that may know its job.

    Raises:
        RaydebugError: there is no such run, it is of somebody else, its record has no command or not all of it, or its
            folder is not there.
    """
    run = load_run(word)
    name = str(run.get("id"))
    command = [str(one) for one in run.get("command") or []]
    folder = Path(str(run["working_dir"])) if run.get("working_dir") else None
    _check_again(name, command, folder, run)
    found = diagnose_run(read_words([word], cluster, until(LIMIT_S), only_files=True).lines, run).diagnoses[:1]
    fixed = next((one for one in [*found, *_shown(run)] if one.command is not None), None)
    if fixed is not None and fixed.command is not None:
        command = shlex.split(fixed.command)
        notes = [f"again: {name} with a fix for {fixed.name}: {fixed.fix}"]
    else:
        why = f"{found[0].title} ({found[0].name}): {found[0].fix}" if found else "no failure is found in its logs"
        notes = [f"again: {name} as it was; there is no fix that can be applied: {why}"]
    tiny = str((run.get("variables") or {}).get(variables.TINY, "")).split()
    return Again(command, folder, run.get("profile"), tiny, [*notes, f"command: {shlex.join(command)}"])


def _shown(run: Mapping[str, Any]) -> list[Diagnosis]:
    """Return what the lines say that `run` has shown, with the command of the fix: the logs of workers may be gone."""
    found = []
    for one in run.get("findings") or []:
        text = re.sub(r"^.*?:\d+: ", "", str(one.get("evidence", "")), count=1)[:EVIDENCE_CHARS]
        for diagnosis in diagnose(read_line(text, "", 1)).diagnoses[:1]:
            if diagnosis.name == one.get("code") and _add_command(diagnosis, run):
                found.append(diagnosis)
    return found


def _is_own(run: Mapping[str, Any]) -> bool:
    return Path(run["folder"]).resolve().parent == runs_dir().resolve()


def _check_again(name: str, command: Sequence[str], folder: Path | None, run: Mapping[str, Any]) -> None:
    """Refuse to run something else than the run's command.

    Raises:
        RaydebugError: the command or its folder is not known, or not there.
    """
    secret = next((one for one in command if HIDDEN in one), None)
    if not _is_own(run):
        cause = f"{run['folder']} is not among the runs of this account: its command may be anybody's"
        fix = f"read it, and give it yourself: raydebug run -- COMMAND; {run['folder']}/{DOCUMENT} has it"
    elif not command:
        cause, fix = "its record has no command", "give the command: raydebug run -- COMMAND"
    elif secret is not None:
        cause = f"its record keeps no secrets: {secret}"
        fix = "give the command: raydebug run -- COMMAND, with the secret as a variable of `raydebug up`"
    elif folder is not None and not folder.is_dir():
        cause = f"it ran in {folder}, which is not on this machine"
        fix = "give the command where its files are: raydebug run -- COMMAND"
    else:
        return
    raise RaydebugError(
        f"run '{name}' cannot be run again", cause=cause, fix=fix, code="run.again", exit_code=Exit.USAGE
    )
