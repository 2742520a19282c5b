"""Checks before a cluster of containers is created: image, GPU and driver, ports, disk, shared memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydebug import render
from raydebug.cluster import state
from raydebug.cluster.compose.engine import Engine
from raydebug.cluster.gpus import NO_DRIVER, Gpu, list_gpus
from raydebug.errors import Exit, RaydebugError, TakenError, UsageError
from raydebug.settings.flavours import GPU_FLAVOURS, require_flavour

IMAGE_VARIABLE = "RAYDEBUG_IMAGE"  # docker-compose.yml
# Layers of containers and their logs (three files of 20 MB each, docker-compose.yml), with room for a run's own files.
ENGINE_FREE_BYTES = 1024**3
STATE_FREE_BYTES = 16 * 1024**2  # tokens, records and logs
# Of each flavour the CUDA that it is built on, the oldest driver, and the oldest of datacenter GPUs, where the image
# of flavour cuda has cuda-compat. CUDA 12 runs with 525 everywhere. Source: CUDA 13.0 release notes, table 3, CUDA 12.4
# release notes, table 2, and https://docs.nvidia.com/deploy/cuda-compatibility.
CUDA_DRIVERS = {"cuda": (13, 580, 535), "cuda-verl04": (12, 525, 525)}
NO_COMPAT = ("GeForce", "RTX", "Quadro", "TITAN")  # in the names of GPUs that are none for a datacenter


def check_machine(found: Engine, flavour: str | None, workers: int) -> str:
    """Check that this machine can run the requested cluster, and return its flavour.

    Raises:
        RaydebugError: an image, a GPU, its driver or room is missing, or the flavour cannot be.
    """
    chosen = flavour_here(found, flavour, workers)
    check_image(found, chosen)
    check_disk(state.clusters_dir(), engine_folder(found.data_folder(), os.environ.get("DOCKER_HOST", "")))
    if chosen in GPU_FLAVOURS:
        check_driver(chosen)
    return chosen


def flavour_here(found: Engine, asked: str | None, workers: int) -> str:
    """Return the flavour to start: the requested one, the one that fits the engine, or the one whose image is there.

    Raises:
        RaydebugError: as `choose_flavour` does.
    """
    has_gpu = found.has_gpu_runtime()
    fitting = choose_flavour(asked, workers, has_gpu)
    if asked or os.environ.get(IMAGE_VARIABLE):
        return fitting
    runnable = (*(GPU_FLAVOURS if has_gpu else ()), "cpu", "core")
    taken = next((flavour for flavour in runnable if found.image_labels(f"raydebug:{flavour}") is not None), fitting)
    if taken != fitting:
        render.say(f"there is no image raydebug:{fitting}; taking flavour {taken}, whose image is there")
    return taken


def choose_flavour(asked: str | None, workers: int, has_gpu: bool) -> str:
    """Return the flavour to start: the requested one, or the one that fits the engine. Pure.

    Raises:
        RaydebugError: there is no such flavour, or it cannot run here.
    """
    flavour = asked or ("cuda" if has_gpu else "cpu")
    require_flavour(flavour, fix="use `--flavour cpu` on a machine without a GPU")
    if flavour in GPU_FLAVOURS and not has_gpu:
        raise RaydebugError(
            "Docker cannot give a GPU to a container here",
            cause="the engine has neither a runtime 'nvidia' nor a CDI device nvidia.com/gpu (`docker info`)",
            fix="install nvidia-container-toolkit and run `nvidia-ctk runtime configure`, or use `--flavour cpu`",
            code="engine.no-gpu",
            exit_code=Exit.NO_ENGINE,
        )
    if flavour in GPU_FLAVOURS and workers > 1:
        raise UsageError(
            f"{workers} workers of flavour {flavour} would share each GPU",
            cause="every worker container of a host sees all of its GPUs, and Ray would hand each of them out again",
            fix="use --workers 1, or join further hosts (docs/07-containers.md)",
            code="gpu.shared",
        )
    return flavour


def check_image(found: Engine, flavour: str) -> None:
    """Check that the engine has the flavour's image.

    Raises:
        RaydebugError: it does not (exit 5).
    """
    image = os.environ.get(IMAGE_VARIABLE) or f"raydebug:{flavour}"
    if found.image_labels(image) is None:
        raise RaydebugError(
            f"there is no image {image} on this machine",
            cause="the Docker engine does not list it",
            fix=f"`raydebug image --flavour {flavour}` in a checkout, or `raydebug up --cluster local`",
            code="image.missing",
            exit_code=Exit.NO_ENGINE,
        )


def refuse_foreign_ports(asked: dict[str, int | None], found: Engine) -> None:
    """Refuse a port that a container publishes, by the container's name: the system lists docker-proxy at most.

    Raises:
        RaydebugError: a container publishes it (exit 3).
    """
    for purpose, port in asked.items():
        owner = found.publisher_of(port) if port else None
        if owner:
            raise TakenError(
                f"port {port} for the {purpose} is taken",
                cause=f"container {owner} publishes it",
                fix=f"end it, or choose another port with --{purpose}-port (0 takes a free one)",
                code="port.taken",
            )


def check_disk(state_folder: Path, engine_folder: Path | None) -> None:
    """Check for free space where raydebug writes, and the engine, if it is on this machine.

    Raises:
        RaydebugError: too little is free (exit 3).
    """
    places = [(state_folder, STATE_FREE_BYTES, "raydebug's state", "XDG_STATE_HOME on a larger disk")]
    if engine_folder is not None:
        fix = "make room there: `docker system df` shows what takes it, `docker system prune` removes what nothing uses"
        places.append((engine_folder, ENGINE_FREE_BYTES, "the Docker engine", fix))
    for folder, needed_bytes, whose, fix in places:
        have_bytes = free_bytes(folder)
        if have_bytes < needed_bytes:
            raise TakenError(
                f"the disk of {whose} is full",
                cause=f"{folder} has {have_bytes} bytes free, a cluster needs {needed_bytes}",
                fix=fix,
                code="disk.full",
            )


def free_bytes(folder: Path) -> int:
    """Return the free space for a user where this folder is, or will be created."""
    for place in (folder, *folder.parents):
        try:
            found = os.statvfs(place)
        except OSError:  # not made yet, or its folder is closed to this user
            continue
        return found.f_bavail * found.f_frsize
    return 0


def engine_folder(docker_root: str, docker_host: str) -> Path | None:
    """Return the engine's folder, DockerRootDir of `docker info`, if it is on this machine."""
    folder = Path(docker_root)
    is_here = docker_host in ("", "default") or docker_host.startswith("unix://")
    # Where the engine runs in a virtual machine (Docker Desktop) the socket is here, and its folder is not.
    return folder if is_here and docker_root and folder.is_dir() else None


