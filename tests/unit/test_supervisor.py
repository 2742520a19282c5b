"""What keeps a cluster, without one: how often a part is started again, and how long a container has been silent."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from raydebug.cluster import local, ray_node, state, supervisor
from raydebug.cluster.compose import engine
from raydebug.cluster.supervisor import Restarts, Supervisor
from raydebug.process import birth_of


def test_restarts_are_counted_within_a_window():
    """Restarts count for ten minutes, not for a cluster's life; a refused one does not count."""
    now = 0.0
    restarts = Restarts(5, 600.0, clock=lambda: now)
    for _ in range(40):  # one every three minutes, for two hours
        assert restarts.take()
        now += 180.0
    restarts.reset()
    taken = []
    for second in (0, 1, 2, 3, 400, 401, 599, 600, 601):
        now = 100_000.0 + second
        taken.append(restarts.take())
    assert taken == [True, True, True, True, True, False, False, True, True]
    assert not restarts.take()
    restarts.reset()
    assert restarts.take()


class Listed:
    """A container as the docker SDK gives it."""

    id, name, labels = "1", "x-head-1", {"com.docker.compose.service": "head"}

    def __init__(self, streak: int, outcomes: list[int], ago_s: float) -> None:
        def moment(seconds_ago: float) -> str:
            zone = datetime.timezone(datetime.timedelta(hours=1))
            return datetime.datetime.fromtimestamp(time.time() - seconds_ago, zone).isoformat()

        log = [{"Start": moment(ago_s - 10.0 * i), "ExitCode": code} for i, code in enumerate(outcomes)]
        health = {"Status": "healthy", "FailingStreak": streak, "Log": log}
        self.attrs = {"State": {"Status": "running", "Health": health},
                      "Config": {"Healthcheck": {"Interval": 10_000_000_000}}}  # fmt: skip


@pytest.mark.parametrize(
    ("streak", "outcomes", "silent_s"),
    [(0, [0, 0, 0, 0, 0], 0), (2, [0, 0, 0, 1, 1], 20), (5, [1, 1, 1, 1, 1], 50), (9, [1, 1, 1, 1, 1], 90)],
)
def test_silence_of_a_container(streak: int, outcomes: list[int], silent_s: float):
    """F62: how long a container gives no answer follows from its health checks, also beyond the five kept."""
    assert engine._describe(Listed(streak, outcomes, 50.0)).silent_s == pytest.approx(silent_s, abs=2)


PORTS = dict.fromkeys(("dial", "gateway", "dashboard", "gcs", "agent"), 1)


class HungNode:
    """A node that has not answered for 300 s."""

    def look(self) -> ray_node.Condition:
        return ray_node.Condition("hung", "no answer for 300 s from the raylet, whose process exists; stack: f", 300.0)


@pytest.mark.parametrize("end_when_hung", [True, False])
def test_end_when_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_when_hung: bool):
    """`up --end-when-hung` ends a cluster that is hung, with the reason; without it the cluster only says so."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "token").write_text("t" * 64)
    cluster = state.Cluster("open", "id", "local", tmp_path, tmp_path, sys.executable, PORTS, 1, 0, "off", "core", 0.0)
    kept = Supervisor(replace(cluster, end_when_hung=end_when_hung))
    monkeypatch.setattr(supervisor, "POLL_S", 0.01)
    monkeypatch.setattr(supervisor.ray_node, "RayNode", lambda *_: HungNode())
    monkeypatch.setattr(kept, "_health_pages", dict)
    kept._ray = kept._gateway = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ending = threading.Timer(0.5, setattr, (kept, "stopping", True))
    ending.start()
    try:
        failure = kept._watch()
    finally:
        ending.cancel()
        kept._ray.communicate(b"\n")
    if end_when_hung:
        assert failure == "hung: no answer for 300 s from the raylet, whose process exists; stack: f"
        return
    assert failure is None
    said = json.loads((tmp_path / "status.json").read_text())["ray"]
    assert said["state"] == "hung"
    assert said["reason"].startswith("no answer for 300 s from the raylet")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of a supervisor."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as program:
        yield program
        program.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="its /proc")
@pytest.mark.parametrize("step_s", [-7200, -2, 0, 2, 7200])
def test_clock_that_is_set(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, step_s: int):
    """The supervisor of a cluster is found after the wall clock was set: /proc/stat's btime moves with it."""
    from psutil import _pslinux

    started, birth = psutil.Process(sleeper.pid).create_time(), birth_of(sleeper.pid)
    known = a_cluster(supervisor_pid=sleeper.pid, supervisor_started=started, supervisor_birth=birth)
    real = _pslinux.boot_time
    monkeypatch.setattr(_pslinux, "boot_time", lambda: real() + step_s)
    assert local.supervisor_of(known).pid == sleeper.pid


@pytest.mark.parametrize("record", [{"supervisor_started": 5.0}, {"supervisor_birth": "boot 5"}])
def test_another_process_with_the_pid(sleeper: subprocess.Popen[bytes], record: dict[str, Any]):
    """A process that has the pid of a supervisor that is gone is not taken for it."""
    assert local.supervisor_of(a_cluster(supervisor_pid=sleeper.pid, **record)) is None


def test_record_of_an_earlier_version(sleeper: subprocess.Popen[bytes]):
    """A running cluster whose record has no birth of its supervisor, as raydebug 0.1 wrote it, is found."""
    started = psutil.Process(sleeper.pid).create_time()
    assert local.is_alive(a_cluster(supervisor_pid=sleeper.pid, supervisor_started=started))


def a_cluster(**supervisor: Any) -> state.Cluster:
    here = Path()
    return state.Cluster("x", "id", "local", here, here, sys.executable, {}, 1, 0, "off", "core", 0.0, **supervisor)


def test_birth_of_a_process(sleeper: subprocess.Popen[bytes]):
    """The birth of a process stays the same, is of that process alone, and is empty once the process is gone."""
    assert birth_of(sleeper.pid) == birth_of(sleeper.pid) != birth_of(os.getpid())
    sleeper.kill()
    sleeper.wait()
    assert birth_of(sleeper.pid) == ""
