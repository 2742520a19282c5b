"""The fraction of memory that is in use on this node: of the host, of the container, of each GPU."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

CGROUP = "/sys/fs/cgroup"


def memory_in_use() -> float:
    """Return the largest of these fractions, from 0 to 1."""
    return max(_host(), _container(), *_gpus())


def _host() -> float:
    fields = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines())
    total, available = (float(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return 1 - available / total


def _container() -> float:
    """Return the fraction of this container's limit that is in use, without the page cache; 0 without a limit."""
    try:
        limit, used = (int(_read(f"{CGROUP}/memory.{name}")) for name in ("max", "current"))
        cache = dict(line.split() for line in _read(f"{CGROUP}/memory.stat").splitlines())["inactive_file"]
    except (OSError, ValueError, KeyError):  # the limit is `max`, or cgroups have another version
        return 0.0
    return (used - int(cache)) / limit


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


class _DeviceMemory(ctypes.Structure):
    """nvmlMemory_t of NVIDIA's nvml.h."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _gpus() -> list[float]:
    """Return the fraction of each GPU of the node. NVML reads it without a CUDA context, which torch would create."""
    nvml = _nvml()
    if nvml is None:
        return [0.0]
    count, handle, memory, found = ctypes.c_uint(), ctypes.c_void_p(), _DeviceMemory(), [0.0]
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
            found.append(memory.used / memory.total)
    return found


@functools.cache
def _nvml() -> Any:
    """Return the driver's library, initialized; None if there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return nvml if nvml.nvmlInit_v2() == 0 else None
