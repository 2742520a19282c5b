"""Read a training's model and data into the page cache of the machine that will run it. Linux.

`python -m raydebug.prefetch REQUEST` runs in the cluster's Python, where the files are, and prints one line of JSON.
Source: mincore(2) reports the residency of each page of a mapping; posix_fadvise(2) SEQUENTIAL doubles read-ahead.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raydebug.errors import RaydebugError
from raydebug.trainers.config import CannotCompose
from raydebug.trainers.hub import model_folder
from raydebug.trainers.trainer import FilesRead

MARK = "raydebug-prefetch: "  # starts the line of the answer
# Where compiled code is kept between runs. Source: triton 3.6 knobs.py, torch 2.11 _inductor cache_dir_utils.py,
# vllm 0.24 envs.py, flashinfer 0.6 jit/env.py. A variable, its default, the folder below what they name.
CACHES = {
    "Triton": ("TRITON_CACHE_DIR", "~/.triton/cache", ""),
    "torch.compile": ("TORCHINDUCTOR_CACHE_DIR", None, ""),
    "vLLM": ("VLLM_CACHE_ROOT", "~/.cache/vllm", ""),
    "FlashInfer": ("FLASHINFER_WORKSPACE_BASE", "~", ".cache/flashinfer"),
}
# A checkpoint may hold several formats of the same weights: what transformers and vLLM load comes first.
WEIGHTS = (("*.safetensors",), ("pytorch_model*.bin", "*.pt", "*.pth"))
SMALL = ("*.json", "*.model", "*.txt", "*.jinja", "*.py")
READ_BYTES = 128 * 1024  # fits into a CPU cache: with 8 MiB each byte goes to memory once more
LOOK_BYTES = 2**30  # of a mapping at a time: mincore needs a byte for each page
SHARE_OF_MEMORY = 0.5  # of the available memory: the training needs the rest
_IS_RESIDENT = bytes(byte & 1 for byte in range(256))  # mincore: the other bits are undefined
_NO_LIMIT = 2**60  # cgroups without a limit say a number near 2**63


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.argv[1])
    print(MARK + json.dumps(answer(request)), flush=True)  # noqa: T201 - this is the answer


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the files that were read, the time, and the caches of compiled code; or the refusal of the command.

    Args:
        request: `command`, the argv; `profile`, applied to it first, or None.
    """
    from raydebug.check.probes.plan import compose

    try:
        plan = compose(request)
    except CannotCompose as refusal:
        return {"refused": refusal.message}
    except RaydebugError as refusal:  # a setting that the profile does not know
        return {"refused": refusal.what}
    files = files_of(plan.checks.files_read(plan.config))
    room = room_bytes()
    started = time.monotonic()
    done = prefetch(files, room)
    seconds = time.monotonic() - started
    return {"files": [asdict(one) for one in done], "seconds": seconds, "room_bytes": room, "caches": list(caches())}


def caches() -> Any:
    """Yield the caches of compiled code: name, folder, bytes, and whether the folder is there."""
    for name, (variable, default, below) in CACHES.items():
        said = os.environ.get(variable) or default
        if said is None:
            continue
        folder = Path(said).expanduser() / below
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
        yield {"name": name, "folder": str(folder), "bytes": size, "exists": folder.is_dir()}


def files_of(read: FilesRead) -> list[Path]:
    """Return the existing files that a training reads, models first, each once."""
    found: dict[Path, None] = {}
    for model in read.models:
        found.update(dict.fromkeys(_model_files(model)))
    for path in read.data:
        if Path(path).expanduser().is_file():
            found[Path(path).expanduser().resolve()] = None
    return list(found)


def _model_files(path: str) -> Iterator[Path]:
    folder = model_folder(path)
    if folder is None:
        return
    for pattern in SMALL:
        yield from (file.resolve() for file in sorted(folder.glob(pattern)) if file.is_file())
    for patterns in WEIGHTS:
        shards = sorted(file.resolve() for pattern in patterns for file in folder.glob(pattern) if file.is_file())
        if shards:
            yield from shards
            return


@dataclass(frozen=True)
class Prefetched:
    """The result for one file.

    Args:
        path: the file.
        size_bytes: its size.
        there_bytes: in the page cache before.
        read_bytes: read now.
    """

    path: str
    size_bytes: int
    there_bytes: int
    read_bytes: int = 0


def resident_bytes(path: Path) -> int:
    """Return the number of bytes of a file in the page cache.

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
            # A private, writable mapping, whose address can be taken; nothing is read or written through it.
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
    """Read a whole file and return the number of bytes.

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
    """Return how many bytes may be read: half of the available memory of the machine and of this container."""
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


def prefetch(paths: list[Path], room: int, on_read: Callable[[int], None] = lambda count: None) -> list[Prefetched]:
    """Read files into the page cache in their order while there is room; skip resident ones.

    Args:
        paths: the files, in the order in which they will be needed.
        room: the maximum number of bytes.
        on_read: called with the size of each piece that was read.
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
        done.append(Prefetched(str(path), size, there, read))
    return done


if __name__ == "__main__":
    main()
