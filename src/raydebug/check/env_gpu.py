"""GPUs: present, a driver that fits torch's CUDA, free memory; and how NCCL would communicate between them. Pure.

Source of the NCCL rules: NCCL's user guide, environment variables (NCCL_P2P_DISABLE, NCCL_IB_DISABLE, NCCL_NET,
NCCL_SOCKET_IFNAME). NCCL loads libibverbs.so.1 at run time, opens /dev/infiniband/uverbs*, and falls back to TCP
sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.cluster.compose.preflight import DRIVER_LEAST, DRIVER_LEAST_WITH_COMPAT, NO_COMPAT
from raydebug.findings import Finding, error, note, warning

# CUDA major -> the driver that it needs, and the one that it needs with cuda-compat on datacenter GPUs.
# Source: CUDA 13.0 release notes, table 3; https://docs.nvidia.com/deploy/cuda-compatibility.
DRIVERS = {"12": (525, 450), "13": (DRIVER_LEAST, DRIVER_LEAST_WITH_COMPAT)}
FLASH_CAPABILITY = 8.0  # FlashAttention 2 needs Ampere. Source: flash-attn 2.8.3 README, "NVIDIA CUDA Support"
BUSY_SHARE = 0.1  # of a GPU's memory, held by others


def judge(facts: Mapping[str, Any], *, on_cpu: bool, wants_training: bool) -> Iterator[Finding]:
    """Return what is wrong with the GPUs. Pure.

    Args:
        facts: of `probes/env.py`.
        on_cpu: VERL_PLATFORM=cpu: none are used.
        wants_training: a training is to run, so that one is needed.
    """
    if on_cpu:
        return
    if facts["smi"] not in (None, "ok"):
        yield error(
            "env.driver-silent",
            "the NVIDIA driver does not answer",
            why=f"nvidia-smi said: {facts['smi']}",
            fix="load it (`sudo modprobe nvidia`), or reboot after an update of the driver",
        )
    elif wants_training and not facts["gpus"]:
        yield error(
            "env.no-gpu",
            "there is no GPU here",
            why="no nvidia-smi on the PATH, or it lists none; verl takes CUDA unless VERL_PLATFORM=cpu",
            fix="run it on a GPU host (flavour cuda); without a GPU the flavour cpu and VERL_PLATFORM=cpu",
            variables={"VERL_PLATFORM": "cpu"},
        )
    if wants_training and facts["gpus"] and facts["torch_cuda"] == "":
        yield error(
            "env.torch-without-cuda",
            f"torch {facts['packages'].get('torch')} is a build without CUDA, and there are GPUs",
            why="torch/version.py names no CUDA: 'Torch not compiled with CUDA enabled'",
            fix="install the flavour cuda: pip install --require-hashes -r env/cuda.lock; or VERL_PLATFORM=cpu",
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


NOT_FOR_NCCL = ("lo", "docker", "br-", "veth")  # beginnings of interfaces' names that NCCL takes last


def judge_nccl(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return how NCCL would communicate, if there are GPUs. Pure."""
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
        fix = "with several nodes: add docker-compose.rdma.yml after the other files (docs/07-containers.md)"
    yield note(
        "env.nccl",
        f"NCCL would use {within}{between} between nodes",
        why=why_no_verbs or "its cards, their device files and libibverbs.so.1 are there",
        fix=fix,
    )


def why_sockets(facts: Mapping[str, Any]) -> str | None:
    """Return why NCCL would not use InfiniBand; None if it would. Pure."""
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
