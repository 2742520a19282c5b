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
from raydebug.findings import Finding, finding
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
        yield finding("env.open-files.hard", hard=hard, open_files_least=OPEN_FILES_LEAST)
    elif 0 <= soft < OPEN_FILES_LEAST:
        yield finding("env.open-files.soft", soft=soft, hard=hard, most=min(hard, 65536) if hard > 0 else 65536)
    yield from _processes(facts)
    yield from _memory(facts)
    yield from _disks(facts["disks"])
    yield from _compiler(facts)
    if (count := len(facts["tmp"].encode())) + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
        yield finding("env.tmpdir-long", count=count, tmp=facts["tmp"], variables={"TMPDIR": None})
    yield from judge_locked_memory(facts)


def judge_locked_memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return whether too little memory can be locked for the InfiniBand cards that are there."""
    memlock, cards = facts["limits"]["memlock"][0], facts["infiniband"]
    is_used = facts["verbs"]["devices"] and facts["variables"].get("NCCL_IB_DISABLE") != "1"
    if cards and is_used and 0 <= memlock < GIB:
        yield finding("env.locked-memory", memlock=memlock // MIB, cards=cards, variables={"NCCL_IB_DISABLE": "1"})


def _shared_memory(shm: Mapping[str, int] | None) -> Iterator[Finding]:
    if shm is None:
        return
    total = shm["total"] // MIB
    if shm["total"] < SHM_LEAST_BYTES:
        yield finding("env.shared-memory.small", total=total)
    elif shm["free"] < SHM_LEAST_BYTES:
        yield finding("env.shared-memory.full", total=total, free=shm["free"] // MIB)
    elif shm["total"] < SHM_ENOUGH_BYTES:
        yield finding("env.shared-memory.short", total=total)


def _processes(facts: Mapping[str, Any]) -> Iterator[Finding]:
    ranks = len(facts["gpus"])
    most = threads_of(facts["cores"], ranks)
    named = {"ulimit -u": facts["limits"]["nproc"][0], "pids.max of the cgroup": facts["pids"]}
    for name, limit in named.items():
        if limit is not None and 0 <= limit < THREADS_LEAST:
            yield finding("env.processes.few", limit=limit, name=name)
        elif limit is not None and ranks and 0 <= limit < most:
            yield finding("env.processes.short", limit=limit, name=name, most=most, ranks=ranks, cores=facts["cores"])


def _memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    ranks = len(facts["gpus"])
    least = MEMORY_BESIDE_BYTES + ranks * MEMORY_PER_GPU_BYTES
    if ranks and facts["memory"] < least:
        yield finding("env.memory", memory=facts["memory"] // GIB, ranks=ranks, least=least // GIB)
    if facts["spill_in_memory"]:
        yield finding("env.spill-in-memory")


def _disks(disks: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    said: set[tuple[int, int]] = set()
    for what, space in disks.items():
        used = 1 - space["free"] / space["total"] if space["total"] else 0.0
        if (space["total"], space["free"]) in said:
            continue  # the same disk under another name
        if used > DISK_FULLEST or space["free"] < DISK_LEAST_BYTES:
            said.add((space["total"], space["free"]))
            yield finding("env.disk-full", what=what, used=used, free=space["free"] // MIB, disk_fullest=DISK_FULLEST)


def _compiler(facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts["variables"].get("TORCHDYNAMO_DISABLE") == "1" or "triton" not in facts["packages"]:
        return  # nothing is compiled
    if facts["compiler"] is None:
        yield finding("env.compiler")
    if not facts["headers"]:
        yield finding("env.python-headers", include=facts["include"], python=".".join(facts["python"].split(".")[:2]))


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
        yield finding("env.driver-silent", smi=facts["smi"])
    elif wants_training and not facts["gpus"] and gpus_only:
        yield finding("env.no-gpu.other-program", gpus_only=gpus_only)
    elif wants_training and not facts["gpus"]:
        yield finding("env.no-gpu.verl", variables={"VERL_PLATFORM": "cpu"})
    if wants_training and facts["gpus"] and facts["torch_cuda"] == "":
        version, fix = facts["packages"].get("torch"), install(flavour="cuda")
        yield finding("env.torch-without-cuda", version=version, install=fix, variables={"VERL_PLATFORM": "cpu"})
    for gpu in facts["gpus"]:
        yield from _driver(gpu, facts["torch_cuda"])
        yield from _holders(gpu)
    if "flash-attn" in facts["packages"] and (old := [g for g in facts["gpus"] if _capability(g) < FLASH_CAPABILITY]):
        yield finding("env.gpu-old", old=old)


def _driver(gpu: Mapping[str, Any], cuda: str | None) -> Iterator[Finding]:
    needed = DRIVERS.get((cuda or "").partition(".")[0])
    major = gpu["driver"].partition(".")[0]
    if needed is None or not major.isdecimal():
        return
    has_compat = not any(word in gpu["name"] for word in NO_COMPAT)
    if int(major) < (needed[1] if has_compat else needed[0]):
        compat = f", or {needed[1]} with cuda-compat" if has_compat else ""
        yield finding("env.driver-old", gpu=gpu, cuda=cuda, needed=needed, compat=compat)


def _holders(gpu: Mapping[str, Any]) -> Iterator[Finding]:
    if not gpu["total_mib"] or gpu["used_mib"] < BUSY_SHARE * gpu["total_mib"]:
        return
    holders = [f"pid {h['pid']} ({h['name']}) {h['mib']} MiB" for h in gpu["holders"][:4]]
    yield finding("env.gpu-busy", gpu=gpu, holders=holders)


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
    within, cards = "", facts["infiniband"]
    if count > 1:
        off = facts["variables"].get("NCCL_P2P_DISABLE") == "1"
        within = f"{'shared memory' if off else 'P2P (NVLink or PCIe)'} between the {count} GPUs of this node, and "
    reason = why_sockets(facts)
    if reason is None:
        yield finding("env.nccl.infiniband", within=within, cards=cards)
        return
    fitting = (name for name in facts["interfaces"] if not name.startswith(NOT_FOR_NCCL))
    interface = facts["variables"].get("NCCL_SOCKET_IFNAME") or next(fitting, "the loopback interface")
    case = "unused-cards" if cards else "sockets"
    yield finding(f"env.nccl.{case}", within=within, interface=interface, reason=reason)


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
