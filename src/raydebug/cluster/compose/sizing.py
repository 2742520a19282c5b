"""How much of a host the containers of a cluster may take: from the host's facts to the compose files' settings. Pure.

All sizes are whole GiB (2**30 bytes). They are limits, not reservations: nothing is taken before it is used.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from raydebug.cluster.gpus import list_gpus

GIB = 1024**3
# Left to the system, the Docker engine and the page cache: a sixteenth, within these bounds.
HOST_LEAST_GIB, HOST_MOST_GIB = 2, 32
# A head without jobs takes 0.8 GiB (measured). A job's driver runs there too (1 GiB with verl imported), verl's
# TaskRunner, which holds batches, and an actor or two: an eighth; on a small machine 6 GiB, at most two fifths.
HEAD_ENOUGH_GIB, HEAD_MOST_GIB = 6, 64
GATEWAY_GIB = 1  # docker-compose.yml gives it 512 MiB
# Ray's own choice for a node: 30 %, at most 200 GB.
# Source: ray 2.60 _private/ray_constants.py DEFAULT_OBJECT_STORE_MEMORY_PROPORTION, DEFAULT_OBJECT_STORE_MAX_...
STORE_PERCENT, STORE_MOST_GIB, HEAD_STORE_MOST_GIB = 30, 200 * 10**9 // GIB, 16
# Beside the object store /dev/shm holds NCCL's buffers, DataLoader batches and verl's pieces of weights on their way to
# vLLM: 2 GiB a rank. Source: verl 0.9.1 rollout config, update_weights_bucket_megabytes: 2048.
SHM_PER_RANK_GIB = 2
TMP_LEAST_GIB, TMP_MOST_GIB = 1, 4  # logs, sockets and packages of jobs; objects spill to a volume
# verl 0.9.1 asks for 3 CPUs a GPU, and for about 8 beside them; on a small machine they are logical.
CPUS_PER_GPU, CPUS_BESIDE, CPUS_LEAST = 3, 8, 16
# The pids limit counts threads. About 8 processes a GPU (FSDP rank; vLLM's server, engine and worker; agent loop,
# reward and two data workers), each with a thread a core (OpenMP) and some 128 of Ray, CUDA and NCCL; 4096 for the
# rest. An estimate on the safe side, not measured on GPUs.
PROCESSES_PER_GPU, THREADS_OF_A_PROCESS, THREADS_BESIDE, PIDS_LEAST = 8, 128, 4096, 8192
# What may bound the memory of all that runs here, the Docker engine included: cgroup v2, v1.
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
PIDS_LIMITS = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max", "/sys/fs/cgroup/pids.max")


@dataclass(frozen=True)
class Host:
    """The resources of a machine. Not its /dev/shm: each container gets its own, bounded by SHM_SIZE and its memory.

    Args:
        memory_bytes: that the engine's containers can have together.
        gpus_bytes: memory of each GPU.
        pids: maximum of processes and threads; 0 if unknown.
    """

    cores: int
    memory_bytes: int
    gpus_bytes: tuple[int, ...] = ()
    pids: int = 0


@dataclass(frozen=True)
class Setting:
    """One variable of the compose files, its value as docker compose reads it, and the arithmetic for the reader."""

    name: str
    value: str
    why: str


def look_at_host(*, with_gpus: bool, engine: tuple[int, int] | None = None) -> Host:
    """Return the resources of this machine.

    `engine` has the cores and bytes of memory of the Docker engine (it may run in a virtual machine).
    """
    cores, memory_bytes = engine or (os.cpu_count() or 1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return Host(
        cores=cores,
        memory_bytes=min([memory_bytes, *_numbers(MEMORY_LIMITS)]),
        gpus_bytes=tuple(gpu.memory_bytes for gpu in list_gpus()[0]) if with_gpus else (),
        pids=min(_numbers(PIDS_LIMITS), default=0),
    )


def _numbers(paths: tuple[str, ...]) -> list[int]:
    """Return the numbers in these files; a file that is missing or says `max` is skipped."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(path).read_text()))
    return found


def settings_for(host: Host, *, workers: int = 1, logical_gpus: int = 0) -> list[Setting]:
    """Return the settings of a cluster that may use the whole host, which its workers share.

    `logical_gpus` are those of each worker without real GPUs.
    """
    total = max(1, host.memory_bytes // GIB)
    ranks = len(host.gpus_bytes) or logical_gpus
    kept = _within(HOST_LEAST_GIB, total // 16, HOST_MOST_GIB)
    usable = max(2, total - kept)
    head = max(1, min(HEAD_ENOUGH_GIB, usable * 2 // 5), min(HEAD_MOST_GIB, usable // 8))
    worker = max(1, (usable - head - GATEWAY_GIB) // max(1, workers))
    store = max(1, min(STORE_MOST_GIB, worker * STORE_PERCENT // 100))
    head_store = max(1, min(HEAD_STORE_MOST_GIB, head * STORE_PERCENT // 100))
    shm = store + SHM_PER_RANK_GIB * max(1, ranks)
    cpus = max(host.cores, CPUS_LEAST, CPUS_PER_GPU * ranks + CPUS_BESIDE)
    head_cpus = _within(2, host.cores // 8, 4)
    threads = threads_of(host.cores, ranks)
    pids = max(PIDS_LEAST, 1 << (threads - 1).bit_length())
    pids = min(pids, host.pids // 2) if host.pids else pids
    of_worker = f"{usable} GiB less {head} (head) and {GATEWAY_GIB} (gateway)"
    of_worker += f", shared by {workers} workers" if workers > 1 else ""
    if host.gpus_bytes:
        of_worker += f"; what is offloaded from {sum(host.gpus_bytes) // GIB} GiB of GPU memory goes here"
    of_pids = f"at least {threads} threads, as a power of two"
    of_pids += f"; at most half of the host's {host.pids}" if host.pids else ""
    of_cpus = f"logical: {host.cores} cores, or what verl asks for where that is more"
    of_cpus += f" ({CPUS_PER_GPU} for each of {ranks} GPUs and {CPUS_BESIDE}; at least {CPUS_LEAST})"
    rows = (
        (
            "HEAD_MEMORY",
            f"{head}g",
            f"of {usable} GiB ({total} less {kept} for the host): an eighth, or what is enough",
        ),
        ("WORKER_MEMORY", f"{worker}g", of_worker),
        ("OBJECT_STORE_BYTES", store * GIB, f"{store} GiB: {STORE_PERCENT} % of {worker}, at most {STORE_MOST_GIB}"),
        ("SHM_SIZE", f"{shm}g", f"{store} (object store) and {SHM_PER_RANK_GIB} GiB for each of {max(1, ranks)} ranks"),
        ("HEAD_OBJECT_STORE_BYTES", head_store * GIB, f"{head_store} GiB: {STORE_PERCENT} % of {head}, at most 16"),
        ("HEAD_SHM_SIZE", f"{head_store + 1}g", f"{head_store} (object store) and 1 GiB"),
        (
            "TMP_SIZE",
            f"{_within(TMP_LEAST_GIB, worker // 8, TMP_MOST_GIB)}g",
            "logs, sockets, packages of jobs; memory",
        ),
        ("PIDS_LIMIT", pids, of_pids),
        ("HEAD_CPUS", head_cpus, f"logical: an eighth of {host.cores} cores, 2 to 4; the work is the worker's"),
        ("WORKER_CPUS", cpus, of_cpus),
    )
    return [Setting(name, str(value), why) for name, value, why in rows]


def threads_of(cores: int, ranks: int) -> int:
    """Return the largest number of threads of a training on a node."""
    return THREADS_BESIDE + ranks * PROCESSES_PER_GPU * (cores + THREADS_OF_A_PROCESS)


def as_env(settings: list[Setting]) -> str:
    """Return settings as lines of a .env, each with its arithmetic above it."""
    return "".join(f"# {setting.why}\n{setting.name}={setting.value}\n" for setting in settings)


def _within(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))
