"""The GPUs of this machine, as a simulated driver's library lists them."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from raydebug.cluster import gpus
from raydebug.cluster.gpus import NO_DRIVER, Gpu, list_gpus


class NVMLError(Exception):
    """As pynvml raises it."""


def refuse(*_: Any) -> Any:
    raise NVMLError("Driver Not Loaded")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The functions of pynvml that are called, of a driver with two GPUs."""
    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.65.06",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetName=lambda index: "NVIDIA H100 80GB HBM3",
        nvmlDeviceGetCudaComputeCapability=lambda index: (9, 0),
        nvmlDeviceGetCurrentClocksEventReasons=lambda index: 1,
        nvmlDeviceGetComputeRunningProcesses=lambda index: [],
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(total=85520809984),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def test_gpus_of_a_driver(nvml: SimpleNamespace) -> None:
    """Each GPU has its id, generation, name, driver and memory; one without memory of its own has 0 bytes."""
    first, second = (Gpu(f"GPU-{n}", 9, "NVIDIA H100 80GB HBM3", "580.65.06", 85520809984) for n in range(2))
    assert list_gpus() == ([first, second], None)
    nvml.nvmlDeviceGetMemoryInfo = refuse
    assert [gpu.memory_bytes for gpu in list_gpus()[0]] == [0, 0]


# nvmlDeviceGetCurrentClocksEventReasons: an idle GPU, its user's limits, one at its power limit, one that is too hot.
@pytest.mark.parametrize(
    ("bits", "slowed_by"),
    [
        (0x1, ()),
        (0x2 | 0x100, ()),
        (0x4, ("the limit of its power",)),
        (0x8 | 0x40, ("a hardware slowdown", "its temperature (hardware)")),
    ],
)
def test_slowed_gpu(nvml: SimpleNamespace, bits: int, slowed_by: tuple[str, ...]) -> None:
    """A GPU whose clocks the driver has lowered has the reasons; one that does not say it has none, and its pids."""
    nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda index: bits if index == 1 else refuse()
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda index: [SimpleNamespace(pid=71)]
    first, second = list_gpus()[0]
    assert (first.slowed_by, first.pids) == ((), (71,))
    assert (second.slowed_by, second.pids) == (slowed_by, (71,))


def test_driver_that_fails(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a driver that is not loaded is returned, and one that is silent is not waited for."""
    nvml.nvmlInit = refuse
    assert list_gpus() == ([], "Driver Not Loaded")
    ended = threading.Event()
    nvml.nvmlInit = ended.wait
    monkeypatch.setattr(gpus, "TIMEOUT_S", 0.01)
    assert list_gpus() == ([], "no answer within 0 s")
    ended.set()


def test_package_that_is_too_old(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pynvml without a function is the reason at once; what can be left out is left out. None at all is an error."""
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    assert [gpu.slowed_by for gpu in list_gpus()[0]] == [(), ()]
    del nvml.nvmlDeviceGetCount
    assert list_gpus() == ([], "'types.SimpleNamespace' object has no attribute 'nvmlDeviceGetCount'")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ModuleNotFoundError, match="pynvml"):
        list_gpus()


def test_words_of_the_library() -> None:
    """The library's error without a driver is the text that is compared with."""
    import pynvml

    assert str(pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)) == NO_DRIVER
