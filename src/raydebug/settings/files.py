"""Files: the folders of raydebug, strict and bounded reading, and writing in one step.

Every file that raydebug leaves is written here. `atomic_write` writes where raydebug has chosen the place: it follows
no link, and writes into no folder of another user. `write_named` writes a file that the user has named. What somebody
else may have made is read by `read_bounded`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

# The list of what an image has, CycloneDX 1.6; env/sbom.py writes it where the image is built.
IMAGE_SBOM = Path("/opt/raydebug/sbom.cdx.json")
# What no editor shows: each of them makes a line mean another thing than it says.
HIDDEN = ((b"\xef\xbb\xbf", "a byte order mark"), (b"\0", "a NUL byte"), (b"\r", "a CR line end"))


def state_dir() -> Path:
    """Return the user's state folder for raydebug (XDG_STATE_HOME is obeyed); it may not exist yet."""
    from platformdirs import user_state_path

    return user_state_path("raydebug", appauthor=False)


def environment_dir() -> Path:
    """Return the folder with the environment as data (pins, profiles): in the wheel, or env/ of a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "env"
    return inside if inside.is_dir() else package.parent.parent / "env"


def compose_dir() -> Path:
    """Return the folder with docker-compose.yml: the wheel's package, or the root of a checkout."""
    package = Path(__file__).resolve().parent.parent
    return package if (package / "docker-compose.yml").is_file() else package.parent.parent


class NotPlainText(ValueError):
    """A file that is not what it should be.

    Args:
        line: where, counted from 1; None where it is not about a line.
    """

    def __init__(self, cause: str, line: int | None = None) -> None:
        super().__init__(cause if line is None else f"line {line}: {cause}")
        self.cause = cause
        self.line = line


def read_plain(path: Path, *, bytes_max: int, what: str) -> str:
    """Return the text of a file that holds something and nothing hidden.

    Args:
        path: the file.
        bytes_max: a larger file is not read.
        what: what the file is, for the error: `a file of pins`.

    Raises:
        NotPlainText: missing, no regular file, a loop of links, empty, too big, not UTF-8, or with something hidden.
    """
    raw = read_bounded(path, bytes_max=bytes_max, what=what)
    if not raw.strip():
        raise NotPlainText("it is empty", 1)
    for unwanted, name in HIDDEN:
        if (at := raw.find(unwanted)) >= 0:
            raise NotPlainText(f"it has {name}", line_of(raw, at))
    return decode(raw)


def read_bounded(path: Path, *, bytes_max: int, what: str) -> bytes:
    """Return the bytes of a regular file, unless there are too many.

    Raises:
        NotPlainText: missing, no regular file, a loop of links, or too big.
    """
    try:
        # Non-blocking: opening a FIFO would block.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise NotPlainText("Is a directory" if stat.S_ISDIR(about.st_mode) else "it is not a regular file")
            if about.st_size > bytes_max:
                raise NotPlainText(f"it has {about.st_size} bytes, more than the {bytes_max} that {what} may have")
            return file.read(bytes_max + 1)
    except OSError as error:  # missing, no right to read, a loop of links
        raise NotPlainText(error.strerror or str(error)) from error


def decode(raw: bytes) -> str:
    """Return bytes as text.

    Raises:
        NotPlainText: not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise NotPlainText(f"byte 0x{raw[error.start]:02x} is not UTF-8", line_of(raw, error.start)) from error


def line_of(raw: bytes, at: int) -> int:
    """Return the number of the line of a byte."""
    return raw.count(b"\n", 0, at) + 1


def read_json(path: Path, *, bytes_max: int, what: str) -> Any:
    """Return the JSON document of a regular file, unless it is too big.

    Raises:
        NotPlainText: missing, no regular file, a loop of links, too big, no JSON, or nested too deeply.
    """
    raw = read_bounded(path, bytes_max=bytes_max, what=what)
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise NotPlainText("it is nested too deeply") from error
    except ValueError as error:
        raise NotPlainText(str(error)) from error


def atomic_write(path: Path, text: str | bytes, *, mode: int | None = 0o600) -> None:
    """Write a file of ours; a reader finds the earlier contents or the new ones, and never a part of either.

    Args:
        path: the file; its folder exists. The name of a link is replaced, and not the file that it points to.
        text: its new contents; a text is written as UTF-8, a lone surrogate of it as its escape.
        mode: permissions of the file; None for those that the user's umask gives a new file.

    Raises:
        OSError: it cannot be written, or every user may write its folder, or the folder is another user's. Nothing is
            left behind.
    """
    require_own(path.parent)
    _replace(path, text, mode)


def write_named(path: Path, text: str | bytes, *, mode: int | None = 0o600) -> None:
    """Write a file that the user has named, in any folder; a device or a pipe is written to.

    A link stays where it is this user's or root's, and the file that it points to is replaced.

    Raises:
        OSError: it cannot be written, or is a link of another user. Nothing is left behind.
    """
    if path.is_symlink() and path.lstat().st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EACCES, "it is a link that another user has made")
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            file.write(_encoded(text))
    else:
        _replace(Path(os.path.realpath(path)), text, mode)


def open_private(path: Path, mode: str = "ab") -> BinaryIO:
    """Open a file of ours for writing, which only its owner can read with any umask; a link is refused.

    Raises:
        OSError: it cannot be opened, or is a link.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600)

    return open(path, mode, opener=opener)  # type: ignore[return-value]


def usual_mode() -> int:
    """Return the permissions that the user's umask gives a new file."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def require_own(folder: Path) -> None:
    """Refuse a folder in which another user may replace what is written.

    Members of its group may: they may write the sources of this user's project there, too.

    Raises:
        PermissionError: it is one.
    """
    status = folder.stat()
    if is_strangers(status.st_uid):
        raise PermissionError(errno.EACCES, f"its folder belongs to another user (uid {status.st_uid})")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(errno.EACCES, f"every user may write its folder (mode {mode:04o}, no sticky bit)")


def is_strangers(uid: int) -> bool:
    """Return whether a file's owner is another user than this one and root."""
    if uid in (0, os.geteuid()):
        return False
    # user_namespaces(7): in Apptainer and Podman the host's root has the uid of all who are unknown there.
    with contextlib.suppress(OSError):
        is_whole = Path("/proc/self/uid_map").read_text(encoding="ascii").split() == ["0", "0", str(2**32 - 1)]
        return is_whole or uid != int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    return True


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")


def _replace(path: Path, text: str | bytes, mode: int | None) -> None:
    import tempfile  # 10 ms, and most commands write nothing

    # A part of the name: that may be as long as a name can be. Mode 0600.
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_encoded(text))
            if mode != 0o600:  # not by its name, which may be a link by now where others may write the folder
                os.fchmod(handle, usual_mode() if mode is None else mode)
        fresh.replace(path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()
