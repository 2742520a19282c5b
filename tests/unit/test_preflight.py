"""What `up` checks before it makes a container: disks, shared memory, the NVIDIA driver."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from raydebug.cluster.compose import preflight
from raydebug.cluster.gpus import NO_DRIVER, Gpu
from raydebug.errors import RaydebugError
from raydebug.settings.flavours import GPU_FLAVOURS, read_lock

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def driver(monkeypatch):
    """Lists what is given: lines of a driver's version and a GPU's name; or fails as is said."""

    def install(printed: str, failure: str | None = None) -> None:
        rows = (line.split(", ") for line in printed.splitlines())
        gpus = [Gpu("GPU-1", 8, name, version) for version, name in rows]
        monkeypatch.setattr(preflight, "list_gpus", lambda: (gpus, failure))

    return install


# The driver


@pytest.mark.parametrize(
    ("flavour", "printed", "failure"),
    [
        ("cuda", "580.65.06, NVIDIA GeForce RTX 4090\n", None),
        ("cuda", "595.10, NVIDIA RTX PRO 6000 Blackwell Workstation Edition\n", None),
        ("cuda", "570.172.08, NVIDIA H100 80GB HBM3\n570.172.08, NVIDIA H100 80GB HBM3\n", None),
        ("cuda", "535.288.01, Tesla T4\n", None),
        ("cuda", "", None),
        ("cuda", "", NO_DRIVER),
        ("cuda-verl04", "525.60.13, NVIDIA GeForce RTX 3090\n", None),
    ],
    ids=["580", "newer", "datacenter 570", "datacenter 535", "no GPU listed", "no driver", "the older line"],
)
def test_driver_that_will_do(driver, flavour, printed, failure):
    """CUDA 13 runs with driver 580, and by cuda-compat with 535 on GPUs for datacenters; CUDA 12 with 525.

    Where no driver is installed its version is not known, and not refused.
    """
    driver(printed, failure)
    preflight.check_driver(flavour)


@pytest.mark.parametrize(
    ("flavour", "printed", "cause", "needed"),
    [
        ("cuda", "570.133.07, NVIDIA GeForce RTX 3090\n", "580 or newer", 580),
        ("cuda", "525.147.05, NVIDIA A100-SXM4-80GB\n" * 2, "580 or newer, or 535 on this datacenter GPU", 580),
        ("cuda-verl04", "470.256.02, Tesla V100-SXM2-32GB\n", "525 or newer", 525),
    ],
)
def test_f51_driver_too_old(driver, flavour, printed, cause, needed):
    """F51: a driver too old for the image's CUDA is named, with the one that is needed, exit code 5.

    On a GPU that cuda-compat serves the error says so; one GPU of several is enough for it.
    """
    driver(printed)
    version, _, gpu = printed.splitlines()[0].partition(", ")
    with pytest.raises(RaydebugError) as failure:
        preflight.check_driver(flavour)
    assert str(failure.value) == (
        f"error: the NVIDIA driver {version} is too old for CUDA {13 if flavour == 'cuda' else 12}\n"
        f"cause: {gpu} has it; the image of flavour {flavour} needs {cause}\n"
        f"fix: install driver {needed} or newer on this host, or use `--flavour cpu`"
    )
    assert failure.value.exit_code == 5


def test_f51_driver_does_not_answer(driver):
    """F51: a driver that is not loaded is an error with its library's own words."""
    driver("", "Driver Not Loaded")
    with pytest.raises(RaydebugError, match="the NVIDIA driver does not answer") as failure:
        preflight.check_driver("cuda")
    assert failure.value.cause == "its library NVML: Driver Not Loaded"
    assert failure.value.exit_code == 5


def test_drivers_are_those_of_the_images_cuda():
    """The drivers here are for the CUDA that the Dockerfile builds on, and for that of the older line's packages."""
    (version,) = re.findall(r"^FROM nvidia/cuda:(\d+)\.\S+ AS base-cuda$", (ROOT / "Dockerfile").read_text(), re.M)
    older = read_lock(ROOT / "env" / "cuda-verl04.lock").pins
    majors = {flavour: major for flavour, (major, *_) in preflight.CUDA_DRIVERS.items()}
    assert majors == {"cuda": int(version), "cuda-verl04": int(older["nvidia-cuda-runtime-cu12"].partition(".")[0])}


