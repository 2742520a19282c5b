"""Reading ahead: what is in the page cache is known, what is not is read, and never more than there is room for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydebug.warmup import pages
from raydebug.warmup.pages import resident_bytes, room_bytes, warm

MIB = 2**20


def cold_file(path: Path, size: int) -> Path:
    """Write a file, and ask the kernel to forget it."""
    path.write_bytes(os.urandom(size))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@pytest.fixture
def disk() -> Path:
    """A folder that is on a disk: a tmpfs is always in memory."""
    return Path(__file__).resolve().parent


@pytest.fixture
def shard(disk: Path):
    path = disk / f".warm-{os.getpid()}.bin"
    try:
        cold_file(path, 16 * MIB + 5)
        if resident_bytes(path):
            pytest.skip("the kernel keeps files of this folder in memory whatever it is asked")
        yield path
    finally:
        path.unlink(missing_ok=True)


def test_cold_then_warm(shard: Path) -> None:
    """A cold file is read once, whole; the second time nothing is to be done."""
    told: list[int] = []
    (first,) = warm([shard], room=10**9, on_read=told.append)
    assert (first.there_bytes, first.read_bytes, sum(told)) == (0, 16 * MIB + 5, 16 * MIB + 5)
    assert resident_bytes(shard) == 16 * MIB + 5
    (second,) = warm([shard], room=10**9, on_read=told.append)
    assert (second.there_bytes, second.read_bytes) == (16 * MIB + 5, 0)
    assert sum(told) == 16 * MIB + 5


def test_no_room(shard: Path) -> None:
    """What does not fit is left, and what comes after it may still fit."""
    small = cold_file(shard.with_suffix(".small"), 4096)
    try:
        left, fits = warm([shard, small], room=MIB)
    finally:
        small.unlink()
    assert left.read_bytes == 0
    assert fits.size_bytes == fits.there_bytes + fits.read_bytes


def test_empty_and_missing(tmp_path: Path) -> None:
    """An empty file needs nothing; a missing one is an error."""
    (tmp_path / "empty").write_bytes(b"")
    assert resident_bytes(tmp_path / "empty") == 0
    with pytest.raises(FileNotFoundError):
        warm([tmp_path / "none"], room=1)


@pytest.mark.parametrize(
    ("files", "room"),
    [
        ({}, 4 << 30),
        ({"memory.max": "max", "memory.current": "1"}, 4 << 30),
        ({"memory.max": str(6 << 30), "memory.current": str(4 << 30)}, 1 << 30),
        ({"memory.max": str(1 << 30), "memory.current": str(2 << 30)}, 0),
    ],
)
def test_room(tmp_path: Path, files: dict[str, str], room: int) -> None:
    """Half of what is available may be taken: of the machine, or of the container where that has less."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {8 << 20} kB\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert room_bytes(tmp_path / "meminfo", tmp_path) == room


def test_real_machine() -> None:
    """This machine has room, and less than it has memory."""
    assert 0 < room_bytes() < os.sysconf("SC_PHYS_PAGES") * pages.mmap.PAGESIZE
