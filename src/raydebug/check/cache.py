"""Cache of stages that passed: a stage is skipped while none of its inputs has changed.

Inputs are the command, the variables, the version of raydebug, and each file that the stage read, folders of installed
packages included. Small files are compared by content, large ones by size and modification time. A failed stage is
never cached, nor is stage `env`: disks fill and ports get taken without a file changing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import raydebug
from raydebug.check.target import Target
from raydebug.cluster.runner import NodeRunner
from raydebug.findings import Finding
from raydebug.settings.files import atomic_write, read_json, state_dir

KEPT_AT_MOST = 200
RECORD_BYTES_MAX = 1024 * 1024
HASHED_BYTES_MAX = 1024 * 1024
# Variables of terminals and shells: they differ between windows and do not affect a training.
OF_A_TERMINAL = (
    *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLORTERM", "COLUMNS", "LINES", "SSH_", "XDG_SESSION", "WINDOW"),
    *("DISPLAY", "PS1", "TMUX", "STY", "LS_COLORS", "VSCODE_", "DBUS_", "GPG_TTY", "HIST", "PYTEST_"),
)


@dataclass(frozen=True)
class Record:
    """A stage that passed: when (Unix time), in how many seconds, and the files that it read: path -> fingerprint."""

    at: float
    seconds: float
    findings: list[Finding]
    files: Mapping[str, str]


class Cache:
    """Stages that passed, one file each in raydebug's state folder.

    Args:
        folder: None for raydebug's own.
        fresh: load nothing, but store.
    """

    def __init__(self, folder: Path | None = None, *, fresh: bool = False) -> None:
        self._folder = folder or state_dir() / "checks"
        self._fresh = fresh

    def load(self, target: Target, stage: str) -> Record | None:
        """Return the record of a stage of this target, or None if there is none or an input has changed."""
        if self._fresh or isinstance(target.runner, NodeRunner):  # its files are not this machine's
            return None
        try:
            stored = read_json(self._file(target, stage), bytes_max=RECORD_BYTES_MAX, what="a record of a check")
            record = Record(
                stored["at"], stored["seconds"], [Finding(**row) for row in stored["findings"]], stored["files"]
            )
        except (OSError, ValueError, TypeError, KeyError, AssertionError):
            return None
        unchanged = all(fingerprint(target.runner.here(name)) == mark for name, mark in record.files.items())
        return record if unchanged else None

    def store(self, target: Target, stage: str, seconds: float, findings: list[Finding], read: Iterable[str]) -> None:
        """Store a stage that passed; if the disk is full, nothing is stored."""
        if isinstance(target.runner, NodeRunner):
            return
        files = {name: fingerprint(target.runner.here(name)) for name in sorted(set(read))}
        rows = [asdict(finding) for finding in findings]
        record = {"at": time.time(), "seconds": seconds, "findings": rows, "files": files}
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic_write(self._file(target, stage), json.dumps(record))
            records = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in records[KEPT_AT_MOST:]:
                path.unlink(missing_ok=True)

    def _file(self, target: Target, stage: str) -> Path:
        return self._folder / f"{stage}-{key_of(target, stage)[:32]}.json"


def key_of(target: Target, stage: str) -> str:
    """Return the digest of every input of a stage except files."""
    cluster = target.cluster
    variables = {k: v for k, v in (target.environ or {}).items() if not k.startswith(OF_A_TERMINAL)}
    parts: list[Any] = [
        stage,
        raydebug.__version__,
        list(target.command),
        target.profile,
        target.elsewhere,
        target.copies,
        str(target.folder),
        sorted(variables.items()),
        [cluster.id, cluster.python, cluster.gpus] if cluster else [],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def fingerprint(path: Path) -> str:
    """Return a fingerprint of a file, or of a folder's direct entries; empty if the path does not exist."""
    try:
        found = path.stat()
        if path.is_dir():
            marks = [f"{entry.name} {_mark(entry.stat())}" for entry in sorted(path.iterdir())]
            return f"folder {hashlib.sha256(chr(10).join(marks).encode()).hexdigest()}"
        if found.st_size <= HASHED_BYTES_MAX:
            return f"bytes {hashlib.sha256(path.read_bytes()).hexdigest()}"
        return _mark(found)
    except OSError:
        return ""


def _mark(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns}"
