"""The fraction of memory that is in use on this node: of the host, of the container, of each GPU."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

CGROUP = "/sys/fs/cgroup"


def memory_in_use() -> float:
    """Return the largest of these fractions, from 0 to 1."""
    fields = dict(line.split(":", 1) for line in read_file("/proc/meminfo").splitlines())
    total, available = (float(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return max(1 - available / total, _container(), *(used / size for _, used, size, _ in devices()))


def _container() -> float:
    """Return the fraction of this container's limit that is in use, without the page cache; 0 without a limit."""
    try:
        limit, used = (int(read_file(f"{CGROUP}/memory.{name}")) for name in ("max", "current"))
        cache = dict(line.split() for line in read_file(f"{CGROUP}/memory.stat").splitlines())["inactive_file"]
    except (OSError, ValueError, KeyError):  # the limit is `max`, or cgroups have another version
        return 0.0
    return (used - int(cache)) / limit


def read_file(path: str) -> str:
    """Return the text of a file of the kernel."""
    with open(path) as file:
        return file.read()


def resident_bytes() -> int:
    """Return how much memory of this process is in RAM."""
    return int(read_file("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _DeviceMemory(ctypes.Structure):
    """nvmlMemory_t of NVIDIA's nvml.h."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _DeviceProcess(ctypes.Structure):
    """nvmlProcessInfo_v2_t of NVIDIA's nvml.h, which nvmlDeviceGetComputeRunningProcesses_v3 fills."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("of_gpu", ctypes.c_uint), ("of", ctypes.c_uint))


MAX_PROCESSES = 256  # of one GPU
_UNKNOWN = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE


def devices() -> list[tuple[str, int, int, dict[int, int]]]:
    """Return for each GPU of the node its UUID, bytes in use and in all, and bytes by process id as the host has it.

    NVML reads it without a CUDA context, which torch would create.
    """
    nvml = _nvml()
    if nvml is None:
        return []
    count, handle, memory = ctypes.c_uint(), ctypes.c_void_p(), _DeviceMemory()
    uuid, those = ctypes.create_string_buffer(96), (_DeviceProcess * MAX_PROCESSES)()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    found = []
    for index in range(count.value):
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            continue
        nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(len(uuid)))
        running = ctypes.c_uint(MAX_PROCESSES)
        failed = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(running), those)
        known = [] if failed else [process for process in those[: running.value] if process.used != _UNKNOWN]
        by_pid = {process.pid: process.used for process in known}
        found.append((uuid.value.decode("ascii", "replace"), memory.used, memory.total, by_pid))
    return found


@functools.cache
def _nvml() -> Any:
    """Return the driver's library, initialized; None if there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return nvml if nvml.nvmlInit_v2() == 0 else None
