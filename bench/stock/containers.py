"""A plain head and a plain worker in containers: F23, F24 on stock Ray. Needs an engine and the image core.

The image has raydebug installed; its hook does nothing, for no variable of a cluster is set. The network is internal to
the engine and nothing is published: there is no token here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from bench.stock.head import FETCH, PAUSED, ROOT, Row

Saw = dict[str, Any]
IMAGE = os.environ.get("RAYDEBUG_TEST_IMAGE", "raydebug:core")
ENVIRONMENT = ("RAY_AUTH_MODE=disabled", "RAY_USAGE_STATS_ENABLED=0", "PYTHONPATH=/repo", "PYTHONUNBUFFERED=1")
RAY = ("python", "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
NODES = "/api/v0/nodes?detail=1"


class Pair:
    """A head and a worker with 8 CPUs, on a network of their own."""

    def __init__(self, name: str) -> None:
        self.name, self.head, self.worker = name, f"{name}-head", f"{name}-worker"

    def ask(self, path: str) -> list[Row]:
        """Return the rows of one answer of the state API."""
        text = self.run(self.head, "python", "-S", "-c", FETCH, f"http://127.0.0.1:8265{path}")
        return list(json.loads(text)["data"]["result"]["result"])

    def run(self, container: str, *argv: str) -> str:
        """Run a program in a container to its end, and return what it printed."""
        return docker("exec", container, *argv)

    def start(self, container: str, *argv: str) -> subprocess.Popen[str]:
        """Start a program in a container."""
        return subprocess.Popen(["docker", "exec", container, *argv], stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def alive(self) -> int:
        """Return how many nodes Ray has for alive."""
        return [node["state"] for node in self.ask(NODES)].count("ALIVE")

    def wait_alive(self, count: int, within_s: float = 120.0) -> float:
        """Wait until so many nodes are alive; return how long that took."""
        begin = time.monotonic()
        while time.monotonic() < begin + within_s:
            with contextlib.suppress(subprocess.CalledProcessError, ValueError):
                if self.alive() == count:
                    break
            time.sleep(0.5)
        return time.monotonic() - begin

    @contextlib.contextmanager
    def disconnected(self) -> Iterator[None]:
        """Take the worker off the network."""
        docker("network", "disconnect", self.name, self.worker)
        try:
            yield
        finally:
            docker("network", "connect", self.name, self.worker)

    def paused(self) -> tuple[subprocess.Popen[str], Row]:
        """Start a task on the worker that pauses; return its driver and its row."""
        program = self.start(self.head, "python", "/repo/tests/jobs/cases.py", "on_worker")
        deadline = time.monotonic() + 60
        while not (rows := self.ask(PAUSED)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return program, rows[0]

    def now(self, program: subprocess.Popen[str], within_s: float = 5.0) -> Saw:
        """Say what became of a task."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(within_s)
        rows = self.ask(PAUSED)
        ended = program.poll() is not None
        return {
            "nodes alive": self.alive(),
            "paused rows": [[row["pid"], row["node_id"][:6]] for row in rows],
            "driver": f"ended, exit code {program.returncode}" if ended else "waits",
        }


@contextlib.contextmanager
def pair() -> Iterator[Pair]:
    """Run a head and a worker; they are gone with the block."""
    two = Pair(f"stock-faults-{secrets.token_hex(3)}")
    common = [word for variable in ENVIRONMENT for word in ("--env", variable)]
    common += ["--network", two.name, "--volume", f"{ROOT}:/repo:ro", "--shm-size", "300m", "--entrypoint", ""]
    docker("network", "create", "--internal", two.name)
    try:
        listen = ("--port=6379", "--dashboard-host=127.0.0.1", "--object-store-memory=100000000")
        docker("run", "--detach", "--name", two.head, "--network-alias", "head", *common, IMAGE,
               *RAY, "--head", "--num-cpus=2", *listen)  # fmt: skip
        two.wait_alive(1)
        docker("run", "--detach", "--name", two.worker, *common, IMAGE,
               *RAY, "--address=head:6379", "--num-cpus=8", "--object-store-memory=100000000")  # fmt: skip
        two.wait_alive(2)
        yield two
    finally:
        for argv in (("rm", "--force", two.worker, two.head), ("network", "rm", two.name)):
            subprocess.run(["docker", *argv], capture_output=True, timeout=60, check=False)


async def cut_from_the_head() -> Saw:
    """F23: the worker is without its network for 30 s, and for 120 s; its task is paused, nobody is attached."""
    saw = {}
    for cut_s in (30, 120):
        with pair() as two:
            program, row = two.paused()
            with two.disconnected():
                await asyncio.sleep(cut_s - 5)
                during = two.now(program, 1.0)
            joined_s = two.wait_alive(2)
            await asyncio.sleep(5)
            saw[f"cut for {cut_s} s"] = {
                "paused before": [row["pid"], row["node_id"][:6]],
                "during": during,
                "two nodes alive after s": round(joined_s),
                "after": two.now(program),
            }
    return saw


async def stands_still() -> Saw:
    """F24: the worker's container stands still for 60 s, while a client is attached to its task."""
    with pair() as two:
        program, row = two.paused()
        client = two.start(two.head, "python", "-m", "bench.stock.client", row["ip"], str(row["debugger_port"]), "20")
        assert client.stdout is not None
        attached = client.stdout.readline().strip()
        docker("pause", two.worker)
        await asyncio.sleep(55)
        during = two.now(program, 1.0)
        docker("unpause", two.worker)
        begin = time.monotonic()
        seen = [line.strip() for line in client.stdout]
        saw = {"client": attached, "during": during, "client saw": seen, "after": two.now(program, 10.0)}
        client.kill()
        return {**saw, "the client's last line after s": round(time.monotonic() - begin)}


def docker(*argv: str) -> str:
    """Run a docker command and return what it printed."""
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
