"""Random parts of a cluster are killed while three tasks are paused: only the killed parts are lost.

Five kills; RAYDEBUG_TEST_LONG=1 makes them twenty. RAYDEBUG_TEST_SEED=N repeats the order of a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raydebug.cluster import local
from raydebug.cluster.find import find_cluster, load_cluster
from raydebug.cluster.state import Cluster
from raydebug.cluster.supervisor import RESTARTS
from raydebug.errors import RaydebugError
from runs import Run, raydebug, starting_runs, wait_for

KILLS = 20 if os.environ.get("RAYDEBUG_TEST_LONG") else 5
SEED = int(os.environ.get("RAYDEBUG_TEST_SEED") or random.randrange(1 << 16))
TASKS = 3
JOB = """
import sys
import ray

ray.init()

@ray.remote(max_retries=-1, runtime_env={"env_vars": {"RAYDEBUG_GATEWAY": sys.argv[1]}})
def task(number):
    breakpoint()
    return number

print("the answers are", ray.get([task.remote(number) for number in range(int(sys.argv[2]))]), flush=True)
"""


class Cable:
    """A relay from processes to the gateway; single connections through it can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    pair = near, socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # no gateway is there
                    near.close()
                    continue
                self.pairs.append(pair)
                for one, other in (pair, pair[::-1]):
                    threading.Thread(target=self._carry, args=(one, other, pair), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        self.cut(pair)

    def cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        """Close a connection on both sides."""
        with contextlib.suppress(ValueError):
            self.pairs.remove(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections."""
        self._server.close()
        for pair in list(self.pairs):
            self.cut(pair)


@pytest.fixture
def kills(private_state: Path) -> Iterator[Cluster]:
    """A cluster for this test alone."""
    done = raydebug("up", "--cluster", "local", "--name", "kills", "--dashboard-port", "0", "--gateway-port", "0",
                    timeout=200)  # fmt: skip
    assert done.returncode == 0, done.stderr
    yield load_cluster("kills")
    left = find_cluster("kills")
    if left is not None:
        local.take_down(left)


def order(chance: random.Random) -> list[str]:
    """Return the parts to kill, in order; the supervisor is last, because without it nothing restarts a gateway."""
    kinds = ["gateway", "worker", "connection"]
    drawn: list[str] = []
    while len(drawn) < KILLS - 1 - len(kinds):
        kind = chance.choice(kinds)
        if kind != "gateway" or drawn.count("gateway") < RESTARTS - 1:
            drawn.append(kind)
    whole = kinds + drawn
    chance.shuffle(whole)
    return [*whole, "supervisor"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_random_kills(kills: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """F61, S31: after random kills the other pauses stay, `down` leaves nothing, and the audit log can be read."""
    chance = random.Random(SEED)
    kinds = order(chance)
    record_property("killed", f"{' '.join(kinds)} (seed {SEED})")
    (tmp_path / "job.py").write_text(JOB)
    cable = Cable(kills.ports["dial"])
    with starting_runs(kills, tmp_path) as start:
        job: Run = start("--", "python", "job.py", f"127.0.0.1:{cable.port}", str(TASKS))
        paused = {pause["pid"] for pause in job.pauses(TASKS, timeout_s=120)}
        for kind in kinds:
            killed = kill(kind, kills, cable, sorted(paused), chance)
            now = listed_again(job, without=killed)
            assert paused - killed <= now, f"{kind}: {paused - killed - now} are lost\n{job.text}"
            paused = now
        family = local.marked_processes(kills)
        for pause in job.listed():
            job.attach(pause["id"], "p number", "c")
        wait_for(lambda: "the answers are [0, 1, 2]" in job.text, "the job's answer", run=job)
    done = raydebug("down", "--name", "kills")
    assert done.returncode == 0, done.stderr
    cable.close()
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert local.marked_processes(kills) == []
    assert not kills.temp_dir.exists()
    for purpose, port in kills.ports.items():
        with socket.socket() as one:
            assert one.connect_ex(("127.0.0.1", port)) != 0, purpose
    left = {path.name for path in kills.folder.iterdir()}
    assert left <= {"ports.json"}, left
    audit = json.loads(raydebug("logs", "--audit", "--name", "kills", "--json").stdout)["audit"]
    events = [line["event"] for line in audit]
    assert (events.count("attach"), events.count("resume")) == (TASKS, TASKS), audit


def kill(kind: str, cluster: Cluster, cable: Cable, workers: list[int], chance: random.Random) -> set[int]:
    """Kill one process of a kind, wait until it has ended, and return the workers that ended with it."""
    if kind == "connection":
        cable.cut(chance.choice(cable.pairs))
        return set()
    if kind == "worker":
        victim = psutil.Process(chance.choice(workers))
    elif kind == "supervisor":
        victim = psutil.Process(cluster.supervisor_pid)
    else:
        (victim,) = [one for one in psutil.Process(cluster.supervisor_pid).children() if is_gateway(one)]
    victim.send_signal(signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.wait(30)
    return {victim.pid} if kind == "worker" else set()


def is_gateway(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "raydebug.gateway" in process.cmdline()
    return False


def listed_again(job: Run, without: set[int]) -> set[int]:
    """Wait until the number of listed pauses equals that of the tasks, and return their processes."""
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        nonlocal found
        found = []
        with contextlib.suppress(RaydebugError):  # no gateway is there
            found = [pause for pause in job.listed() if pause["pid"] not in without]
        return len({pause["pid"] for pause in found if pause["state"] == "waiting"}) == TASKS

    wait_for(enough, f"{TASKS} pauses", timeout_s=120, run=job)
    return {pause["pid"] for pause in found}
