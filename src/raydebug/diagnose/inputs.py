"""The logs to read: files, folders, standard input, the folder of a run, the processes of a job."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from raydebug.diagnose.formats import CUT_OFF, decode, open_log
from raydebug.diagnose.read import Line
from raydebug.diagnose.rules import prefilter
from raydebug.diagnose.scan import Kept, Stop, never, read_log
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol.snapshot import SUFFIX
from raydebug.runs.folder import DOCUMENT, LOG, STACKS, load_run

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard

LOGS = (".log", ".out", ".err", ".error", ".stdout", ".stderr", ".txt", ".jsonl", ".ndjson", ".old", "")
STDIN = "-"
LIMIT_S = 600.0  # of all reading and judging; 10 GB take two minutes
NAMED = 5  # of the files that are left out
# What is behind the kind of a log: its number or date where logs are rotated, and how it is compressed.
_ROTATED = re.compile(r"(?:[.-](?:\d{1,4}|\d{4}-?\d\d-?\d\d(?:[-_T]\d+)?))?(?:\.(?:gz|xz|zst|bz2))?$")
_OUTPUT_OF_JOB = re.compile(r"\.[eo]\d+$")  # PBS, Grid Engine
_NEWEST = "session_latest"  # ray 2.60: a link to the newest session of its folder
_OWN = (DOCUMENT, STACKS, "report.html")  # of a run's folder: read elsewhere

Log: TypeAlias = tuple[str, BufferedIOBase]  # its name for messages, and the open file


def until(limit_s: float, is_cancelled: Callable[[], bool] = lambda: False) -> Stop:
    """Return what says why reading and judging stop: after limit_s seconds, or when nobody waits for the answer."""
    end = time.monotonic() + limit_s
    late = f"the limit of {limit_s:.0f} s was reached: what came after it was not read or not judged"
    return lambda: "it was cancelled" if is_cancelled() else late if time.monotonic() > end else ""


def read_words(words: Sequence[str], cluster: str, stop: Stop = never, *, only_files: bool = False) -> Kept:
    """Read the logs that words of the command line name: files, folders, `-`, runs and jobs.

    Raises:
        RaydebugError: there is no such file, run or job, it is no log, or none can be read.
    """
    kept = Kept()
    return read_logs((log for word in words for log in _open(word, cluster, kept.notes, only_files)), kept, stop)


def _open(word: str, cluster: str, notes: list[str], only_files: bool) -> Iterator[Log]:
    """Yield the logs of a word; what is left out of a folder becomes a note."""
    path = Path(word)
    if word == STDIN and not only_files:
        yield "standard input", decode(sys.stdin.buffer, "standard input")
    elif path.is_dir():
        yield from _open_folder(path, notes)
    elif path.exists():
        yield word, open_log(path, pipes=not only_files)
    elif path.suffix in LOGS[:-1] or "/" in word:
        raise UsageError(
            "there is no such log", code="diagnose.no-file",
            cause=f"{word} is not there", fix="give a file, a folder, or a run of `raydebug report --list`",
        )  # fmt: skip
    else:
        yield from _open_run(word, cluster)


def open_job(dashboard: Dashboard, job: str) -> Iterator[Log]:
    """Yield the logs of all processes of a job; those of a node that has gone are left out.

    Raises:
        RaydebugError: the dashboard does not answer, or there is no such job.
    """
    from raydebug.jobs.logs import DRIVER, find_sources

    # The driver repeats the errors of its workers, without their ranks: it is last.
    for source in sorted(find_sources(dashboard, dashboard.job(job)), key=lambda source: source.role == DRIVER):
        try:
            text = dashboard.log_text(source.node_id, source.name)
        except RaydebugError:
            continue
        yield source.title, io.BytesIO(text.encode("utf-8", "replace"))


def read_text(text: str, source: str) -> list[Line]:
    """Return the lines of a text that are worth a look."""
    return read_logs([(source, io.BytesIO(text.encode("utf-8", "replace")))], Kept()).lines


def read_logs(logs: Iterable[Log], kept: Kept, stop: Stop = never) -> Kept:
    """Read logs to their ends, and return their lines that are worth a look.

    A log that cannot be read to its end, as an archive that is cut off, counts as far as it goes; a note names it.

    Raises:
        RaydebugError: a log cannot be opened, or none can be read.
    """
    fault, notes = "", list[str]()
    try:
        for source, file in logs:
            before = kept.read_lines
            with file:
                try:
                    read_log(file, source, prefilter(), kept, stop)
                except CUT_OFF as error:
                    fault = f"{source}: {error}"
                    lines = kept.read_lines - before
                    notes.append(f"{source} is cut off or damaged; its first {lines} lines were read: {error}")
            if stop():
                break
    except OSError as error:
        raise _unreadable(str(error)) from error
    if fault and not kept.read_lines:
        raise _unreadable(fault)
    kept.notes += notes
    if reason := stop():
        kept.notes.append(reason)
    if kept.cut:
        kept.notes.append(f"{len(kept.lines)} lines were worth a look, and more than are kept")
    return kept


def _unreadable(cause: str) -> RaydebugError:
    return UsageError(
        "a log cannot be read", cause=cause, fix="give a log that this account may read, and that is whole",
        code="diagnose.unreadable",
    )  # fmt: skip


def _open_folder(folder: Path, notes: list[str]) -> Iterator[Log]:
    """Yield the logs of a folder; what is left out becomes a note."""
    left_out: list[str] = []
    inside = Path(os.path.realpath(folder))
    for path in _files_of(folder, left_out):
        if path.name in _OWN or path.name.endswith(SUFFIX):
            continue
        if why := _no_log(path, inside):
            left_out.append(f"{path}: {why}")
            continue
        try:
            opened = open_log(path, pipes=False)
        except OSError as error:
            left_out.append(str(error) if error.errno is None else f"{path}: {error.strerror}")
            continue
        except RaydebugError as refusal:
            left_out.append(f"{path}: {refusal.cause}")
            continue
        yield str(path), opened
    if left_out:
        more = f", and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
        notes.append(f"left out, {len(left_out)}: {', '.join(left_out[:NAMED])}{more}")


def _files_of(folder: Path, left_out: list[str]) -> Iterator[Path]:
    """Yield the files below a folder, without hidden folders and, of Ray's folder, without older sessions."""

    def cannot_list(error: OSError) -> None:
        left_out.append(f"{error.filename}: {error.strerror}")

    for at, folders, files in os.walk(folder, onerror=cannot_list):
        here = Path(at)
        skipped = [name for name in folders if name.startswith(".")]
        if (here / _NEWEST).is_symlink():
            newest = (here / _NEWEST).readlink().name
            skipped += [name for name in folders if name.startswith("session_") and name not in (_NEWEST, newest)]
        left_out += [f"{here / name} (a folder)" for name in skipped]
        folders[:] = sorted(set(folders) - set(skipped))
        yield from (here / name for name in sorted(files))


def _no_log(path: Path, folder: Path) -> str:
    """Return why a file of a folder is not read; empty if it is."""
    if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(folder):  # resolve raises at a loop
        return "a link out of the folder"
    name = _ROTATED.sub("", path.name)
    is_log = Path(name).suffix in LOGS or _OUTPUT_OF_JOB.search(path.name)
    return "" if is_log and not name.startswith(".") else "not named as a log"


def _open_run(word: str, cluster: str) -> Iterator[Log]:
    """Yield the logs of a run's processes while its cluster knows them, else the driver's log in the run's folder."""
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.find import choose_name
    from raydebug.cluster.kinds import find_running

    unknown, path = None, None
    try:
        run = load_run(word)
        job, path = run.id, run.folder / LOG
    except RaydebugError as error:  # a job that nobody has followed has no folder
        job, unknown = word, error
    has_any = False
    with contextlib.suppress(RaydebugError):
        running = find_running(choose_name(cluster))
        for log in open_job(Dashboard(running), job) if running is not None else ():
            has_any = True
            yield log
    if not has_any and unknown is not None:
        raise unknown
    if not has_any and path is not None:
        yield str(path), open_log(path, pipes=False) if path.exists() else io.BytesIO()
