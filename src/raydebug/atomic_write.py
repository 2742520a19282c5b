"""Write a file whole or not at all: into a new file beside it, which then takes its name."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def atomic_write(path: Path, text: str, *, mode: int | None = 0o600) -> None:
    """Write a text file; a reader finds the earlier contents or the new ones, and never a part of either.

    Args:
        path: the file; its folder exists. The name of a link is replaced, and not the file that it points to.
        text: its new contents, written as UTF-8; a lone surrogate is written as its escape.
        mode: permissions of the file; None for those that the user's umask gives a new file.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    import tempfile  # 10 ms, and most commands write nothing

    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    fresh = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
        if mode != 0o600:
            fresh.chmod(_usual_mode() if mode is None else mode)
        fresh.replace(path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def _usual_mode() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask
