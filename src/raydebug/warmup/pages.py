"""The page cache: how much of a file is in it, and reading the rest into it at the disk's own rate. Linux.

Source: mincore(2) tells residency page by page of a mapping; posix_fadvise(2) SEQUENTIAL doubles read-ahead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

READ_BYTES = 128 * 1024  # stays in a processor's own cache: with 8 MiB each byte goes to memory once more
LOOK_BYTES = 2**30  # of a mapping at a time: mincore needs a byte for each page
SHARE_OF_MEMORY = 0.5  # of what is available: the training needs the rest
_IS_RESIDENT = bytes(byte & 1 for byte in range(256))  # mincore: the other bits are undefined
_NO_LIMIT = 2**60  # cgroups without a limit say a number near 2**63


@dataclass(frozen=True)
class Warmed:
    """What became of one file.

    Args:
        path: the file.
        size_bytes: of the file.
        there_bytes: that were in the page cache before.
        read_bytes: that were read now.
    """

    path: str
    size_bytes: int
    there_bytes: int
    read_bytes: int = 0


def resident_bytes(path: Path) -> int:
    """Return how many bytes of a file are in the page cache.

    Raises:
        OSError: it cannot be opened or mapped.
    """
    size = path.stat().st_size
    if size == 0:
        return 0
    found = 0
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        for start in range(0, size, LOOK_BYTES):
            length = min(LOOK_BYTES, size - start)
            # A private, writable mapping, for its address can be taken; nothing is read or written through it.
            with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=start) as mapped:
                pages = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
                view = (ctypes.c_char * length).from_buffer(mapped)
                failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(length), pages)
                del view  # the mapping cannot be closed while its address is held
                if failed:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
            found += min(length, bytes(pages).translate(_IS_RESIDENT).count(1) * mmap.PAGESIZE)
    return found


def read_into_cache(path: Path, on_read: Callable[[int], None] = lambda count: None) -> int:
    """Read a file from end to end, and return how many bytes that were.

    Raises:
        OSError: it cannot be read.
    """
    buffer = bytearray(READ_BYTES)
    total = 0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(buffer):
            total += count
            on_read(count)
    return total


def room_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how much may be read ahead: half of what is available, of the machine and of this container."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and limit < _NO_LIMIT:
        available = min(available, limit - (used or 0))
    return max(0, int(available * SHARE_OF_MEMORY))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no cgroup of version 2, or `max`
        return None


def warm(paths: list[Path], room: int, on_read: Callable[[int], None] = lambda count: None) -> list[Warmed]:
    """Read files into the page cache, in their order, as long as there is room; what is there already is not read.

    Args:
        paths: the files, what is needed first first.
        room: bytes that may be taken in all.
        on_read: told the bytes of each piece that was read.
    """
    done = []
    for path in paths:
        size, there = path.stat().st_size, resident_bytes(path)
        missing = size - there
        read = 0
        if 0 < missing <= room:
            read_into_cache(path, on_read)
            read = missing
            room -= missing
        done.append(Warmed(str(path), size, there, read))
    return done
