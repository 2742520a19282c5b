"""The logs to read: files, folders, standard input, the folder of a run, the processes of a job."""

from __future__ import annotations

import contextlib
import io
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from raydebug import render
from raydebug.diagnose.rules import prefilter
from raydebug.diagnose.scan import Kept, open_bytes, read_log
from raydebug.errors import Exit, RaydebugError
from raydebug.protocol.snapshot import SUFFIX

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard

LOGS = (".log", ".out", ".err", ".txt", ".gz")
STDIN = "-"

Log: TypeAlias = tuple[str, IO[bytes]]  # its name for messages, and the open file


def open_logs(word: str, cluster: str) -> Iterator[Log]:
    """Yield the logs that a word of the command line names.

    Args:
        word: a file, a folder, `-`, a run or a job.
        cluster: name of the one that may know the job.

    Raises:
        OSError: a file cannot be opened; of a folder such files are left out, and named on stderr.
        RaydebugError: there is no such file, run or job.
    """
    path = Path(word)
    if word == STDIN:
        yield "standard input", sys.stdin.buffer
    elif path.is_dir():
        yield from _open_folder(path)
    elif path.exists():
        yield word, open_bytes(path)
    elif path.suffix in LOGS or "/" in word:
        raise RaydebugError(
            "there is no such log", code="diagnose.no-file", exit_code=Exit.USAGE,
            cause=f"{word} is not there", fix="give a file, a folder, or a run of `raydebug report --list`",
        )  # fmt: skip
    else:
        yield from _open_run(word, cluster)


def open_job(dashboard: Dashboard, job: str) -> Iterator[Log]:
    """Yield the logs of all processes of a job; those of a node that has gone are left out.

    Raises:
        RaydebugError: the dashboard does not answer, or there is no such job.
    """
    from raydebug.jobs.logs import find_sources

    for source in find_sources(dashboard, dashboard.job(job)):
        try:
            text = dashboard.log_text(source.node_id, source.name)
        except RaydebugError:
            continue
        yield source.title, io.BytesIO(text.encode("utf-8", "replace"))


def read_logs(logs: Iterable[Log]) -> Kept:
    """Read logs to their ends, and return their lines that are worth a look.

    Raises:
        RaydebugError: one of them cannot be read.
    """
    kept, source = Kept(), ""
    try:
        for source, file in logs:
            with file:
                read_log(file, source, prefilter(), kept)
    except (OSError, EOFError, zlib.error) as error:
        has_name = getattr(error, "filename", None) is not None
        raise RaydebugError(
            "a log cannot be read", cause=str(error) if has_name else f"{source}: {error}",
            fix="give a log that this account may read, and that is whole",
            code="diagnose.unreadable", exit_code=Exit.USAGE,
        ) from error  # fmt: skip
    return kept


def _open_folder(folder: Path) -> Iterator[Log]:
    for file in sorted(one for one in folder.rglob("*") if one.is_file() and one.suffix in LOGS):
        if file.name.endswith(SUFFIX):  # a snapshot is no log
            continue
        try:
            opened = open_bytes(file)
        except OSError as error:
            render.say(render.visible(f"left out: {error}", keep=""))
            continue
        yield str(file), opened


def _open_run(word: str, cluster: str) -> Iterator[Log]:
    """Yield the logs of a run's processes while its cluster knows them, else the driver's log in the run's folder."""
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.kinds import find_running
    from raydebug.jobs.run_folder import LOG, load_run

    unknown, log = None, None
    try:
        run = load_run(word)
        job, log = str(run["id"]), Path(run["folder"]) / LOG
    except RaydebugError as error:  # a job that nobody has followed has no folder
        job, unknown = word, error
    has_any = False
    with contextlib.suppress(RaydebugError):
        running = find_running(cluster)
        for one in open_job(Dashboard(running), job) if running is not None else ():
            has_any = True
            yield one
    if not has_any and unknown is not None:
        raise unknown
    if not has_any and log is not None:
        yield str(log), open_bytes(log) if log.exists() else io.BytesIO()
