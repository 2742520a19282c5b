"""On request, torch records who allocates GPU memory; when it runs out, a summary goes into the snapshot of the crash.

Unproven until a GPU test has run. Source: torch 2.13 cuda/memory.py; `stacks="python"`, as the default takes minutes to
write (torchtitan issue 3628). Where verl records with its own tool, torch has one history, and ours is not started.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from raydebug import worker
from raydebug.protocol.gpu_snapshot import summarize
from raydebug.protocol.snapshot import GpuSummary

MAX_ENTRIES = 200_000
MAX_SUMMARIES = 3  # of one process: a trainer may catch the error and go on

last: GpuSummary | None = None
"""When memory ran out the last time."""
_count = 0


def watch(torch: ModuleType) -> None:
    """Record from the moment that this process begins to use CUDA; never begin to use it."""
    lazily: Any = torch.cuda._lazy_call
    lazily(lambda: _start(torch))


def _start(torch: Any) -> None:
    with worker.harmless("no record of GPU memory"):
        if not torch._C._cuda_isHistoryEnabled():
            torch.cuda.memory._record_memory_history(stacks="python", max_entries=MAX_ENTRIES)
        torch._C._cuda_attach_out_of_memory_observer(
            lambda device, asked, total, free: _note(torch, device, asked, free)
        )


def _note(torch: Any, device: int, asked: int, free: int) -> None:
    """Summarize the allocator. No synchronisation: the GPU may never answer."""
    global last, _count
    _count += 1
    if _count > MAX_SUMMARIES:
        return
    with worker.harmless("no summary of GPU memory"):  # torch raises its own error next
        last = {**summarize(torch.cuda.memory._snapshot(device)), "asked": asked, "device_free": free}
