"""What a CPU is to verl: the platform that `VERL_PLATFORM=cpu` names. Importing this registers it.

Source: verl 0.9.1 plugin/platform/platform_base.py (the interface), platform_cuda.py (its first example).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from raydebug.trainers.verl.patches import is_on_cpu


class _CpuDeviceId(str):
    """A device id that reads "cpu" in `tensor.to(id)` and 0 in f"{device}:{id}"; verl does both.

    Source: verl 0.9.1 utils/device.py get_device_id() and its callers in workers/engine/fsdp/.
    """

    __slots__ = ()

    def __new__(cls) -> _CpuDeviceId:
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return "0"


class _CpuModule(ModuleType):
    """`torch.cpu`, with the names of `torch.cuda` that verl calls on "the device module"."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _resident_bytes(*_args: object, **_options: object) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free_and_total_bytes(*_args: object, **_options: object) -> tuple[int, int]:
    import psutil

    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _nothing(*_args: object, **_options: object) -> None:
    """Stand in for a call that only a GPU needs."""


def _device_module() -> ModuleType:
    module = _CpuModule("raydebug_cpu_device")
    nothing = ("empty_cache", "ipc_collect", "synchronize", "set_device", "reset_peak_memory_stats")
    seeds = ("manual_seed", "manual_seed_all")  # torch.manual_seed, called beside them, seeds the CPU
    memory = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    names: dict[str, object] = {
        **dict.fromkeys(nothing + seeds, _nothing),
        **dict.fromkeys(memory, _resident_bytes),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": _CpuDeviceId,
        "mem_get_info": _free_and_total_bytes,
        "get_device_name": lambda *_args: "CPU",
        "get_rng_state": lambda *_args: torch.get_rng_state(),
        "set_rng_state": lambda state, *_args: torch.set_rng_state(state),
    }
    for name, value in names.items():
        setattr(module, name, value)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]  # verl is not there when types are checked
    """A CPU as the accelerator that verl expects."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        """A CPU always is."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Stay out of verl's auto-detection: only VERL_PLATFORM=cpu asks for this platform."""
        return is_on_cpu(os.environ)

    def current_device(self) -> Any:
        return _CpuDeviceId()

    def device_count(self) -> int:
        """Return 1: a process is a rank, and a rank has one device."""
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed
    # There is one device, and its work is done when a call returns. The CPU's allocator keeps no cache and has none of
    # the settings of CUDA's; there is no CUDA profiler and no CUDA runtime.
    set_device = synchronize = empty_cache = set_allocator_settings = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        """Return gloo, torch's collectives for CPU tensors."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the variable that Ray sets for the resource "GPU"."""
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """Return "GPU": Ray counts logical GPUs (`ray start --num-gpus`), and verl looks for no other name.

        Source: verl 0.9.1 single_controller/ray/base.py:226.
        """
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return none: there is no device that must stay visible."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return False, so that weights go to vLLM through POSIX shared memory instead of CUDA IPC."""
        return False

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield
