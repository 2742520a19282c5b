"""The Dev Container, opened by the real @devcontainers/cli (npm), as an editor opens it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from raydebug.cluster.up import choose_ports
from runs import JOBS

CLI = "@devcontainers/cli@0.89.0"
ROOT = Path(__file__).resolve().parents[2]
CONFIG = ".devcontainer/cpu/devcontainer.json"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command-line client for Dev Containers, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here to install @devcontainers/cli with")
    folder = tmp_path_factory.mktemp("npm")
    argv = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), CLI]
    subprocess.run(argv, check=True, timeout=180, capture_output=True)
    return str(folder / "node_modules" / ".bin" / "devcontainer")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A checkout with jobs, and the .env that a user writes."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    for job in JOBS.glob("*.py"):
        shutil.copy(job, tmp_path)
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    user = os.getuid() or 1000
    ports = choose_ports({}, {}, {8265, 5678}, ("dashboard", "gateway"))
    settings = {
        "RAYDEBUG_TOKEN_FILE": token,
        "RAYDEBUG_FLAVOUR": "core",
        "RAYDEBUG_UID": user,
        "RAYDEBUG_GID": os.getgid() or 1000,
        "COMPOSE_PROJECT_NAME": f"rdt-dev-{os.getpid()}",
        "DASHBOARD_PORT": ports["dashboard"],
        "GATEWAY_PORT": ports["gateway"],
        "DEV_PACKAGES": "",
        **{n: os.environ[n] for n in ("BASE_IMAGE", "EXTRA_CA_FILE", "PACKAGE_ENV_FILE") if os.environ.get(n)},
        **{n: os.environ[n] for n in ("SHM_SIZE", "OBJECT_STORE_BYTES", "HEAD_CPUS", "WORKER_CPUS")},
    }
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    for path in [tmp_path, *tmp_path.rglob("*")]:
        os.chown(path, user, user) if os.getuid() == 0 else None
    return tmp_path


@pytest.mark.long
@pytest.mark.timeout(420)
def test_up_ps_breakpoint_attach(cli, workspace):
    """It opens beside a cluster; in it `raydebug ps` shows the nodes, and a job's pause is attached and resumed."""

    def devcontainer(verb: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        argv = [cli, verb, "--workspace-folder", str(workspace), "--config", str(workspace / CONFIG), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)

    try:
        opened = devcontainer("up", timeout=300)
        assert opened.returncode == 0, opened.stdout[-2000:] + opened.stderr[-2000:]
        nodes = json.loads(devcontainer("exec", "raydebug", "ps", "--json").stdout)["nodes"]
        deadline = time.monotonic() + 60
        while [n["state"] for n in nodes] != ["alive", "alive"] and time.monotonic() < deadline:
            nodes = json.loads(devcontainer("exec", "raydebug", "ps", "--json").stdout)["nodes"]
        assert sorted(n["role"] for n in nodes) == ["head", "worker"]
        job = devcontainer("exec", "raydebug", "run", "--detach", "--", "python", "cases.py", "task")
        assert job.returncode == 0, job.stderr
        looked = devcontainer("exec", "raydebug", "attach", "next", "--timeout", "60", "-x", "p secret", "-x", "c")
        assert looked.stdout.split() == ["41"], looked.stderr
        (launch,) = json.loads((workspace / ".vscode" / "launch.json").read_text())["configurations"]
        assert (launch["cluster"], launch["target"]) == ("default", "all")
        assert devcontainer("exec", "test", "-f", launch["debugAdapterPath"]).returncode == 0
        assert devcontainer("exec", "test", "-x", launch["debugAdapterPython"]).returncode == 0
    finally:
        project = f"rdt-dev-{os.getpid()}"
        argv = [
            "docker",
            "compose",
            "--project-name",
            project,
            "down",
            "--volumes",
            "--timeout",
            "3",
            "--remove-orphans",
        ]
        subprocess.run(argv, cwd=workspace, capture_output=True, timeout=60, check=False)