def check_driver(flavour: str) -> None:
    """Check the NVIDIA driver of this machine against a flavour's CUDA; without one here nothing is checked.

    Raises:
        RaydebugError: it is too old, or does not answer (exit 5).
    """
    gpus, failure = list_gpus()
    if failure not in (None, NO_DRIVER):
        raise RaydebugError(
            "the NVIDIA driver does not answer",
            cause=f"its library NVML: {failure}",
            fix="load it (`sudo modprobe nvidia`), or reboot after an update of the driver; or use `--flavour cpu`",
            code="gpu.no-driver",
            exit_code=Exit.NO_ENGINE,
        )
    for gpu in gpus:
        refuse_old_driver(gpu, flavour)


def refuse_old_driver(gpu: Gpu, flavour: str) -> None:
    """Check one GPU's driver. Pure.

    Raises:
        RaydebugError: it is too old for the image's CUDA (exit 5).
    """
    major = int(gpu.driver.partition(".")[0])
    has_compat = not any(word in gpu.name for word in NO_COMPAT)
    cuda, least, with_compat = CUDA_DRIVERS[flavour]
    if major >= (with_compat if has_compat else least):
        return
    compat = f", or {with_compat} on this datacenter GPU" if has_compat and with_compat < least else ""
    raise RaydebugError(
        f"the NVIDIA driver {gpu.driver} is too old for CUDA {cuda}",
        cause=f"{gpu.name} has it; the image of flavour {flavour} needs {least} or newer{compat}",
        fix=f"install driver {least} or newer on this host, or use `--flavour cpu`",
        code="gpu.old-driver",
        exit_code=Exit.NO_ENGINE,
    )


def refuse_sizes(settings: Mapping[str, Any], host_bytes: int) -> None:
    """Check the sizes of containers, as the user may have set them. Pure.

    An object store that does not fit in shared memory Ray would put on disk, without an error; where a container may
    take more memory than the machine has, the kernel would end processes of the host. The settings are output of
    `docker compose config --format json`.

    Raises:
        RaydebugError: one does not fit (exit 2).
    """
    for name, service in settings["services"].items():
        store = str((service.get("environment") or {}).get("OBJECT_STORE_BYTES") or "")
        shm, limit = (str(service.get(key) or "") for key in ("shm_size", "mem_limit"))
        if store.isdecimal() and shm.isdecimal() and int(store) > int(shm):  # the entrypoint refuses other words
            raise UsageError(
                f"the object store ({store} bytes) does not fit in shared memory",
                cause=f"OBJECT_STORE_BYTES={store}, and SHM_SIZE gives a {name} {shm} bytes",
                fix="a larger SHM_SIZE, or a smaller OBJECT_STORE_BYTES, in your environment or .env",
                code="shm.too-small",
            )
        if limit.isdecimal() and int(limit) > host_bytes:
            variable = {"head": "HEAD_MEMORY", "worker": "WORKER_MEMORY"}.get(name, "mem_limit")
            raise UsageError(
                f"{variable} is larger than this machine's memory",
                cause=f"a {name} may take {limit} bytes, and the machine has {host_bytes}",
                fix=f"unset {variable} (environment, .env): `raydebug up` chooses one that fits; `up --dry-run` shows"
                " it",
                code="memory.too-large",
            )
