"""The GPUs of this machine, as the NVIDIA driver lists them: by its library NVML, without a process of nvidia-smi."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from dataclasses import asdict, dataclass
from typing import Any

NO_DRIVER = "NVML Shared Library Not Found"  # as nvidia-ml-py itself says it
# Why the driver lowers the clocks of a GPU, by NVML's bits; to be idle, or limited by its user, is no fault.
# Source: nvidia-ml-py 13.580 pynvml.py, nvmlClocksEventReason*.
SLOWED_BY = {0x04: "the limit of its power", 0x08: "a hardware slowdown", 0x10: "a GPU that it is synchronised with",
             0x20: "its temperature (software)", 0x40: "its temperature (hardware)",
             0x80: "the power supply"}  # fmt: skip
TIMEOUT_S = 20.0  # without persistence mode the driver loads first; one with a broken GPU may never answer


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Args:
        uuid: the driver's name for it, `GPU-...`; CUDA_VISIBLE_DEVICES may hold its beginning.
        generation: the major number of its compute capability, such as 9 of an H100.
        driver: the version of the driver.
        memory_bytes: 0 if it has none of its own.
        slowed_by: why the driver has lowered its clocks.
        pids: of the processes that compute on it, by the host's ids.
    """

    uuid: str
    generation: int
    name: str = ""
    driver: str = ""
    memory_bytes: int = 0
    slowed_by: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


def list_gpus() -> tuple[list[Gpu], str | None]:
    """Return the GPUs in the driver's order, and why it lists none: NO_DRIVER, its own error, or that it is silent.

    Raises:
        ModuleNotFoundError: nvidia-ml-py is not installed, which comes with raydebug[cli].
    """
    import pynvml  # 5 ms that most commands need not pay

    answers: list[tuple[list[Gpu], str | None]] = []
    asking = threading.Thread(target=lambda: answers.append(_ask_driver(pynvml)), daemon=True)
    asking.start()
    asking.join(TIMEOUT_S)
    return answers[0] if answers else ([], f"no answer within {TIMEOUT_S:.0f} s")


def _ask_driver(pynvml: Any) -> tuple[list[Gpu], str | None]:
    try:
        pynvml.nvmlInit()
        try:
            driver = str(pynvml.nvmlSystemGetDriverVersion())
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            return [_describe(pynvml, handle, driver) for handle in handles], None
        finally:
            pynvml.nvmlShutdown()
    except Exception as failure:  # noqa: BLE001 - the driver's error; or that of a package too old
        return [], str(failure) or type(failure).__name__


def _describe(pynvml: Any, handle: Any, driver: str) -> Gpu:
    generation, _ = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        memory_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except pynvml.NVMLError:  # a GPU that shares the host's memory
        memory_bytes = 0
    bits, pids = 0, ()
    unsaid = contextlib.suppress(pynvml.NVMLError, AttributeError)  # by a GPU, a driver, or an older pynvml
    with unsaid:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    with unsaid:
        pids = tuple(program.pid for program in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    slowed_by = tuple(words for bit, words in SLOWED_BY.items() if bits & bit)
    uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
    return Gpu(str(uuid), int(generation), str(name), driver, int(memory_bytes), slowed_by, pids)


if __name__ == "__main__":  # on a node of a cluster: the last line of the output has its GPUs
    sys.stdout.write(f"\n{json.dumps([asdict(gpu) for gpu in list_gpus()[0]])}\n")
