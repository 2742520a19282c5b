"""Containers, as the tests of faults and security look at them and harm them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pexpect

from raydebug.cluster import state
from raydebug.cluster.compose import engine
from raydebug.cluster.compose.engine import Container
from raydebug.cluster.compose.project import containers, project_of
from raydebug.cluster.find import find_cluster
from raydebug.cluster.state import Cluster
from runs import RAYDEBUG, raydebug, wait_for

# Several checkouts may share one engine: each can name the image that it has built.
IMAGE = os.environ.get("RAYDEBUG_TEST_IMAGE", "raydebug:core")
READY_S = 90.0
UP = ("up", "--cluster", "compose", "--flavour", "core", "--dashboard-port", "0", "--gateway-port", "0", "--name")


def docker(*arguments: str, timeout_s: float = 60.0) -> str:
    """Run a docker command and return what it printed."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=timeout_s)
    return done.stdout + done.stderr if arguments[0] == "logs" else done.stdout


def container_of(cluster: Cluster, service: str) -> Container:
    """Return the one container of a service."""
    (found,) = [c for c in containers(cluster) if c.service == service]
    return found


def is_healthy(cluster: Cluster) -> bool:
    """Return whether all containers are healthy and Ray has as many nodes alive as there are."""
    found = containers(cluster)
    if len(found) != cluster.workers + 2 or not all(c.is_ready for c in found):
        return False
    document = json.loads(raydebug("ps", "--name", cluster.name, "--json").stdout)
    return [n["state"] for n in document["nodes"]].count("alive") == cluster.workers + 1


def wait_healthy(cluster: Cluster, timeout_s: float = READY_S) -> None:
    """Wait until a cluster is whole again."""
    wait_for(lambda: is_healthy(cluster), "every node to be healthy", timeout_s)


# By pid, as everywhere: what a name matches is found first, in the container's own process table.
_KILL = """
import os, pathlib, signal, sys
found = []
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split(chr(0))
        comm = (folder / "comm").read_text().strip()
    except OSError:
        continue
    if comm == sys.argv[1] or " ".join(words).startswith(sys.argv[1]):
        found.append(int(folder.name))
for pid in found:
    os.kill(pid, signal.SIGKILL)
sys.exit(0 if found else 1)
"""


def kill_process(container: Container, name: str) -> None:
    """Kill the processes in a container that are this program, or whose command line begins so."""
    docker("exec", container.name, "python3", "-S", "-c", _KILL, name)


class Attached:
    """A person's `raydebug attach` in a terminal, at the prompt."""

    def __init__(self, cluster: Cluster, pause_id: str, folder: Path) -> None:
        self._cluster = cluster
        self._child = pexpect.spawn(
            str(RAYDEBUG), ["attach", pause_id, "--name", cluster.name], cwd=str(folder), encoding="utf-8", timeout=20,
            dimensions=(40, 160),
        )  # fmt: skip
        self._child.expect("secret|cases.py")
        self._child.expect(r"\(raydebug|>")

    def ask(self, command: str, until: str | None = None, within_s: float = 20.0) -> str:
        """Type a command; with `until`, wait for this in the answer, and return all until then."""
        self._child.sendline(command)
        if until is None:
            return ""
        self._child.expect_exact(until, timeout=within_s)
        return str(self._child.before) + str(self._child.after)

    def ended(self, within_s: float) -> tuple[int, str, float]:
        """Wait until it has ended by itself; return its exit code, what it printed, and how long that took."""
        started = time.monotonic()
        try:
            self._child.expect(pexpect.EOF, timeout=within_s)
        except pexpect.TIMEOUT:
            logs = "\n".join(docker("logs", "--timestamps", "--tail", "12", c.name) for c in self._containers())
            now = time.strftime("%H:%M:%S", time.gmtime())
            raise AssertionError(f"still attached after {within_s} s ({now}): {self._child.before}\n{logs}") from None
        printed = str(self._child.before)
        self._child.wait()
        return int(self._child.exitstatus or 0), printed, time.monotonic() - started

    def _containers(self) -> list[Container]:
        return [c for c in containers(self._cluster) if c.service in ("head", "worker")]

    def close(self) -> None:
        """End it whatever it does."""
        self._child.close(force=True)


def remove_all(name: str) -> None:
    """Remove whatever there is of a cluster by this name: record, containers, networks, volumes."""
    project = project_of(name)
    wanted = f"label=com.docker.compose.project={project}"
    for kind, remove in (("ps -aq", "rm -f"), ("network ls -q", "network rm"), ("volume ls -q", "volume rm -f")):
        found = docker(*kind.split(), "--filter", wanted).split()
        if found:
            subprocess.run(["docker", *remove.split(), *found], capture_output=True, timeout=60, check=False)
    cluster = find_cluster(name)
    if cluster is not None:
        state.forget(cluster)


def what_is_left(name: str) -> dict[str, Any]:
    """Return what there is of a cluster by this name; empty when nothing."""
    project = project_of(name)
    volumes = docker("volume", "ls", "-q", "--filter", f"label=com.docker.compose.project={project}").split()
    left = {
        "objects": engine.connect().leftovers(project),
        "volumes": volumes,
        "record": [] if find_cluster(name) is None else [name],
    }
    return {kind: found for kind, found in left.items() if found}
