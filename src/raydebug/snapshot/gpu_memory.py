"""Snapshots of torch's GPU allocator: read without running what is in them, compared, and said in lines."""

from __future__ import annotations

import contextlib
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from raydebug.errors import UsageError
from raydebug.protocol.gpu_snapshot import summarize
from raydebug.protocol.snapshot import GpuSummary, LiveLine

MAX_BYTES = 4 * 2**30
LEAST_MEMORY, OBJECT_BYTES = 2**28, 16  # of all, and for each byte of a pickle; torch's take 8
CGROUP = Path("/sys/fs/cgroup")
SHOWN = 12


class _Plain(pickle.Unpickler):
    """Admits no class and no function: a pickle of others can run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no data")


def read_gpu_snapshot(path: Path) -> GpuSummary:
    """Return the summary of a file of torch.cuda.memory._dump_snapshot, or of verl.

    Raises:
        RaydebugError: it is no such file, or contains more than data.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES // 2**30} GiB")
        with path.open("rb") as file, _memory_of(size):
            return summarize(_Plain(file).load())
    except Exception as error:  # a pickle can fail in any way, and each is the file's fault
        cause = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise UsageError(
            "this file is no snapshot of GPU memory", cause=f"{path}: {cause}", code="memory.bad-snapshot",
            fix="give a file that torch.cuda.memory._dump_snapshot has written, such as verl's memory_snapshot*.pickle",
        ) from error  # fmt: skip


@contextlib.contextmanager
def _memory_of(size: int) -> Iterator[None]:
    """Limit the memory that a pickle of so many bytes may take, to what is free: some bytes can ask for all of it.

    Raises:
        MemoryError: it takes more.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    allowed = min(LEAST_MEMORY + size * OBJECT_BYTES, _free_bytes())
    limit = pages * resource.getpagesize() + allowed
    resource.setrlimit(resource.RLIMIT_AS, (min(limit, before[0] if before[0] > 0 else limit), before[1]))
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"reading it takes more than {allowed / 2**20:,.0f} MiB") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _free_bytes() -> int:
    """Return how much memory this process may still take, of the machine's and of its cgroup's."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # without a limit
        limit, used = (int((CGROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        free = min(free, limit - used)
    return max(0, free)


def changes(now: GpuSummary, before: GpuSummary | None) -> list[tuple[LiveLine, int, int]]:
    """Return the lines with the change of their bytes and count; without `before`, all that they have. Most first."""
    known, old = (
        {line["line"]: line for line in which.get("lines", []) if {"line", "count", "bytes"} <= line.keys()}
        for which in (now, before or GpuSummary())
    )
    gone: LiveLine
    found = []
    for name in known | old:
        gone = {"line": name, "count": 0, "bytes": 0}
        row, past = known.get(name, gone), old.get(name, gone)
        found.append((row, row["bytes"] - past["bytes"], row["count"] - past["count"]))
    return sorted(found, key=lambda one: -one[1])


def gpu_memory_lines(now: GpuSummary, before: GpuSummary | None = None) -> list[str]:
    """Return a summary in lines, or its change against an earlier one."""
    lines = []
    lines.append(
        f"GPU memory of torch: {_size(now.get('live', 0))} live of {_size(now.get('reserved', 0))} reserved; free in it"
        f" {_size(now.get('free', 0))}, largest block {_size(now.get('largest_free', 0))};"
        f" waits for a stream {_size(now.get('waiting', 0))}"
    )
    if "asked" in now:
        at = f" at {now['asked_at']}" if now.get("asked_at") else ""
        lines.append(
            f"out of memory: {_size(now['asked'])} asked{at}; the GPU had {_size(now.get('device_free', 0))} free"
        )
        if now["asked"] <= now.get("free", 0) and now["asked"] > now.get("largest_free", 0):
            lines.append(
                "cause: enough is free, in pieces that are too small; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
                " joins them (not with vLLM's sleep mode)"
            )
    for row, size, count in changes(now, before)[:SHOWN]:
        if size or before is None:
            sign = ("+" if size >= 0 else "-") if before is not None else ""
            total = f", now {_size(row['bytes'])}" if before is not None else ""
            lines.append(
                f"  {sign + _size(abs(size)):>10}  {count:{'+' if before else ''}} tensors  {row['line']}{total}"
            )
    return lines


def _size(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
