"""Stages `env` and `cluster`: the rules over facts, the facts themselves, and findings for a bare environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import runs
from raydebug.check import cluster, env, env_machine
from raydebug.check.probes import env as inside
from raydebug.findings import Finding

GIB = 1024**3


def facts(**changed: Any) -> dict[str, Any]:
    """Return the facts of an environment in which nothing is wrong."""
    well: dict[str, Any] = {
        "shm": {"total": 8 * GIB, "free": 8 * GIB},
        "limits": {"nofile": [65536, 65536], "nproc": [-1, -1], "memlock": [-1, -1]}, "cores": 64, "memory": 512 * GIB,
        "pids": None, "disks": {"the folder of the run": {"total": 100 * GIB, "free": 50 * GIB}}, "tmp": "/tmp",
        "infiniband": [], "interfaces": ["lo", "docker0", "eth0"], "verbs": {"devices": [], "library": False},
        "spill_in_memory": False, "variables": {}, "packages": {"triton": "3.6.0", "torch": "2.11.0"},
        "compiler": "/usr/bin/gcc", "headers": True, "include": "/usr/include/python3.12", "python": "3.12.3",
        "gpus": [], "smi": None, "torch_cuda": "13.0",
    }  # fmt: skip
    return {**well, **changed}


def codes(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.code) for finding in found]


GPU = {"index": "0", "name": "NVIDIA H100 80GB HBM3", "driver": "580.65.06", "capability": "9.0", "total_mib": 81559,
       "used_mib": 4, "holders": []}  # fmt: skip
GPUS = [GPU] * 8
LIMITS = {
    "shared memory as Docker gives it": (
        {"shm": {"total": 64 * 1024**2, "free": 64 * 1024**2}}, "error", "env.shared-memory", "has 64 MiB"),
    "shared memory that is full": (
        {"shm": {"total": 8 * GIB, "free": 0}}, "error", "env.shared-memory", "0 MiB of them free"),
    "shared memory that is small": (
        {"shm": {"total": GIB, "free": GIB}}, "warning", "env.shared-memory", "has 1024 MiB"),
    "few open files": (
        {"limits": {"nofile": [1024, 1024], "nproc": [-1, -1], "memlock": [-1, -1]}}, "error", "env.open-files",
        "1024"),
    "few open files at first": (
        {"limits": {"nofile": [1024, 524288], "nproc": [-1, -1], "memlock": [-1, -1]}}, "warning", "env.open-files",
        "1024 files open"),
    "few processes": ({"pids": 512}, "error", "env.processes", "512 processes and threads"),
    "a full disk": (
        {"disks": {"temporary files": {"total": 100 * GIB, "free": 3 * GIB}}}, "error", "env.disk-full", "97% full"),
    "little memory to lock beside InfiniBand": (
        {"limits": {"nofile": [65536, 65536], "nproc": [-1, -1], "memlock": [65536, 65536]}, "infiniband": ["mlx5_0"],
         "verbs": {"devices": ["uverbs0"], "library": True}},
        "error", "env.locked-memory", "0 MiB of memory"),
    "few processes for eight GPUs": (
        {"pids": 8192, "gpus": GPUS}, "warning", "env.processes", "may have up to 16384"),
    "little memory for eight GPUs": (
        {"memory": 64 * GIB, "gpus": GPUS}, "warning", "env.memory", "64 GiB of memory may be used; 8 GPUs take"),
    "spilling to memory": ({"spill_in_memory": True}, "warning", "env.spill-in-memory", "to a tmpfs"),
    "no compiler": ({"compiler": None}, "error", "env.compiler", "no C compiler"),
    "no headers": ({"headers": False}, "error", "env.python-headers", "Python.h is not in /usr/include/python3.12"),
    "a temporary folder of a batch system": (
        {"tmp": "/var/tmp/pbs." + "1" * 90}, "error", "env.tmpdir-long", "a path of 103 bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "severity", "code", "says"), LIMITS.values(), ids=LIMITS)
def test_limits(changed: dict[str, Any], severity: str, code: str, says: str) -> None:
    """What is too small is named once, with the value."""
    found = list(env_machine.judge_limits(facts(**changed)))
    assert codes(found) == [(severity, code)]
    assert says in found[0].what


MLX = {"infiniband": ["mlx5_0", "mlx5_1"]}
VERBS = {**MLX, "verbs": {"devices": ["uverbs0"], "library": True}}
NCCL: dict[str, tuple[dict[str, Any], str, str]] = {
    "one GPU": (
        {"gpus": GPUS[:1]},
        "NCCL would use TCP sockets over eth0 between nodes",
        "no InfiniBand or RoCE cards",
    ),
    "eight GPUs": ({}, "P2P (NVLink or PCIe) between the 8 GPUs of this node, and TCP sockets over eth0", "no Infini"),
    "no P2P": ({"variables": {"NCCL_P2P_DISABLE": "1"}}, "shared memory between the 8 GPUs", "no InfiniBand"),
    "InfiniBand": (VERBS, "and InfiniBand (mlx5_0, mlx5_1) between nodes", "libibverbs.so.1 are there"),
    "no device files": (MLX, "TCP sockets", "no /dev/infiniband/uverbs* that this user can open"),
    "no library": ({**VERBS, "verbs": {"devices": ["uverbs0"], "library": False}}, "TCP sockets", "libibverbs1"),
    "switched off": ({**VERBS, "variables": {"NCCL_IB_DISABLE": "1"}}, "TCP sockets", "NCCL_IB_DISABLE=1 is set"),
    "named net": ({**VERBS, "variables": {"NCCL_NET": "Socket"}}, "TCP sockets", "NCCL_NET=Socket is set"),
    "named interface": ({"variables": {"NCCL_SOCKET_IFNAME": "bond0"}}, "TCP sockets over bond0", "no InfiniBand"),
}


@pytest.mark.parametrize(("changed", "says", "why"), NCCL.values(), ids=NCCL)
def test_nccl(changed: dict[str, Any], says: str, why: str) -> None:
    """One note says what NCCL would use between GPUs and between nodes, and why."""
    (found,) = env_machine.judge_nccl(facts(**{"gpus": GPUS, **changed}))
    assert (found.severity, found.code) == ("note", "env.nccl")
    assert says in found.what
    assert why in found.why
    assert ("deploy/compose-rdma.yml" in found.fix) == (bool(changed.get("infiniband")) and "sockets" in found.what)


def test_nccl_without_gpus() -> None:
    """Nothing is said of NCCL where there is no GPU."""
    assert list(env_machine.judge_nccl(facts())) == []


def test_limits_that_will_do() -> None:
    """Nothing is said of a machine that has enough; without Triton no compiler is asked for."""
    assert list(env_machine.judge_limits(facts())) == []
    assert list(env_machine.judge_limits(facts(compiler=None, headers=False, packages={}))) == []
    assert list(env_machine.judge_limits(facts(compiler=None, variables={"TORCHDYNAMO_DISABLE": "1"}))) == []


SMI = """#!/bin/sh
case "$1" in
*compute-apps*) echo 'GPU-aaaa, 4242, 63000, /opt/venv/bin/python' ;;
*) echo '0, NVIDIA H100 80GB HBM3, 570.172.08, 9.0, 81559, 63200, GPU-aaaa'
   echo '1, NVIDIA H100 80GB HBM3, 570.172.08, 9.0, 81559, 4, GPU-bbbb' ;;
