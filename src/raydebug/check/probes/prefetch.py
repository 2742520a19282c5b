"""Read a training's model and data into the page cache of the machine that will run it. Linux."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from raydebug.check.probes import Facts
from raydebug.check.probes.plan import compose
from raydebug.trainers.checks import FilesRead
from raydebug.trainers.hub import model_folder

# Of a model, in the order in which they are needed; of several formats of its weights, those that transformers and vLLM
# load come first.
SMALL = ("*.json", "*.model", "*.txt", "*.jinja", "*.py")
WEIGHTS = (("*.safetensors",), ("pytorch_model*.bin", "*.pt", "*.pth"))
READ_BYTES = 128 * 1024  # fits into a CPU cache: with 8 MiB each byte goes to memory once more
SHARE_OF_MEMORY = 0.5  # of the available memory: the training needs the rest


def gather(request: Facts) -> Facts:
    """Return the files that the command will read, with their bytes and those read now, and how long that took."""
    plan = compose(request)
    started = time.monotonic()
    files = read_ahead(files_of(plan.checks.files_read(plan.config)), room_bytes())
    return {"files": files, "seconds": time.monotonic() - started}


def files_of(read: FilesRead) -> list[Path]:
    """Return the existing files that a training reads, models first, each once."""
    folders = [folder for model in read.models if (folder := model_folder(model)) is not None]
    files = [file for folder in folders for file in _model_files(folder)] + [Path(p).expanduser() for p in read.data]
    return list(dict.fromkeys(file.resolve() for file in files if file.is_file()))


def _model_files(folder: Path) -> Iterator[Path]:
    for patterns in (SMALL, *WEIGHTS):
        files = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
        yield from files
        if files and patterns in WEIGHTS:
            return


def room_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes may be read: half of the available memory of the machine and of this container."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    with suppress(OSError, ValueError):  # no cgroup of version 2, or `max`
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, limit - used)
    return max(0, int(available * SHARE_OF_MEMORY))


def read_ahead(paths: Iterable[Path], room: int) -> list[Facts]:
    """Read files in their order; one for which there is no room is left out, and a later one may still fit."""
    rows = []
    for path in paths:
        size = path.stat().st_size
        fits = size <= room
        if fits:
            _read(path)
            room -= size
        rows.append({"path": str(path), "size_bytes": size, "read_bytes": size if fits else 0})
    return rows


def _read(path: Path) -> None:
    buffer = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        # Source: posix_fadvise(2): SEQUENTIAL doubles read-ahead.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass
