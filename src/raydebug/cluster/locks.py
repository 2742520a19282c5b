"""The locks of clusters, by name: who brings one up, and who uses one."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from typing import BinaryIO

from raydebug import render
from raydebug.cluster.state import check_name, clusters_dir, writing
from raydebug.errors import TakenError, UsageError
from raydebug.settings.files import open_private


@contextlib.contextmanager
def only_one(name: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a cluster's name while it is brought up; the kernel frees it when its holder dies.

    Raises:
        RaydebugError: another `up` of this name is running, and this one shall not wait for it.
    """
    with open_lock(f"{check_name(name)}.lock") as file:
        try:
            if wait:
                _wait_for(file, fcntl.LOCK_EX, f"another `raydebug` starts cluster '{name}': waiting for it")
            else:
                flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TakenError(
                f"another `raydebug up` of cluster '{name}' is at work",
                cause=f"it holds the lock {file.name}",
                fix="wait for it, or choose another name with --name",
                code="cluster.starting",
            ) from error
        yield


class Use:
    """The lock of those that use a cluster, by its name: a cluster that a `run` owns ends with the last of them.

    Each `run` holds it shared. The last one, or the supervisor, holds it alone while it ends the cluster. The kernel
    frees the lock of a process that was killed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._file = open_lock(f"{check_name(name)}.use")

    def __enter__(self) -> Use:
        """Begin to use the cluster of this name; wait while one is being ended."""
        _wait_for(self._file, fcntl.LOCK_SH, f"cluster '{self._name}' is being ended: waiting for it")
        return self

    def __exit__(self, *_: object) -> None:
        """Use it no longer."""
        self._file.close()

    def is_last(self) -> bool:
        """Return whether nobody else uses the cluster, and hold the lock alone then; else it is given up."""
        try:
            flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give_up(self) -> None:
        """Let others hold the lock."""
        flock(self._file, fcntl.LOCK_UN)


def open_lock(name: str) -> BinaryIO:
    """Open the file of a lock; it is never removed, so that all who lock it have the same one."""
    path = clusters_dir(make=True) / name
    with writing(path):
        return open_private(path)


def flock(file: BinaryIO, kind: int) -> None:
    """Take or free a lock.

    Raises:
        BlockingIOError: another has it.
        UsageError: the file system has no locks, as Lustre's without `-o flock`.
    """
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        raise
    except OSError as error:
        raise UsageError(
            "raydebug cannot lock the files of its state", cause=f"{file.name}: {error.strerror or error}",
            fix="name a folder on a file system with locks, such as a local disk: XDG_STATE_HOME=DIR",
            code="state.no-locks",
        ) from error  # fmt: skip


def _wait_for(file: BinaryIO, kind: int, why: str) -> None:
    """Take a lock; where that has to wait, say why."""
    try:
        flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        render.say(why)
        flock(file, kind)
