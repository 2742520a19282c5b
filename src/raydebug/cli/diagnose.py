"""`raydebug diagnose`: the first cause in the logs of a run, with its evidence and its fix."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json, Name
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raydebug.diagnose.cause import Answer
    from raydebug.diagnose.scan import Kept

LOGS = (".log", ".out", ".err", ".txt", ".gz")
STDIN = "-"
SHOWN_CHARS = 300  # of a line of evidence


def diagnose(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB|RUN|FILE...|-]",
            help="A job, a run of `report --list`, log files, a folder of them, or - for standard input.",
        ),
    ] = None,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Say what went wrong, from logs: the first cause, the line that shows it, and the fix.

    \b
    Examples:
      raydebug diagnose                  the last run
      raydebug diagnose worker-*.err raylet.out
    """
    from raydebug.diagnose.cause import NO_FAILURE, diagnose
    from raydebug.diagnose.scan import Kept

    kept = Kept()
    for word in given or ["last"]:
        for source, file in open_all(word, name, kept):
            read_into(kept, source, file)
    if not kept.read_bytes:
        raise RaydebugError(
            "there is nothing to read", code="diagnose.empty", exit_code=Exit.USAGE,
            cause="the logs are empty", fix="give the logs of the run: raydebug diagnose FILE...",
        )  # fmt: skip
    answer = diagnose(kept.lines)
    if as_json:
        render.out_json(as_document(answer))
    else:
        _show(answer, kept)
    raise typer.Exit(Exit.OK if answer.status == NO_FAILURE else Exit.FAILED)


def open_all(word: str, name: str, kept: Kept) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the logs that a word of the command line names, each with its name.

    Of a job that a cluster still knows, the logs of all its processes are read into `kept`; of another run there is
    what its folder has: the driver's.

    Args:
        word: a file, a folder, `-`, a run or a job.
        name: of the cluster that may know the job.
        kept: receives the lines of a job.

    Raises:
        RaydebugError: there is no such file, run or job.
    """
    from raydebug.diagnose.scan import open_bytes
    from raydebug.jobs.run_folder import load_run

    path = Path(word)
    if word == STDIN:
        yield "standard input", sys.stdin.buffer
    elif path.is_dir():
        for file in sorted(one for one in path.rglob("*") if one.is_file() and one.suffix in LOGS):
            yield str(file), open_bytes(file)
    elif path.exists():
        yield word, open_bytes(path)
    elif path.suffix in LOGS or "/" in word:
        raise RaydebugError(
            "there is no such log", code="diagnose.no-file", exit_code=Exit.USAGE,
            cause=f"{word} is not there", fix="give a file, a folder, or a run of `raydebug report --list`",
        )  # fmt: skip
    else:
        run = load_run(word)
        if not _read_job(str(run["id"]), name, kept):
            log = Path(run["folder"]) / "job.log"
            yield str(log), open_bytes(log) if log.exists() else io.BytesIO()


def _read_job(job: str, name: str, kept: Kept) -> bool:
    """Read the logs of a job's processes; return whether the cluster knows the job."""
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.kinds import find_running
    from raydebug.diagnose.job import read_job

    try:
        cluster = find_running(name)
        if cluster is not None:
            read_job(Dashboard(cluster), job, kept)
    except RaydebugError:
        return False
    return cluster is not None


def read_into(kept: Kept, source: str, file: IO[bytes]) -> None:
    """Read a log into `kept`.

    Raises:
        RaydebugError: it cannot be read.
    """
    from raydebug.diagnose.rules import marks, prefilter
    from raydebug.diagnose.scan import read_log

    try:
        with file:
            read_log(file, source, prefilter(), kept, marks())
    except (OSError, EOFError) as error:
        raise RaydebugError(
            "a log cannot be read", cause=f"{source}: {error}", fix="give a log that this account may read",
            code="diagnose.unreadable", exit_code=Exit.USAGE,
        ) from error  # fmt: skip


def as_document(answer: Answer) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "version": 1,
        "status": answer.status,
        "diagnoses": [
            {
                "class": one.name,
                "confidence": one.confidence,
                "title": one.title,
                "cause": one.cause,
                "fix": one.fix,
                "command": None,
                "evidence": [{"source": at.source, "line": at.number, "text": at.text} for at in one.evidence],
                "effects": one.effects,
                "process": {"name": one.process},
            }
            for one in answer.diagnoses
        ],
    }


def _show(answer: Answer, kept: Kept) -> None:
    if not answer.diagnoses:
        words = "no failure found" if answer.status == "no-failure" else "it failed, and no rule explains it"
        render.out(f"{words} in {kept.read_lines} lines")
        return
    first = answer.diagnoses[0]
    render.out(render.visible(f"{first.title}  [{first.name}, {first.confidence}]"))
    for at in first.evidence:
        render.out(render.visible(f"  {at.source}:{at.number}: {at.text.strip()[:SHOWN_CHARS]}"))
    render.out(render.visible(f"cause: {first.cause}"))
    if first.fix:
        render.out(render.visible(f"fix: {first.fix}"))
    for other in answer.diagnoses[1:4]:
        at = other.evidence[0]
        render.out(render.visible(f"also: {other.title}  [{other.name}] {at.source}:{at.number}"))
