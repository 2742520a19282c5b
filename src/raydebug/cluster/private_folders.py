"""The folders of a cluster are private: no other user of the host can read or replace them, with any umask.

Ray makes its temp dir and session folders 0777 without the sticky bit (ray 2.60.0 _common/utils.py
try_to_create_directory): another user could replace the code of a job. Inside a private folder that does no harm.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.files import is_strangers

OTHERS = "run raydebug as uid {}, or with another folder for what it keeps: XDG_STATE_HOME=DIR"


def make_temporary(most_bytes: int) -> Path:
    """Return a new private folder with an unpredictable name, in TMPDIR, or in /tmp where its path would be too long.

    Raises:
        RaydebugError: another user could replace a folder made there.
    """
    import tempfile  # with `random`; most commands only read a record

    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base / "rd-12345678")) > most_bytes:
        base = Path("/tmp")  # noqa: S108 - mkdtemp makes a private folder in it
    _check_ancestors(base / "rd-")
    return Path(tempfile.mkdtemp(prefix="rd-", dir=base))


def make_private(path: Path) -> None:
    """Make a folder, and every missing folder above it, private; one that exists is made private.

    Raises:
        OSError: it cannot be made.
        RaydebugError: it is a link or another user's, or another user could replace it.
    """
    for folder in [*reversed(path.parents), path]:
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode) and found.st_mode & 0o077:
        path.chmod(0o700)
    check_private(path)


def check_private(path: Path, *, is_file: bool = False) -> None:
    """Check that a path is our folder, or file, no link, closed to other users, and that no other user can replace it.

    Raises:
        RaydebugError: one of these does not hold.
    """
    try:
        found = path.lstat()
    except OSError as error:
        raise _refuse(path, f"{error.strerror}", "take the cluster down and start it again") from error
    if stat.S_ISLNK(found.st_mode):
        raise _refuse(path, f"it is a link to {path.readlink()}", f"remove the link {path}")
    if not (stat.S_ISREG if is_file else stat.S_ISDIR)(found.st_mode):
        raise _refuse(path, f"it is not a {'regular file' if is_file else 'folder'}", f"remove {path}")
    if found.st_uid != os.geteuid():
        raise _refuse(path, f"it belongs to uid {found.st_uid}, not to {os.geteuid()}", OTHERS.format(found.st_uid))
    if found.st_mode & 0o077:
        mode = "0600" if is_file else "0700"
        raise _refuse(path, f"its mode is {found.st_mode & 0o7777:04o}, not {mode}", f"chmod {mode[1:]} {path}")
    _check_ancestors(path)


def remove_private(path: Path) -> None:
    """Remove a folder with its contents; a link, or another user's folder in its place, is left alone."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)


def _check_ancestors(path: Path) -> None:
    """Refuse a path with a folder above it in which another user can rename what is not theirs."""
    for folder in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):  # a link on the way has two
        found = folder.stat()
        mode = f"mode {found.st_mode & 0o7777:04o}, no sticky bit"
        who, fix = "", f"chmod go-w {folder}, or "
        if is_strangers(found.st_uid):
            who, fix, mode = f"uid {found.st_uid}", "", "it is that user's"
        elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            who = "every user"
        elif found.st_mode & (stat.S_IWGRP | stat.S_ISVTX) == stat.S_IWGRP and not _is_own_group(found.st_gid):
            who = f"the group {found.st_gid}"
        if who:
            cause = f"{who} may replace what is in {folder} ({mode})"
            raise _refuse(path, cause, f"{fix}use another folder (TMPDIR, XDG_STATE_HOME, --folder)")


def _is_own_group(gid: int) -> bool:
    """Return whether a group is root's, or has this user's name and nobody else (as Debian and Red Hat make them)."""
    import grp  # rarely needed
    import pwd

    try:
        user, group = pwd.getpwuid(0 if gid == 0 else os.geteuid()), grp.getgrgid(gid)
    except KeyError:  # a user of a container that no file names
        return gid == 0
    return user.pw_gid == gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


def _refuse(path: Path, cause: str, fix: str) -> RaydebugError:
    return UsageError(f"{path} is not private to you", cause=cause, fix=fix, code="state.not-private")
