"""The user that containers run as: never root, and never another account of this machine by accident.

A host user with that uid may read the containers' files through /proc, the token included, and debug their processes.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
from collections.abc import Callable
from pathlib import Path

from raydebug.errors import Exit, RaydebugError

# No distribution and no program assigns these. Source: https://systemd.io/UIDS-GIDS (table "Summary").
UNUSED_IDS = range(60706, 61184)


def choose_user(name: str, project: Path) -> tuple[int, int]:
    """Return the uid and gid for the containers of a cluster.

    A user's containers run as that user. Root's run as the owner of the project, or, where that is root too, as an id
    that no account on this machine has. The same name gets the same unused id again: its caches stay writable.

    Raises:
        RaydebugError: root's project belongs to root, and every id of the range is taken (exit 3).
    """
    caller = (os.getuid(), os.getgid())
    if caller[0]:
        return caller
    owner = project.stat()
    if owner.st_uid:
        return owner.st_uid, owner.st_gid or owner.st_uid
    running = ids_of_processes()
    unused = first_unused(name, lambda number: number in running or has_account(number))
    return unused, unused


def first_unused(name: str, is_taken: Callable[[int], bool]) -> int:
    """Return the first free id of the range, from a place on that depends on the name.

    Raises:
        RaydebugError: none is free (exit 3).
    """
    start = int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(UNUSED_IDS)
    for step in range(len(UNUSED_IDS)):
        candidate = UNUSED_IDS[(start + step) % len(UNUSED_IDS)]
        if not is_taken(candidate):
            return candidate
    raise RaydebugError(
        "there is no unused user id for the containers",
        cause=f"accounts or processes of this machine have all of {UNUSED_IDS[0]} to {UNUSED_IDS[-1]}",
        fix="give the project's folder to a user of its own: `chown -R USER .`; the containers run as its owner then",
        code="user.none-unused",
        exit_code=Exit.TAKEN,
    )


def has_account(number: int) -> bool:
    """Return whether a user or a group of this machine has this id, in any source of its NSS."""
    for look_up in (pwd.getpwuid, grp.getgrgid):
        try:
            look_up(number)
        except KeyError:
            continue
        return True
    return False


def ids_of_processes() -> set[int]:
    """Return every uid that a process of this machine has, those of other containers included."""
    import psutil

    return {uid for process in psutil.process_iter(["uids"]) for uid in process.info["uids"] or ()}