esac
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A program `nvidia-smi` that answers as written."""

    def install(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(script)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def test_a_gpu_that_others_hold(nvidia_smi: Any) -> None:
    """A GPU with another process on it is an error that names the process; its neighbour is free."""
    nvidia_smi(SMI)
    seen = inside.list_gpus()
    assert [(gpu["index"], gpu["used_mib"], len(gpu["holders"])) for gpu in seen["gpus"]] == [
        ("0", 63200, 1),
        ("1", 4, 0),
    ]
    (found,) = env_machine.judge_gpus(facts(**seen), on_cpu=False, wants_training=True)
    assert (found.severity, found.code) == ("error", "env.gpu-busy")
    assert found.what == "63200 of 81559 MiB of GPU 0 are in use"
    assert "pid 4242 (/opt/venv/bin/python) 63000 MiB" in found.why


@pytest.mark.parametrize(
    ("said", "indices"),
    [
        (None, ["0", "1"]), ("1", ["1"]), (" 1, 0", ["1", "0"]), ("GPU-bb", ["1"]), ("", []), ("-1", []),
        ("1,7,0", ["1"]), ("MIG-x", ["0", "1"]),
    ],
)  # fmt: skip
def test_a_gpu_that_is_left_out(nvidia_smi: Any, said: str | None, indices: list[str]) -> None:
    """Of the GPUs those are judged that CUDA_VISIBLE_DEVICES leaves visible."""
    nvidia_smi(SMI)
    seen = inside.list_gpus()
    assert [gpu["index"] for gpu in env_machine.visible(seen["gpus"], said)] == indices
    target = SimpleNamespace(program=None)
    known = facts(**seen, variables={} if said is None else {"CUDA_VISIBLE_DEVICES": said})
    busy = [found for found in env._judge_machine(target, known, on_cpu=False) if found.code == "env.gpu-busy"]
    assert len(busy) == ("0" in indices)


def test_a_driver_that_is_silent_or_old(nvidia_smi: Any) -> None:
    """A driver that does not answer is quoted; one too old for torch's CUDA is named, once for each GPU."""
    nvidia_smi("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    (found,) = env_machine.judge_gpus(facts(**inside.list_gpus()), on_cpu=False, wants_training=True)
    assert (found.code, found.why) == ("env.driver-silent", "nvidia-smi said: NVIDIA-SMI has failed")
    nvidia_smi("#!/bin/sh\necho '0, NVIDIA GeForce RTX 3090, 570.133.07, 8.6, 24576, 4, GPU-aaaa'\n")
    (found,) = env_machine.judge_gpus(facts(**inside.list_gpus()), on_cpu=False, wants_training=True)
    assert found.code == "env.driver-old"
    assert found.what == "the NVIDIA driver 570.133.07 is too old for CUDA 13.0, which torch was built for"


def test_torch_without_cuda_beside_a_gpu() -> None:
    """A CPU build of torch on a machine with GPUs is an error, unless the training is one for the CPU."""
    gpu = {"index": "0", "name": "Tesla T4", "driver": "580.1", "capability": "7.5", "total_mib": 15360, "used_mib": 3,
           "holders": []}  # fmt: skip
    with_gpu = facts(gpus=[gpu], smi="ok", torch_cuda="")
    assert codes(list(env_machine.judge_gpus(with_gpu, on_cpu=False, wants_training=True))) == [
        ("error", "env.torch-without-cuda")
    ]
    assert list(env_machine.judge_gpus(with_gpu, on_cpu=True, wants_training=True)) == []
    (found,) = env_machine.judge_gpus(facts(), on_cpu=True, wants_training=True, gpus_only="verl 0.3.1.dev")
    assert (found.code, found.variables) == ("env.no-gpu", {})
    assert found.why.endswith("verl 0.3.1.dev trains on GPUs only")


def test_nodes_that_differ() -> None:
    """A node with another version is named, with both versions and all that differs."""
    here = {"python": "3.12.3", "packages": {"ray": "2.60.0", "torch": "2.11.0"}}
    there = {"python": "3.12.3", "packages": {"ray": "2.59.0"}}
    assert list(env.compare(here, {"worker-1": here})) == []
    (found,) = env.compare(here, {"worker-1": there})
    assert found.what == "node worker-1 has ray 2.59.0, another has 2.60.0"
    assert "they differ in ray, torch" in found.why


def test_the_network_of_each_node() -> None:
    """What is wrong on several nodes is one finding that names them; another network than Ray's is a note."""
    memlock = {"limits": {"nofile": [65536, 65536], "nproc": [-1, -1], "memlock": [65536, 65536]}}
    cards = {"infiniband": ["mlx5_0"], "verbs": {"devices": ["uverbs0"], "library": True}, **memlock}
    wrong = facts(variables={"NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": "eth0"}, to_head="eth0", **cards)
    elsewhere = {**wrong, "interfaces": ["lo", "eth0", "ib0"]}
    well = facts(variables={"NCCL_SOCKET_IFNAME": "^lo,docker"}, to_head="eth0")
    memory = "a process may lock 0 MiB of memory (ulimit -l), and there are InfiniBand cards"
    found = list(env.judge_nodes({"10.0.0.2": wrong, "10.0.0.3": elsewhere, "10.0.0.4": wrong, "10.0.0.5": well}))
    assert [(one.severity, one.code, one.what) for one in found] == [
        ("error", "env.interface-missing",
         "10.0.0.2, 10.0.0.4: NCCL_SOCKET_IFNAME=ib, and this machine has no such network interface"),
        ("error", "env.locked-memory", f"10.0.0.2, 10.0.0.3, 10.0.0.4: {memory}"),
        ("note", "env.interface-not-to-head",
         "10.0.0.3: NCCL_SOCKET_IFNAME=ib, and Ray's head is reached over eth0"),
    ]  # fmt: skip
    assert found[2].why == "the processes of a group then meet over ib0: it has to lead to all other nodes"
    assert found[2].fix == "nothing if it does; else unset NCCL_SOCKET_IFNAME, or name eth0"


def test_the_interface_to_the_head() -> None:
    """The probe names the interface whose address this machine sends from."""
    assert inside.gather({"head": "127.0.0.1"})["to_head"] == "lo"
    assert inside.gather({})["to_head"] is None
    assert inside.gather({"head": "head.invalid"})["to_head"] is None


def test_no_secret_in_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts hold variables by name, none whose name says that it is secret."""
    monkeypatch.setenv("HF_HUB_TOKEN", "hf_secretsecret")
    monkeypatch.setenv("VLLM_API_KEY", "secretsecret")
    assert "secretsecret" not in json.dumps(inside.gather({}), default=str)


def raydebug(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return runs.raydebug(*arguments, env={**os.environ, **variables})


def test_env_alone_in_a_bare_environment(tmp_path: Path) -> None:
    """`raydebug check env` needs no command, and imports nothing heavy where nothing heavy is installed."""
    done = raydebug("check", "env", "--json", XDG_STATE_HOME=str(tmp_path))
    document = json.loads(done.stdout)
    assert (document["version"], document["stages"][0]["stage"]) == (1, "env")
    assert set(document["stages"][0]) == {"stage", "status", "seconds", "budget_s", "findings", "reason"}


def test_a_training_without_verl(tmp_path: Path) -> None:
    """In the core flavour the findings for a training command name the missing packages and how to get them."""
    command = ("--", "python", "-m", "verl.trainer.main_ppo")
    done = raydebug("check", "env", "--json", *command, XDG_STATE_HOME=str(tmp_path))
    missing = [
        f["what"] for f in json.loads(done.stdout)["stages"][0]["findings"] if f["code"] == "env.package-missing"
    ]
    if "verl is not installed in the cluster's Python" not in missing:
        pytest.skip("verl is installed here")
    assert done.returncode == 1
    assert "vllm is not installed in the cluster's Python" in missing


def test_a_fork_in_the_folder_of_the_command(tmp_path: Path) -> None:
    """The version is that of the fork that the command runs; it needs no installed verl, and a note says so."""
    trainer = tmp_path / "verl" / "trainer"
    trainer.mkdir(parents=True)
    (tmp_path / "verl" / "version").mkdir()
    (tmp_path / "verl" / "version" / "version").write_text("0.3.1.dev")
    (trainer / "main_ppo.py").write_text("raise SystemExit('it is not imported')\n")
    argv = [
        sys.executable, "-P", "-m", "raydebug", "check", "env", "--json", "--",
        *["python", "-m", "verl.trainer.main_ppo"],
    ]  # fmt: skip
    done = subprocess.run(argv, cwd=tmp_path, env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    found = json.loads(done.stdout)["stages"][0]["findings"]
    (own,) = [finding["what"] for finding in found if finding["code"] == "env.own-trainer"]
    assert own.startswith("the command runs a verl of its own, 0.3.1.dev; the environment has ")
    assert "verl is not installed in the cluster's Python" not in [finding["what"] for finding in found]


def test_a_training_that_runs_elsewhere(tmp_path: Path) -> None:
    """With --elsewhere the stage env says nothing about this machine; a stage that needs the other one is refused."""
    command = ("--", "python", "-m", "verl.trainer.main_ppo")
    done = raydebug("check", "env", "--elsewhere", "--json", *command, XDG_STATE_HOME=str(tmp_path))
    codes = {finding["code"] for finding in json.loads(done.stdout)["stages"][0]["findings"]}
    assert not {code for code in codes if code.startswith(("env.no-gpu", "env.limit", "env.shm"))}
    done = raydebug("check", "env", "train", "--elsewhere", *command, XDG_STATE_HOME=str(tmp_path))
    assert (done.returncode, done.stderr.splitlines()) == (2, [
        "error: --elsewhere does not go with the stage train",
        "cause: it needs the machine that the training runs on",
        "fix: raydebug check --elsewhere env data -- COMMAND",
    ])  # fmt: skip


def test_packages_are_those_of_importlib_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions and folders of installed packages are read as `importlib.metadata` reads them."""
    names = sorted({one.metadata["Name"] for one in metadata.distributions()})
    monkeypatch.setattr(inside, "PACKAGES", tuple(names))
    found = inside.find_packages()
    assert {name: (package.version, package.folder) for name, package in found.items()} == {
        name: (metadata.version(name), str(metadata.distribution(name).locate_file(""))) for name in names
    }


@pytest.mark.parametrize(
    ("demand", "has", "met"),
    [
        ("numpy", "2.3", False),
        ("numpy>=1.21", "2.3", True),
        ("numpy (>=1.21)", "2.3.5", True),
        ("numpy>=2.3.1", "2.3", False),
        ("numpy>=2.3", "2.3.0rc1", False),
        ("numpy<3,>=1.21", "2.3", False),
        ("numpy>=1.21; python_version < '3.12'", "2.3", False),
        ("numpy[extra]>=1.21", "2.3", False),
        ("scipy>=1", "2.3", True),
    ],
)
def test_demand_that_needs_no_parser(demand: str, has: str, met: bool) -> None:
    """Only a requirement that certainly holds is not given to `packaging`, whose import is slow."""
    assert inside._is_met(demand, {"numpy": has}) is met


def test_few_open_files_for_real(tmp_path: Path) -> None:
    """A limit of the calling shell is seen where the training would run."""
    line = f"ulimit -n 1024; exec {sys.executable} -m raydebug check env --json"
    done = subprocess.run(["bash", "-c", line], env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    found = {f["code"]: f for f in json.loads(done.stdout)["stages"][0]["findings"]}
    assert found["env.open-files"]["what"] == "a process may have 1024 files open (ulimit -Hn)"
    assert done.returncode == 1


BAD_INPUT = {
    "a command that is no training": (("check", "--", "python", "train.py"), "'python train.py' is not a training"),
    "no command": (("check",), "there is no command to check"),
    "no such stage": (("check", "modell", "--", "python"), "there is no stage 'modell'"),
    "no such profile": (
        ("check", "--profile", "tiny", "--", "python", "-m", "verl.trainer.main_ppo"), "there is no profile 'tiny'"),
    "a JUnit file that cannot be written": (("check", "env", "--junit", "/nowhere/x"), "cannot write /nowhere/x"),
    "a cluster that does not run": (("check", "cluster"), "no cluster runs that could be checked"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "says"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """What cannot be checked is refused in three lines, exit code 2."""
    done = raydebug(*arguments, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2, done.stdout + done.stderr
    error, cause, fix = done.stderr.strip().splitlines()[-3:]
    assert error.startswith(f"error: {says}")
    assert (cause[:7], fix[:5]) == ("cause: ", "fix: ")


# Stage `cluster`


def judged(*nodes: dict[str, Any]) -> list[str]:
    facts = {"nodes": list(nodes), "unreachable": [], "sum": {"skipped": "no node has a GPU"}}
    return [finding.what for finding in cluster.judge(facts) if finding.severity == "error"]


def test_node_that_was_started_again() -> None:
    """Ray keeps the entry of a dead node; it is no fault where a node of the same address is alive."""
    dead = {"ip": "10.0.0.2", "alive": False, "why": "killed"}
    again = {"ip": "10.0.0.2", "alive": True, "silent": "no task ran"}
    assert judged(dead) == ["node 10.0.0.2 is dead"]
    assert judged(dead, again) == ["node 10.0.0.2 runs no task"]
