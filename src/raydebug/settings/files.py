"""Files: the folders of raydebug, strict reading of files that people edit, and writing in one step."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import IO, Any

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


class NotPlainText(Exception):
    """A file that is not what it should be.

    Args:
        cause: what is wrong with it.
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
                raise NotPlainText("Is a directory" if stat.S_ISDIR(about.st_mode) else "it is no regular file")
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


def atomic_write(path: Path, text: str | bytes, *, mode: int | None = 0o600) -> None:
    """Write a file; a reader finds the earlier contents or the new ones, and never a part of either.

    Args:
        path: the file; its folder exists. The name of a link is replaced, and not the file that it points to.
        text: its new contents; a text is written as UTF-8, a lone surrogate of it as its escape.
        mode: permissions of the file; None for those that the user's umask gives a new file.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    import tempfile  # 10 ms, and most commands write nothing

    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace"))
        if mode != 0o600:
            fresh.chmod(_usual_mode() if mode is None else mode)
        fresh.replace(path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file to write; one that this makes is readable by its owner only, with any umask.

    Args:
        path: the file; its folder exists.
        mode: as of `open`.
    """
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def _usual_mode() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask
