"""Limits of the machine: shared memory, open files, processes, disk, a compiler; and paths that break programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.cluster.compose.sizing import threads_of
from raydebug.findings import Finding, error, warning

MIB, GIB = 1024**2, 1024**3
# Docker gives a container 64 MiB by default; DataLoader workers, NCCL and Ray's object store share it.
SHM_LEAST_BYTES = 128 * MIB
SHM_ENOUGH_BYTES = 2 * GIB
# Ray warns below it and raises the soft limit to the hard one itself. Source: ray 2.60 _private/worker.py:1775.
OPEN_FILES_LEAST = 4096
THREADS_LEAST = 1024  # one training on two cores has about 900 threads in 25 processes
# What a training takes of host memory before anything is offloaded: for each GPU an FSDP rank, vLLM's server and
# engine, an agent loop and a reward worker, each 1 GiB by imports alone (verl 0.9.1, measured), and their buffers;
# beside them Ray and the driver.
MEMORY_PER_GPU_BYTES, MEMORY_BESIDE_BYTES = 8 * GIB, 4 * GIB
DISK_LEAST_BYTES = 1 * GIB
# Ray creates no objects on a disk that is fuller. Source: ray 2.60 ray_config_def.h local_fs_capacity_threshold.
DISK_FULLEST = 0.95
# A unix socket's path ends at 107 bytes; vLLM adds '/' and a uuid to the temporary folder.
# Source: unix(7); vllm 0.28 utils/network_utils.py:157 get_open_zmq_ipc_path.
SOCKET_PATH_BYTES, SOCKET_NAME_BYTES = 107, 37


def judge(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return what is too small. Pure."""
    yield from _shared_memory(facts["shm"])
    soft, hard = facts["limits"]["nofile"]
    if 0 <= hard < OPEN_FILES_LEAST:
        yield error(
            "env.open-files",
            f"a process may have {hard} files open (ulimit -Hn)",
            why=f"Ray's processes need {OPEN_FILES_LEAST} and more; a raylet that has none left aborts",
            fix="ulimit -n 65536 before `raydebug up`; in containers: ulimits.nofile",
        )
    elif 0 <= soft < OPEN_FILES_LEAST:
        yield warning(
            "env.open-files",
            f"a process may have {soft} files open (ulimit -n)",
            why=f"Ray raises it to {hard} in its workers, not in its raylet",
            fix=f"ulimit -n {min(hard, 65536) if hard > 0 else 65536} before `raydebug up`",
        )
    yield from _processes(facts)
    yield from _memory(facts)
    yield from _disks(facts["disks"])
    yield from _compiler(facts)
    if len(facts["tmp"].encode()) + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
        yield error(
            "env.tmpdir-long",
            f"the folder for temporary files has a path of {len(facts['tmp'].encode())} bytes: {facts['tmp']}",
            why=f"vLLM makes unix sockets in it, whose paths end at {SOCKET_PATH_BYTES} bytes: 'AF_UNIX path too long'",
            fix="export TMPDIR=/tmp before `raydebug up`",
            variables={"TMPDIR": None},
        )
    memlock = facts["limits"]["memlock"][0]
    if (
        facts["infiniband"]
        and facts["verbs"]["devices"]
        and 0 <= memlock < GIB
        and facts["variables"].get("NCCL_IB_DISABLE") != "1"
    ):
        yield error(
            "env.locked-memory",
            f"a process may lock {memlock // MIB} MiB of memory (ulimit -l), and there are InfiniBand cards",
            why=f"NCCL registers its buffers with {', '.join(facts['infiniband'])[:80]}: 'ibv_reg_mr failed'",
            fix="ulimit -l unlimited (containers: ulimits.memlock: -1), or NCCL_IB_DISABLE=1 on one node",
            variables={"NCCL_IB_DISABLE": "1"},
        )