@pytest.mark.parametrize("flavour", GPU_FLAVOURS)
def test_a_gpu_flavour_needs_one_and_takes_one_worker(flavour):
    """`up` refuses a flavour for GPUs without a GPU, and with workers that would share each of them."""
    assert preflight.choose_flavour(flavour, 1, has_gpu=True) == flavour
    with pytest.raises(RaydebugError, match="Docker cannot give a GPU to a container here") as failure:
        preflight.choose_flavour(flavour, 1, has_gpu=False)
    assert failure.value.exit_code == 5
    assert "nvidia-container-toolkit" in failure.value.fix
    with pytest.raises(RaydebugError, match=f"2 workers of flavour {flavour} would share each GPU"):
        preflight.choose_flavour(flavour, 2, has_gpu=True)
    with pytest.raises(RaydebugError, match=r"there is no flavour '\.\./\.\./etc'"):
        preflight.choose_flavour("../../etc", 1, has_gpu=True)


@pytest.mark.parametrize(
    ("has_gpu", "asked", "images", "taken"),
    [
        (False, None, ["core"], "core"),
        (False, None, ["core", "cpu"], "cpu"),
        (False, None, [], "cpu"),
        (False, "cpu", ["core"], "cpu"),
        (False, None, ["cuda"], "cpu"),
        (True, None, ["core", "cuda"], "cuda"),
        (True, None, ["cuda-verl04", "cpu"], "cuda-verl04"),
    ],
)
def test_flavour_of_the_image_that_is_there(has_gpu, asked, images, taken, capsys):
    """`up` takes the flavour that fits the engine, or else one that is built, and says so; a named one is kept."""
    there = [f"raydebug:{flavour}" for flavour in images]
    found = SimpleNamespace(has_gpu_runtime=lambda: has_gpu, image_labels=lambda name: {} if name in there else None)
    assert preflight.flavour_here(found, asked, 1) == taken
    is_other = taken != (asked or ("cuda" if has_gpu else "cpu"))
    assert ("whose image is there" in capsys.readouterr().err) is is_other


# Disks


def test_f51_disk_full(monkeypatch, tmp_path):
    """F51: a disk with too little room is refused with what it has, what is needed and what to do, exit code 3."""
    preflight.check_disk(tmp_path, tmp_path)
    monkeypatch.setattr(preflight, "ENGINE_FREE_BYTES", 2**62)
    with pytest.raises(RaydebugError) as failure:
        preflight.check_disk(tmp_path, tmp_path)
    assert failure.value.what == "the disk of the Docker engine is full"
    assert re.fullmatch(rf"{tmp_path} has \d+ bytes free, a cluster needs {2**62}", failure.value.cause)
    assert "docker system prune" in failure.value.fix
    assert failure.value.exit_code == 3
    monkeypatch.setattr(preflight, "STATE_FREE_BYTES", 2**62)
    with pytest.raises(RaydebugError, match="the disk of raydebug's state is full"):
        preflight.check_disk(tmp_path / "not" / "yet", None)


def test_engine_elsewhere(tmp_path):
    """The disk of an engine on another machine, or in a virtual one, is not looked at here."""
    here = str(tmp_path)
    assert preflight.engine_folder(here, "") == tmp_path
    assert preflight.engine_folder(here, "unix:///run/user/1000/docker.sock") == tmp_path
    assert preflight.engine_folder(here, "tcp://10.0.0.1:2376") is None
    assert preflight.engine_folder(here, "ssh://box") is None
    assert preflight.engine_folder("/nowhere/docker", "") is None
    assert preflight.engine_folder("", "") is None


# Shared memory


def settings(shm: str | None, store: str | None) -> dict[str, object]:
    """Return what docker compose makes of a cluster's settings, as far as it is read."""
    return {"services": {"gateway": {}, "worker": {"shm_size": shm, "environment": {"OBJECT_STORE_BYTES": store}}}}


def test_f51_object_store_that_does_not_fit():
    """F51: an object store larger than shared memory is refused with both sizes, exit code 2; equal sizes fit."""
    for fits in (("100", "100"), (None, "100"), ("100", None), ("100", "many")):
        preflight.refuse_sizes(settings(*fits), 0)
    with pytest.raises(RaydebugError) as failure:
        preflight.refuse_sizes(settings("67108864", "100000000"), 0)
    assert str(failure.value) == (
        "error: the object store (100000000 bytes) does not fit in shared memory\n"
        "cause: OBJECT_STORE_BYTES=100000000, and SHM_SIZE gives a worker 67108864 bytes\n"
        "fix: a larger SHM_SIZE, or a smaller OBJECT_STORE_BYTES, in your environment or .env"
    )
    assert failure.value.exit_code == 2
