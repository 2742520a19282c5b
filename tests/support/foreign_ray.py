"""Ray clusters that raydebug has not started: `ray start --head --block`, as users start them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from raydebug.cluster.environment import ray_command
from raydebug.cluster.find import cluster_at
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import PURPOSES, choose_ports
from runs import ALMOST_FULL, wait_for

LOOPBACK = "127.0.0.1"


@dataclass
class ForeignRay:
    """A head, and what was started beside it.

    Args:
        folder: its private folder, with Ray's temp dir, the log and the token's file.
        ip: the address of its nodes.
        ports: by purpose.
        token: Ray's own; empty for a cluster without.
        more: variables that its programs have, and its users have not.
        before: the beginning of each command that starts a node.
    """

    folder: Path
    ip: str
    ports: dict[str, int]
    token: str
    before: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The dashboard."""
        return f"http://{LOOPBACK}:{self.ports['dashboard']}"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its programs, and of a user who may use it."""
        binaries = str(Path(sys.executable).parent)
        environ = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}
        if self.ip == LOOPBACK:
            environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray takes the machine's outer address
        mode = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.folder / "ray_token")}
        return environ | (mode if self.token else {"RAY_AUTH_MODE": "disabled"})

    def start(self, argv: list[str]) -> subprocess.Popen[bytes]:
        """Start a program of the cluster."""
        environ = {**ALMOST_FULL, **self.environ, **self.more}
        with (self.folder / "ray.log").open("ab") as log:
            argv = [*self.before, *argv]
            one = subprocess.Popen(argv, cwd="/", env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.started.append(one)
        return one

    def start_head(self, python: str = sys.executable) -> subprocess.Popen[bytes]:
        """Start the head in a Python, and wait until it can run jobs."""
        like = Cluster(
            name="", id="", kind="local", folder=self.folder, temp_dir=self.folder, python=python, ports=self.ports,
            cpus=8, gpus=0, debugger="", flavour="", created=0.0,
        )  # fmt: skip
        argv = ray_command(like)
        argv[argv.index(f"--node-ip-address={LOOPBACK}")] = f"--node-ip-address={self.ip}"
        started = self.start(argv)
        wait_for(lambda: started.poll() is not None or _is_up(self), "Ray's head")
        assert started.poll() is None, (self.folder / "ray.log").read_text()
        return started

    def start_worker(self, python: str = sys.executable, ip: str = "") -> subprocess.Popen[bytes]:
        """Start a further node, on the same host: in another Python, or at another address of loopback."""
        purposes = [one for one in PURPOSES if one not in ("dashboard", "gateway")]
        ports = choose_ports({}, {}, self.ports.values(), purposes)
        options = [
            f"--address={self.ip}:{self.ports['gcs']}", f"--node-ip-address={ip or self.ip}",
            "--num-cpus=1", "--num-gpus=0",
            f"--dashboard-agent-listen-port={ports['agent']}", f"--dashboard-agent-grpc-port={ports['agent_grpc']}",
            f"--runtime-env-agent-port={ports['runtime_env']}", f"--metrics-export-port={ports['metrics']}",
            f"--node-manager-port={ports['node_manager']}", f"--object-manager-port={ports['object_manager']}",
            "--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats",
        ]  # fmt: skip
        return self.start([python, "-P", "-m", "ray.scripts.scripts", "start", "--block", *options])

    def programs(self) -> dict[int, str]:
        """Return the command lines of its own processes that stay: Ray starts and ends workers as it likes."""
        found = {}
        for one in self.started:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(one.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        found[child.pid] = " ".join(child.cmdline())
        return {pid: line for pid, line in found.items() if not line.startswith("ray::") and "setup_worker" not in line}

    def end(self, one: subprocess.Popen[bytes], *, within_s: float = 3.0) -> None:
        """End a program with all that it has started: a raylet that is asked to end tells the head of it."""
        if one.poll() is not None:
            return
        family = [psutil.Process(one.pid), *psutil.Process(one.pid).children(recursive=True)]
        for left in family:
            with contextlib.suppress(psutil.Error):
                left.terminate()
        for left in psutil.wait_procs(family, timeout=within_s)[1]:
            with contextlib.suppress(psutil.Error):
                left.kill()
        one.wait(10)


def outer_address() -> str:
    """Return the address of this machine in its network; loopback without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # RFC 5737: nothing is sent
        return str(probe.getsockname()[0])
    return LOOPBACK


@contextlib.contextmanager
def foreign_ray(
    *,
    with_token: bool,
    ip: str = LOOPBACK,
    before: Sequence[str] = (),
    prepare: Callable[[ForeignRay], None] = lambda head: None,
    python: str = sys.executable,
) -> Iterator[ForeignRay]:
    """Start a head and wait until it can run jobs; at the end nothing of it is left.

    Args:
        with_token: whether it asks for one.
        ip: its address.
        before: the beginning of each command that starts a node.
        prepare: called before its start; it may start other programs, and set variables.
        python: that runs it.
    """
    folder = Path(tempfile.mkdtemp(prefix="rj-", dir="/tmp"))
    token = secrets.token_hex(32) if with_token else ""
    if token:
        (folder / "ray_token").touch(mode=0o600)
        (folder / "ray_token").write_text(token)
    ports = choose_ports({"dashboard": 0, "gateway": 0}, {}, [])
    head = ForeignRay(folder, ip, ports, token, list(before))
    try:
        prepare(head)
        head.start_head(python)
        yield head
    finally:
        for one in reversed(head.started):
            head.end(one, within_s=0)
        shutil.rmtree(folder, ignore_errors=True)


def cluster_of(head: ForeignRay) -> Cluster:
    """Return the cluster as its dashboard alone is known."""
    token = str(head.folder / "ray_token") if head.token else "/nowhere"
    os.environ["RAY_AUTH_TOKEN_PATH"] = token
    try:
        return cluster_at(head.url)
    finally:
        del os.environ["RAY_AUTH_TOKEN_PATH"]


def _is_up(head: ForeignRay) -> bool:
    """Return whether head and agent answer: jobs are started through the agent."""
    pages = (
        f"{LOOPBACK}:{head.ports['dashboard']}/api/gcs_healthz",
        f"{head.ip}:{head.ports['agent']}/api/local_raylet_healthz",
    )
    with contextlib.suppress(OSError):
        for page in pages:
            urllib.request.urlopen(f"http://{page}", timeout=2).close()
        return True
    return False


def python_without_raydebug(folder: Path) -> str:
    """Make an environment with every package of this one but raydebug, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (there,) = folder.glob("lib/python3*/site-packages")
    for path in sys.path:
        if path.endswith("site-packages"):
            for one in Path(path).iterdir():
                if not one.name.startswith("raydebug") and one.suffix != ".pth" and not (there / one.name).exists():
                    (there / one.name).symlink_to(one)
    return str(folder / "bin" / "python")
