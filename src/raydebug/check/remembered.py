"""What has passed before: a stage is not checked again while nothing that it looked at has changed.

What it depends on: the command, the variables, this raydebug, and each file that it read, the folders of installed
packages among them. Small files count by their bytes, large ones by size and time of change. What failed is never
remembered, and stage `env` is not either: disks fill and ports are taken without any file changing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import raydebug
from raydebug.check.finding import Finding
from raydebug.check.subject import Subject
from raydebug.cluster.place import WORKSPACE
from raydebug.settings.paths import state_dir

KEPT_AT_MOST = 200
RECORD_BYTES_MAX = 1024 * 1024
HASHED_BYTES_MAX = 1024 * 1024
# Variables of terminals and shells; they change with each window and mean nothing to a training.
OF_A_TERMINAL = (
    *(
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "TERM",
        "COLORTERM",
        "COLUMNS",
        "LINES",
        "SSH_",
        "XDG_SESSION",
        "WINDOW",
        "DISPLAY",
    ),
    *("PS1", "TMUX", "STY", "LS_COLORS", "VSCODE_", "DBUS_", "GPG_TTY", "HIST", "PYTEST_"),
)


@dataclass(frozen=True)
class Record:
    """A stage that passed.

    Args:
        at: when, in seconds since 1970.
        seconds: how long it took.
        findings: warnings and notes that it had.
        files: what it read: path -> how that was.
    """

    at: float
    seconds: float
    findings: list[Finding]
    files: Mapping[str, str]

    def age(self) -> str:
        """Return how long ago it was, in words."""
        seconds = max(0, int(time.time() - self.at))
        for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
            if seconds >= length:
                return f"{seconds // length} {unit}"
        return f"{seconds} s"


class Memory:
    """The records of stages that passed, one file each in raydebug's state folder.

    Args:
        folder: where they are; None for raydebug's own.
        fresh: recall nothing, but remember.
    """

    def __init__(self, folder: Path | None = None, *, fresh: bool = False) -> None:
        self._folder = folder or state_dir() / "checks"
        self._fresh = fresh

    def recall(self, subject: Subject, stage: str) -> Record | None:
        """Return the record of a stage of this very subject; None where there is none, or a file has changed."""
        if self._fresh:
            return None
        try:
            path = self._file(subject, stage)
            if path.stat().st_size > RECORD_BYTES_MAX:
                return None
            said = json.loads(path.read_text(encoding="utf-8"))
            record = Record(said["at"], said["seconds"], [Finding(**one) for one in said["findings"]], said["files"])
        except (OSError, ValueError, TypeError, KeyError, AssertionError):
            return None
        unchanged = all(fingerprint(here(subject, name)) == mark for name, mark in record.files.items())
        return record if unchanged else None

    def remember(
        self, subject: Subject, stage: str, seconds: float, findings: list[Finding], read: Iterable[str]
    ) -> None:
        """Keep that a stage passed. A disk that is full is no reason to fail: nothing is kept then."""
        files = {name: fingerprint(here(subject, name)) for name in sorted(set(read))}
        said = {"at": time.time(), "seconds": seconds, "findings": [f.as_record() for f in findings], "files": files}
        path = self._file(subject, stage)
        fresh = path.with_suffix(f".{os.getpid()}.new")
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.write_text(json.dumps(said), encoding="utf-8")
            fresh.replace(path)
            self._forget_old()

    def _forget_old(self) -> None:
        records = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in records[KEPT_AT_MOST:]:
            path.unlink(missing_ok=True)

    def _file(self, subject: Subject, stage: str) -> Path:
        return self._folder / f"{stage}-{key_of(subject, stage)[:32]}.json"


def here(subject: Subject, path: str) -> Path:
    """Return where a file of the cluster is on this machine: containers see the project as /workspace."""
    cluster = subject.cluster
    if cluster is not None and cluster.kind == "compose" and Path(path).is_relative_to(WORKSPACE):
        return Path(cluster.project) / Path(path).relative_to(WORKSPACE)
    return Path(path)


def key_of(subject: Subject, stage: str) -> str:
    """Return the digest of all that a stage depends on besides the files that it reads."""
    cluster = subject.cluster
    variables = {k: v for k, v in (subject.environ or {}).items() if not k.startswith(OF_A_TERMINAL)}
    parts: list[Any] = [
        stage,
        raydebug.__version__,
        list(subject.command),
        subject.profile,
        str(subject.folder),
        sorted(variables.items()),
        [cluster.id, cluster.python, cluster.gpus] if cluster else [],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def fingerprint(path: Path) -> str:
    """Return how a file is, as text; of a folder, how what lies directly in it is; of nothing: empty."""
    try:
        found = path.stat()
        if path.is_dir():
            marks = [f"{one.name} {_mark(one.stat())}" for one in sorted(path.iterdir())]
            return f"folder {hashlib.sha256(chr(10).join(marks).encode()).hexdigest()}"
        if found.st_size <= HASHED_BYTES_MAX:
            return f"bytes {hashlib.sha256(path.read_bytes()).hexdigest()}"
        return _mark(found)
    except OSError:
        return ""


def _mark(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns}"
