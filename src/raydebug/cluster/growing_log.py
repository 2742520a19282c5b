"""A log file that another program writes and rotates, read as it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class GrowingLog:
    """A log file, read from its beginning, with the rotated ones before it. It may appear later.

    Rotation renames it to `NAME.1` and makes a new one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._earlier = sorted(path.parent.glob(f"{path.name}.*"), reverse=True)
        self._file: BinaryIO | None = None

    def read(self, *, to_end: bool) -> Iterator[str]:
        """Yield the lines since the last call; to the end: also a last line without an end."""
        while self._earlier:
            yield from self._earlier.pop(0).read_text(encoding="utf-8", errors="replace").splitlines()
        while self._file is not None or self._path.is_file():
            self._file = self._file or self._path.open("rb")
            is_rotated = self._is_rotated(self._file)  # asked first: nothing is written after it
            yield from self._read_lines(self._file, to_end=to_end or is_rotated)
            if not is_rotated:
                return
            self._file.close()
            self._file = None

    def _read_lines(self, file: BinaryIO, *, to_end: bool) -> Iterator[str]:
        while line := file.readline():
            if not line.endswith(b"\n") and not to_end:
                file.seek(-len(line), os.SEEK_CUR)
                return
            yield line.decode(errors="replace").rstrip("\r\n")

    def _is_rotated(self, file: BinaryIO) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(file.fileno()).st_ino
        except FileNotFoundError:  # between the two steps, or the cluster's folder is gone
            return False