def _shared_memory(shm: Mapping[str, int] | None) -> Iterator[Finding]:
    if shm is None:
        return
    if shm["total"] < SHM_LEAST_BYTES or shm["free"] < SHM_LEAST_BYTES:
        full = "" if shm["total"] < SHM_LEAST_BYTES else f", {shm['free'] // MIB} MiB of them free"
        yield error(
            "env.shared-memory",
            f"shared memory (/dev/shm) has {shm['total'] // MIB} MiB{full}",
            why="Ray's object store, DataLoader workers and NCCL share it; a bus error is what they die of",
            fix="SHM_SIZE=8g in .env (docker run: --shm-size=8g; Kubernetes: an emptyDir of medium Memory)"
            + ("" if not full else "; `ls -la /dev/shm` shows what old runs left there"),
        )
    elif shm["total"] < SHM_ENOUGH_BYTES:
        yield warning(
            "env.shared-memory",
            f"shared memory (/dev/shm) has {shm['total'] // MIB} MiB",
            why="weights travel to vLLM through it in pieces of 2048 MiB where there is no CUDA IPC",
            fix="SHM_SIZE=8g in .env (docker run: --shm-size=8g)",
        )


def _processes(facts: Mapping[str, Any]) -> Iterator[Finding]:
    ranks = len(facts["gpus"])
    most = threads_of(facts["cores"], ranks)
    named = {"ulimit -u": facts["limits"]["nproc"][0], "pids.max of the cgroup": facts["pids"]}
    for name, limit in named.items():
        if limit is not None and 0 <= limit < THREADS_LEAST:
            yield error(
                "env.processes",
                f"{limit} processes and threads are allowed ({name})",
                why="a training has more: 'can't start new thread', 'Resource temporarily unavailable'",
                fix="raise it: `ulimit -u 16384` before `raydebug up`; containers: PIDS_LIMIT",
            )
        elif limit is not None and ranks and 0 <= limit < most:
            yield warning(
                "env.processes",
                f"{limit} processes and threads are allowed ({name}); a training here may have up to {most}",
                why=f"{ranks} GPUs and {facts['cores']} cores: each process starts a thread for each core",
                fix=f"raise it: `ulimit -u {most}` before `raydebug up`; containers: PIDS_LIMIT (`raydebug settings`)",
            )


def _memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    ranks = len(facts["gpus"])
    least = MEMORY_BESIDE_BYTES + ranks * MEMORY_PER_GPU_BYTES
    if ranks and facts["memory"] < least:
        yield warning(
            "env.memory",
            f"{facts['memory'] // GIB} GiB of memory may be used; {ranks} GPUs take about {least // GIB} in a training",
            why="the kernel kills a process of it, and what is offloaded from the GPUs comes on top",
            fix="containers: a larger WORKER_MEMORY (`raydebug settings` computes it); else a machine with more",
        )
    if facts["spill_in_memory"]:
        yield warning(
            "env.spill-in-memory",
            "objects that do not fit in Ray's object store would be spilled to a tmpfs, which is memory",
            why="spilling is to free memory: there it fills up instead, 'No space left on device'",
            fix="export TMPDIR=(a folder on a disk) before `raydebug up`; containers of raydebug spill to a volume",
        )


def _disks(disks: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    said: set[tuple[int, int]] = set()
    for what, space in disks.items():
        used = 1 - space["free"] / space["total"] if space["total"] else 0.0
        if (space["total"], space["free"]) in said:
            continue  # the same disk under another name
        if used > DISK_FULLEST or space["free"] < DISK_LEAST_BYTES:
            said.add((space["total"], space["free"]))
            yield error(
                "env.disk-full",
                f"the disk of {what} is {used:.0%} full, {space['free'] // MIB} MiB are free",
                why=f"above {DISK_FULLEST:.0%} Ray creates no objects; checkpoints and caches fail to be written",
                fix="make room there, or set TMPDIR to a folder on another disk before `raydebug up`",
            )


def _compiler(facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts["variables"].get("TORCHDYNAMO_DISABLE") == "1" or "triton" not in facts["packages"]:
        return  # nothing is compiled
    if facts["compiler"] is None:
        yield error(
            "env.compiler",
            "there is no C compiler (CC, gcc or clang)",
            why="Triton compiles a small C file when a process first uses a kernel",
            fix="apt-get install gcc",
        )
    if not facts["headers"]:
        yield error(
            "env.python-headers",
            f"Python.h is not in {facts['include']}",
            why="Triton compiles against it: 'Python.h: No such file or directory', after minutes of loading",
            fix=f"apt-get install python{'.'.join(facts['python'].split('.')[:2])}-dev",
        )
