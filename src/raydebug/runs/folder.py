"""Run folders: one per job or check in the user's state folder, with run.json and job.log, mode 0700."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import time
from pathlib import Path
from typing import Any

from raydebug import render
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol.snapshot import SUFFIX
from raydebug.runs.record import CHECK, Run, read_document
from raydebug.settings.files import atomic_write, open_private, read_json, state_dir

VERSION = 1
KEPT = 50  # of each kind; a new run removes the oldest
EMPTY_KEPT_S = 30 * 86_400
DOCUMENT, LOG, SNAPSHOTS, STACKS = "run.json", "job.log", "snapshots", "stacks.json"
SPANS, TASKS = "spans.jsonl", "tasks.json"
LAST = "last"
RECORD_BYTES_MAX = 256 * 2**20  # of run.json and stacks.json
UNFINISHED = ("running", "interrupted")  # statuses of records that are written anew when the job is followed again


def runs_dir() -> Path:
    """Return the folder that holds a folder per run."""
    return state_dir() / "runs"


class RunFolder:
    """The folder of one run.

    Args:
        run_id: the job's submission id.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, run_id: str) -> None:
        if (
            Path(run_id).name != run_id or run_id in ("", "..") or "\0" in run_id
        ):  # it comes from a dashboard, and becomes a path
            raise OSError(f"'{run_id[:80]}' is no name of a folder")
        self.path = runs_dir() / run_id
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def claimed(self) -> RunFolder | None:
        """Return this folder with an empty job.log, for the one process that records the run; None if it may not.

        Whoever follows a job reads its log from the beginning. So two processes do not record it at a time, and a run
        that is recorded to its end stays as it is.

        Raises:
            OSError: the log cannot be written.
        """
        with contextlib.suppress(RaydebugError):
            if read_run(self.path).status not in UNFINISHED:
                return None
        self._lock = open_private(self.path / LOG)  # a lock lasts as long as its file is open
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        except OSError:  # a file system without locks
            pass
        self._lock.truncate(0)
        return self

    def write(self, run: Run, *, steps: str | None = None) -> None:
        """Write run.json, whole or not at all.

        Args:
            run: what it has.
            steps: its steps, if they are JSON already.
        """
        document = {"version": VERSION, **run.as_document()}
        if steps is not None:
            del document["steps"]
        text = json.dumps(document, default=vars)
        atomic_write(self.path / DOCUMENT, text if steps is None else f'{text[:-1]}, "steps": {steps}}}')

    def add_snapshot(self, snapshot_id: str, file: bytes) -> Path:
        """Write the file of a snapshot, and return its path.

        Raises:
            OSError: it cannot be written.
        """
        path = self.path / SNAPSHOTS / f"{snapshot_id}{SUFFIX}"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        atomic_write(path, file)
        return path

    def add_log(self, text: str) -> None:
        """Append to job.log."""
        with open_private(self.path / LOG) as file:
            file.write(text.encode(errors="replace"))


def remove_oldest(kind: str) -> None:
    """Remove the oldest folders of a kind, `run` or `check`, beyond those that are kept, and old empty ones."""
    same = [folder for folder in _folders() if folder.name.startswith(f"{CHECK}-") == (kind == CHECK)]
    for folder in same[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        for folder in runs_dir().iterdir():  # of detached jobs that nobody has followed
            with contextlib.suppress(OSError):
                if folder.stat().st_mtime < time.time() - EMPTY_KEPT_S:
                    folder.rmdir()


def list_runs() -> list[Run]:
    """Return all runs that can be read, oldest first."""
    runs = []
    for folder in _folders():
        with contextlib.suppress(RaydebugError):
            runs.append(read_run(folder))
    return sorted(runs, key=lambda run: run.started or 0)


def find_folder(name: str = LAST, *, checks: bool = True) -> Path:
    """Return a run's folder.

    Args:
        name: its id, the beginning of it, a path to its folder, or `last`.
        checks: whether the last one may be a check.

    Raises:
        RaydebugError: there is no such run, or several begin so.
    """
    if "/" in name:
        return Path(name)
    folders = [folder for folder in _folders() if checks or not folder.name.startswith(f"{CHECK}-")]
    ids = [folder.name for folder in folders]
    same = folders[-1:] if name == LAST else [folder for folder in folders if folder.name.startswith(name)]
    same = [folder for folder in same if folder.name == name] or same
    if len(same) == 1:
        return same[0]
    none = f"there is no run '{name}'" if ids else "no run is recorded"
    raise UsageError(
        f"several runs begin with '{name}'" if same else none,
        cause=f"{runs_dir()} has {', '.join(ids[-5:])}" if ids else f"{runs_dir()} is empty",
        fix="`raydebug report --list` shows them" if ids else "record one: raydebug run -- COMMAND",
        code="run.unknown",
    )


def next_step(run_id: str, *pick: str) -> str:
    """Return the line that says what to type after a run that failed: a crash is opened, any other failure diagnosed.

    Args:
        run_id: its id; the last run needs none.
        pick: words that choose one of its crashes.
    """
    verb = "open" if any((runs_dir() / run_id / SNAPSHOTS).glob(f"*{SUFFIX}")) else "diagnose"
    named = [folder.name for folder in _folders()[-1:]] != [run_id]
    return f"next: {render.command('raydebug', verb, *([run_id] if named else []), *pick)}"


def load_run(name: str = LAST, *, checks: bool = True) -> Run:
    """Return the run of a name, as find_folder takes it.

    Raises:
        RaydebugError: there is no such run, several begin so, or its document cannot be read.
    """
    return read_run(find_folder(name, checks=checks))


def read_run(folder: Path) -> Run:
    """Return the run of a folder; its `document` has the folder, too.

    Raises:
        RaydebugError: its document cannot be read, or is of another version.
    """
    path = folder / DOCUMENT if folder.is_dir() else folder
    try:
        document: dict[str, Any] = read_json(path, bytes_max=RECORD_BYTES_MAX, what="a record")
        if document["version"] != VERSION:
            raise ValueError(f"it is of version {document['version']}, and this raydebug reads {VERSION}")
    except (ValueError, KeyError, TypeError) as error:  # NotPlainText is a ValueError
        raise UsageError(
            f"the record of run '{folder.name}' cannot be read",
            cause=f"{path}: {error}",
            fix="name another run: `raydebug report --list`",
            code="run.bad-record",
        ) from error
    return read_document({**document, "folder": str(path.parent)}, path.parent)


def _folders() -> list[Path]:
    """Return the run folders, by the last change of their record; a report written later makes none of them newer."""
    changed: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):  # there is no folder of runs, or it is another user's
        for path in runs_dir().glob(f"*/{DOCUMENT}"):
            with contextlib.suppress(OSError):  # another `run` has removed it meanwhile
                changed.append((path.stat().st_mtime, path.parent))
    return [folder for _, folder in sorted(changed)]
