"""The memory of this process, of its node and of its GPUs, read without waiting for a GPU."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

from raydebug.protocol.questions import DeviceMemory, NodeMemory, Nothing, ProcessMemory
from raydebug.worker import control_channel, memory_in_use, spans
from raydebug.worker.census import answering
from raydebug.worker.frames import MAX_NAME
from raydebug.worker.memory_in_use import CGROUP, read_file, resident_bytes

_peak_kib = 0
_peak_phase = ""


def memory(_body: Nothing) -> Callable[[Callable[..., None]], object]:
    """Answer with what this process knows of its memory; the kernel takes a second to add up a very large process."""
    return answering(read_memory)


def read_memory() -> ProcessMemory:
    """Return what this process knows of its memory."""
    found: ProcessMemory = {"rss": resident_bytes(), "parent": os.getppid()}
    with contextlib.suppress(OSError, KeyError):  # another kernel, or a process that may not read itself
        sizes = _fields("/proc/self/smaps_rollup", skip=1)
        found |= {"pss": sizes["Pss"], "shared": sizes.get("Pss_Shmem", 0)}
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if _peak_phase:
        found["peak_phase"] = _peak_phase
    if forked := control_channel.forked_at:
        found["forked"] = forked
    found["node"] = _node()
    with contextlib.suppress(Exception):  # another version of torch or vLLM, a driver in trouble
        found["gpus"] = _gpus()
    return found


def _fields(path: str, skip: int = 0) -> dict[str, int]:
    rows = (line.split(":", 1) for line in read_file(path).splitlines()[skip:])
    return {name: int(size.split()[0]) * 1024 for name, size in rows if size.endswith("kB")}


def _node() -> NodeMemory:
    sizes = _fields("/proc/meminfo")
    found: NodeMemory = {
        "total": sizes["MemTotal"],
        "available": sizes["MemAvailable"],
        "cached": sizes["Cached"] - sizes["Shmem"],
        "shared": sizes["Shmem"],
    }
    with contextlib.suppress(OSError):
        shm = os.statvfs("/dev/shm")  # noqa: S108 - where shared memory is, not a file of ours
        found["shm"] = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
    with contextlib.suppress(OSError, ValueError):  # the limit is `max`, or cgroups have another version
        found["limit"] = int(read_file(f"{CGROUP}/memory.max"))
        found["used"] = int(read_file(f"{CGROUP}/memory.current"))
    return found


def _gpus() -> list[DeviceMemory]:
    found: dict[str, DeviceMemory] = {}
    for uuid, used, total, by_pid in memory_in_use.devices():
        gpu: DeviceMemory = {"gpu": uuid, "used": used, "total": total}
        if os.getpid() in by_pid:
            gpu["own"] = by_pid[os.getpid()]
        found[uuid] = gpu
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():  # a first call would make a context, of 0.5 GB
        return [*found.values()]
    for device in range(torch.cuda.device_count()):
        sizes = torch.cuda.memory_stats(device)  # counters of the host: no synchronisation
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        ours = found.setdefault(uuid, {"gpu": uuid})
        ours["reserved"] = sizes.get("reserved_bytes.all.current", 0)
        ours.update(_pool(device))
    return [*found.values()]


def _pool(device: int) -> DeviceMemory:
    """Return what vLLM's allocator has on a GPU. Torch does not see that it sleeps (vllm issue 17117).

    Source: vllm 0.28.0 device_allocator/cumem.py: `CuMemAllocator.instance`, `pointer_to_data`, whose `handle` begins
    with the device and the size; `is_asleep` is absent from earlier ones.
    """
    module: Any = sys.modules.get("vllm.device_allocator.cumem")
    allocator = getattr(getattr(module, "CuMemAllocator", None), "instance", None)
    if allocator is None:
        return {}
    here = [data for data in [*allocator.pointer_to_data.values()] if data.handle[0] == device]
    asleep = sum(data.handle[1] for data in here if getattr(data, "is_asleep", False))
    return {"pool": sum(data.handle[1] for data in here), "asleep": asleep}


def note_peak(span: spans.Span, has_ended: bool) -> None:
    """Note in which phase the process had its most memory: a recorder of spans.py, some us."""
    global _peak_kib, _peak_phase
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if peak > _peak_kib:
        outer = [*spans.open_spans.values()][-2:-1]
        _peak_kib, around = peak, [span] if has_ended else outer
        _peak_phase = around[0].name[:MAX_NAME] if around else ""
