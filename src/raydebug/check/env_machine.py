"""The machine: limits, disks, a compiler, GPUs with their driver and memory, and how NCCL would communicate. Pure.

Source of the NCCL rules: NCCL's user guide, environment variables (NCCL_P2P_DISABLE, NCCL_IB_DISABLE, NCCL_NET,
NCCL_SOCKET_IFNAME). NCCL loads libibverbs.so.1 at run time, opens /dev/infiniband/uverbs*, and falls back to TCP
sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydebug.cluster.compose.preflight import CUDA_DRIVERS, NO_COMPAT
from raydebug.cluster.compose.sizing import threads_of
from raydebug.cluster.environment import visible_indexes
from raydebug.findings import Finding, error, note, warning
from raydebug.settings.flavours import install

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
# CUDA major -> the driver that it needs, and the one that it needs with cuda-compat on datacenter GPUs.
# Source: CUDA 13.0 release notes, table 3; https://docs.nvidia.com/deploy/cuda-compatibility.
DRIVERS = {"12": (525, 450), "13": CUDA_DRIVERS["cuda"][1:]}
FLASH_CAPABILITY = 8.0  # FlashAttention 2 needs Ampere. Source: flash-attn 2.8.3 README, "NVIDIA CUDA Support"
BUSY_SHARE = 0.1  # of a GPU's memory, held by others
_NO_GPU = "no nvidia-smi on the PATH, or it lists none, or none that CUDA_VISIBLE_DEVICES leaves"
NOT_FOR_NCCL = ("lo", "docker", "br-", "veth")  # beginnings of interfaces' names that NCCL takes last


def visible(gpus: Sequence[Mapping[str, Any]], said: str | None) -> Sequence[Mapping[str, Any]]:
    """Return the GPUs that a value of CUDA_VISIBLE_DEVICES leaves visible; None hides none.

    With a part of a GPU (`MIG-`) it is not known which ones: none is hidden then.
    """
    indexes = visible_indexes([gpu.get("uuid", "") for gpu in gpus], said)
    return gpus if None in indexes else [gpus[index] for index in indexes if index is not None]


def judge_limits(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return which limits are too small, and which paths break programs."""
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
    yield from judge_locked_memory(facts)


