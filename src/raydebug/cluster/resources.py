"""How many logical GPUs and CPUs a local cluster gets, and the GPUs that the NVIDIA driver lists."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raydebug.errors import Exit, RaydebugError

VISIBLE = "CUDA_VISIBLE_DEVICES"
# verl 0.9.1 reserves 3 CPUs beside each GPU (single_controller/ray/base.py, max_colocate_count=3). Its TransferQueue
# takes 9 more by default (8 storage units, 1 controller), a remote reward manager 1, and Ray asks for one to place an
# actor. Logical CPUs cost nothing; a placement group that lacks one waits for ever.
CPUS_PER_GPU = 3
CPUS_BESIDE_GPUS = 12
CPUS_AT_LEAST = 16


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Args:
        uuid: the driver's name for it, `GPU-...`; CUDA_VISIBLE_DEVICES may hold its beginning.
        generation: the major number of its compute capability, such as 9 of an H100.
    """

    uuid: str
    generation: int


def list_gpus() -> tuple[list[Gpu], str | None]:
    """Return the GPUs in the driver's order, and the driver's error where it lists none."""
    import pynvml  # 5 ms that most commands need not pay

    try:
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            return [
                Gpu(str(pynvml.nvmlDeviceGetUUID(one)), int(pynvml.nvmlDeviceGetCudaComputeCapability(one)[0]))
                for one in handles
            ], None
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as failure:
        return [], str(failure)


def cpus_for(gpus: int) -> int:
    """Return the number of logical CPUs that a node with this many logical GPUs needs."""
    return max(CPUS_AT_LEAST, os.cpu_count() or 1, CPUS_PER_GPU * gpus + CPUS_BESIDE_GPUS)


def visible(gpus: Sequence[Gpu], said: str | None) -> int:
    """Return how many GPUs CUDA_VISIBLE_DEVICES leaves visible. Pure.

    Args:
        gpus: of the driver, in its order.
        said: the variable's value; None where it is not set, which hides none.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": indices or beginnings of UUIDs (`GPU-`, `MIG-`);
    CUDA ignores an invalid entry and all entries after it, so that an empty value or -1 hides every GPU.
    """
    if said is None:
        return len(gpus)
    found = 0
    for entry in said.split(","):
        word = entry.strip()
        is_index = word.isdecimal() and int(word) < len(gpus)
        is_uuid = word.startswith("GPU-") and any(gpu.uuid.startswith(word) for gpu in gpus)
        if not (is_index or is_uuid or (word.startswith("MIG-") and gpus)):
            break
        found += 1
    return found


def choose_gpus(asked: int | None, environ: Mapping[str, str]) -> int:
    """Return the number of logical GPUs of a local cluster: those of --gpus, else those that the driver lists.

    Raises:
        RaydebugError: CUDA_VISIBLE_DEVICES names fewer than --gpus, and Ray would not start.
    """
    gpus, _ = list_gpus()
    there = visible(gpus, environ.get(VISIBLE))
    if asked is None:
        return there
    if asked > there and VISIBLE in environ and gpus:
        raise RaydebugError(
            f"--gpus {asked} is more than CUDA_VISIBLE_DEVICES allows",
            cause=f"CUDA_VISIBLE_DEVICES={environ[VISIBLE]} names {there} of the {len(gpus)} GPUs of this machine;"
            " Ray does not start with more logical GPUs than it names",
            fix=f"--gpus {there}, or unset CUDA_VISIBLE_DEVICES",
            code="cluster.gpus-hidden",
            exit_code=Exit.USAGE,
        )
    return asked


def start_environment(environ: Mapping[str, str], gpus: int) -> dict[str, str]:
    """Return the environment to start a local cluster in, which has to allow its logical GPUs.

    Ray refuses to start with more GPUs than CUDA_VISIBLE_DEVICES names (2.60, _private/resource_and_label_spec.py).
    Where the machine has no GPU at all, an empty CUDA_VISIBLE_DEVICES hides nothing and is left out.
    """
    kept = dict(environ)
    if gpus and VISIBLE in kept and not list_gpus()[0]:
        del kept[VISIBLE]
    return kept


def why_so_many(asked: int | None, environ: Mapping[str, str]) -> str:
    """Return the origin of a local cluster's number of logical GPUs."""
    if asked is not None:
        return f"--gpus is {asked}"
    gpus, failure = list_gpus()
    if failure is not None:
        return f"the NVIDIA driver lists none ({failure})"
    hidden = f", and CUDA_VISIBLE_DEVICES={environ[VISIBLE]}" if VISIBLE in environ else ""
    return f"the NVIDIA driver lists {len(gpus)}{hidden}"