def judge_locked_memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return whether too little memory can be locked for the InfiniBand cards that are there."""
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
                fix=f"raise it: `ulimit -u {most}` before `raydebug up`; containers: PIDS_LIMIT "
                "(`raydebug up --write-env`)",
            )


def _memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    ranks = len(facts["gpus"])
    least = MEMORY_BESIDE_BYTES + ranks * MEMORY_PER_GPU_BYTES
    if ranks and facts["memory"] < least:
        yield warning(
            "env.memory",
            f"{facts['memory'] // GIB} GiB of memory may be used; {ranks} GPUs take about {least // GIB} in a training",
            why="the kernel kills a process of it, and what is offloaded from the GPUs comes on top",
            fix="containers: a larger WORKER_MEMORY (`raydebug up --write-env` computes it); else a machine with more",
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


def judge_gpus(
    facts: Mapping[str, Any], *, on_cpu: bool, wants_training: bool, gpus_only: str = ""
) -> Iterator[Finding]:
    """Return what is wrong with the GPUs: on_cpu (VERL_PLATFORM=cpu) uses none, a training needs one.

    Args:
        facts: of the machine.
        on_cpu: the environment says VERL_PLATFORM=cpu.
        wants_training: there is a training to run.
        gpus_only: the trainer, if it trains on GPUs only, with its version.
    """
    if on_cpu and not gpus_only:
        return
    if facts["smi"] not in (None, "ok"):
        yield error(
            "env.driver-silent",
            "the NVIDIA driver does not answer",
            why=f"nvidia-smi said: {facts['smi']}",
            fix="load it (`sudo modprobe nvidia`), or reboot after an update of the driver",
        )
    elif wants_training and not facts["gpus"] and gpus_only:
        yield error(
            "env.no-gpu",
            "there is no GPU here",
            why=f"{_NO_GPU}; {gpus_only} trains on GPUs only",
            fix="run it on a GPU host; here --keep-going checks the data and the model, and `run` reaches the trainer's"
            " own process",
        )
    elif wants_training and not facts["gpus"]:
        yield error(
            "env.no-gpu",
            "there is no GPU here",
            why=f"{_NO_GPU}; verl takes CUDA unless VERL_PLATFORM=cpu",
            fix="run it on a GPU host (flavour cuda); without a GPU the flavour cpu and VERL_PLATFORM=cpu",
            variables={"VERL_PLATFORM": "cpu"},
        )
    if wants_training and facts["gpus"] and facts["torch_cuda"] == "":
        yield error(
            "env.torch-without-cuda",
            f"torch {facts['packages'].get('torch')} is a build without CUDA, and there are GPUs",
            why="torch/version.py names no CUDA: 'Torch not compiled with CUDA enabled'",
            fix=f"install the flavour cuda: {install(flavour='cuda')}; or VERL_PLATFORM=cpu",
            variables={"VERL_PLATFORM": "cpu"},
        )
    for gpu in facts["gpus"]:
        yield from _driver(gpu, facts["torch_cuda"])
        yield from _holders(gpu)
    if "flash-attn" in facts["packages"] and (old := [g for g in facts["gpus"] if _capability(g) < FLASH_CAPABILITY]):
        yield warning(
            "env.gpu-old",
            f"{old[0]['name']} has compute capability {old[0]['capability']}, FlashAttention 2 needs 8.0",
            why="its kernels end with 'FlashAttention only supports Ampere GPUs or newer'",
            fix="the trainer's settings attn_implementation=sdpa and use_remove_padding=False",
        )


def _driver(gpu: Mapping[str, Any], cuda: str | None) -> Iterator[Finding]:
    needed = DRIVERS.get((cuda or "").partition(".")[0])
    major = gpu["driver"].partition(".")[0]
    if needed is None or not major.isdecimal():
        return
    has_compat = not any(word in gpu["name"] for word in NO_COMPAT)
    if int(major) < (needed[1] if has_compat else needed[0]):
        yield error(
            "env.driver-old",
            f"the NVIDIA driver {gpu['driver']} is too old for CUDA {cuda}, which torch was built for",
            why=f"{gpu['name']} has it; driver {needed[0]} or newer is needed"
            + (f", or {needed[1]} with cuda-compat" if has_compat else ""),
            fix=f"install driver {needed[0]} or newer on this host",
        )


def _holders(gpu: Mapping[str, Any]) -> Iterator[Finding]:
    if not gpu["total_mib"] or gpu["used_mib"] < BUSY_SHARE * gpu["total_mib"]:
        return
    held = ", ".join(f"pid {h['pid']} ({h['name']}) {h['mib']} MiB" for h in gpu["holders"][:4])
    yield error(
        "env.gpu-busy",
        f"{gpu['used_mib']} of {gpu['total_mib']} MiB of GPU {gpu['index']} are in use",
        why=f"held by {held or 'processes of another container or user'}; a training would run out of memory",
        fix="end them if they are yours (`kill PID`), or leave the GPU out with CUDA_VISIBLE_DEVICES",
    )


def _capability(gpu: Mapping[str, Any]) -> float:
    try:
        return float(gpu["capability"])
    except ValueError:
        return FLASH_CAPABILITY


def judge_nccl(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return how NCCL would communicate, if there are GPUs."""
    count = len(facts["gpus"])
    if not count:
        return
    why_no_verbs = why_sockets(facts)
    cards = ", ".join(facts["infiniband"])[:80]
    between = f"InfiniBand ({cards})" if why_no_verbs is None else f"TCP sockets over {_interface(facts)}"
    within = ""
    if count > 1:
        off = facts["variables"].get("NCCL_P2P_DISABLE") == "1"
        within = f"{'shared memory' if off else 'P2P (NVLink or PCIe)'} between the {count} GPUs of this node, and "
    fix = "nothing to do on one node"
    if why_no_verbs is not None and facts["infiniband"]:
        fix = "with several nodes: add deploy/compose-rdma.yml after the other files (docs/07-containers.md)"
    yield note(
        "env.nccl",
        f"NCCL would use {within}{between} between nodes",
        why=why_no_verbs or "its cards, their device files and libibverbs.so.1 are there",
        fix=fix,
    )


def why_sockets(facts: Mapping[str, Any]) -> str | None:
    """Return why NCCL would not use InfiniBand; None if it would."""
    variables = facts["variables"]
    if variables.get("NCCL_IB_DISABLE") == "1":
        return "NCCL_IB_DISABLE=1 is set"
    if variables.get("NCCL_NET", "").lower() == "socket":
        return f"NCCL_NET={variables['NCCL_NET']} is set"
    if not facts["infiniband"]:
        return "there are no InfiniBand or RoCE cards (/sys/class/infiniband)"
    if not facts["verbs"]["devices"]:
        return "there are cards, but no /dev/infiniband/uverbs* that this user can open"
    if not facts["verbs"]["library"]:
        return "there are cards, but no libibverbs.so.1 (apt-get install libibverbs1 ibverbs-providers)"
    return None


def _interface(facts: Mapping[str, Any]) -> str:
    named = facts["variables"].get("NCCL_SOCKET_IFNAME")
    fitting = [one for one in facts["interfaces"] if not one.startswith(NOT_FOR_NCCL)]
    return str(named or next(iter(fitting), "the loopback interface"))
