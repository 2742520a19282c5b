"""What keeps a cluster, without one: how often a part is started again, and how long a container has been silent."""

from __future__ import annotations

import datetime
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from raydebug import process
from raydebug.cluster import interpreter, keeper, local, locks, private_folders, ray_node, state, tunnel
from raydebug.cluster.compose import engine
from raydebug.cluster.keeper import Restarts
from raydebug.cluster.supervisor import Supervisor
from raydebug.errors import RaydebugError
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

    def look(self) -> ray_node.NodeCondition:
        return ray_node.NodeCondition(
            "hung", "no answer for 300 s from the raylet, whose process exists; stack: f", 300.0
        )


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

    known = a_cluster(supervisor_pid=sleeper.pid, supervisor_birth=birth_of(sleeper.pid))
    real = _pslinux.boot_time
    monkeypatch.setattr(_pslinux, "boot_time", lambda: real() + step_s)
    assert local.supervisor_of(known).pid == sleeper.pid


@pytest.mark.parametrize("record", [{}, {"supervisor_birth": "boot 5"}])
def test_another_process_with_the_pid(sleeper: subprocess.Popen[bytes], record: dict[str, Any]):
    """A process that has the pid of a supervisor that is gone is not taken for it."""
    assert local.supervisor_of(a_cluster(supervisor_pid=sleeper.pid, **record)) is None


def a_cluster(**supervisor: Any) -> state.Cluster:
    here = Path()
    return state.Cluster("x", "id", "local", here, here, sys.executable, {}, 1, 0, "off", "core", 0.0, **supervisor)


class OthersProcess:
    """A process that this user may not signal, as one by sudo."""

    pid = 4711

    def terminate(self) -> None:
        raise psutil.AccessDenied(self.pid)

    kill = terminate


def test_processes_of_another_user(monkeypatch: pytest.MonkeyPatch):
    """What this user may not end is returned, or left, and the rest goes on."""
    other = OthersProcess()
    monkeypatch.setattr(psutil, "wait_procs", lambda found, timeout: ([], found))
    monkeypatch.setattr(local, "runs", lambda _: True)
    assert local.kill_all(lambda: [other], time.monotonic() + 0.1) == [other]
    monkeypatch.setattr(tunnel, "supervisor_of", lambda _: other)
    monkeypatch.setattr(tunnel, "below", lambda _: [other])
    tunnel.close_way(a_cluster())
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [other])
    keeper.end_descendants(reap=lambda: None)


@pytest.mark.parametrize("why", ["it has ended 6 times", None])
def test_gateway_that_stays_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str | None):
    """A gateway is up again once it answers, not where the supervisor listens; what keeps it down is quoted."""
    monkeypatch.setattr(local, "GATEWAY_TIMEOUT_S", 0.3)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    answers = ["none"]
    monkeypatch.setattr(local, "ask", lambda url, timeout_s: answers[0])
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = {"gateway": server.getsockname()[1]}
        kept = replace(a_cluster(), folder=tmp_path, ports=ports)
        state.write_status(kept, {"gateway": why})
        with pytest.raises(RaydebugError) as failure:
            local._start_gateway_again(kept, lambda _: None)
    assert failure.value.cause == (why or f"http://127.0.0.1:{ports['gateway']}/health does not answer")
    state.write_status(kept, {"gateway": None})
    answers[0] = "ok"
    local._start_gateway_again(kept, lambda _: None)


@pytest.mark.parametrize(("name", "is_there"), [("raydebug.pth", True), ("other.pth", False)])
def test_hook_in_the_users_site(tmp_path: Path, name: str, is_there: bool):
    """The hook is found where `pip install --user` puts it."""
    (tmp_path / name).touch()
    nowhere = (
        "import site, sysconfig; sysconfig.get_paths = lambda: {'purelib': '/nowhere'}; site.getsitepackages = list\n"
        f"site.getusersitepackages = lambda: {str(tmp_path)!r}; import atexit; atexit.register(print, 'bye')\n"
    )
    assert process.answer_in(process.run([sys.executable, "-c", nowhere + interpreter.probe()]))["hook"] == is_there


@pytest.mark.parametrize(
    ("text", "what", "cause"),
    [
        (None, "' failed with exit code 126", "Permission denied"),
        ("not a program", "' failed with exit code 126", "Exec format error"),
        ("#!/bin/sh\n", " is no Python", "did not answer as a Python does"),
        ("#!/bin/sh\necho hello\n", " is no Python", "did not answer as a Python does"),
    ],
)
def test_what_is_no_python(tmp_path: Path, text: str | None, what: str, cause: str):
    """`--python` with a folder, a file of data or another program is refused, with what to do."""
    python = tmp_path / "python"
    if text is None:
        python.mkdir()
    else:
        python.write_text(text)
        python.chmod(0o755)
    with pytest.raises(RaydebugError, match=what) as failure:
        interpreter.probe_environment(str(python))
    assert cause in failure.value.cause
    assert failure.value.fix == "name a working interpreter with --python"


def test_birth_of_a_process(sleeper: subprocess.Popen[bytes]):
    """The birth of a process stays the same, is of that process alone, and is empty once the process is gone."""
    assert birth_of(sleeper.pid) == birth_of(sleeper.pid) != birth_of(os.getpid())
    sleeper.kill()
    sleeper.wait()
    assert birth_of(sleeper.pid) == ""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """The supervisor of a recorded cluster that a `run` has started; its Ray is yet to come."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(keeper, "POLL_S", 0.01)
    folder = state.make_folder("open")
    state.make_token(folder)
    (folder / "t").mkdir(mode=0o700)
    ports = {**PORTS, "gateway": 0, "dial": 0}
    cluster = replace(a_cluster(owner=4711), name="open", folder=folder, temp_dir=folder / "t", ports=ports)
    state.save_cluster(cluster)
    return Supervisor(cluster)


def test_cluster_of_runs_ends_with_the_last_one(kept: Supervisor):
    """A cluster of a `run` is over when no `run` uses it any more, however that one ended."""
    with locks.Use("open"):
        assert not kept._is_over()
    assert kept._is_over()
    assert kept._is_over(), "the one that ends it holds the lock"
    waiting = subprocess.run(
        [sys.executable, "-c", "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_SH | fcntl.LOCK_NB)",
         str(state.clusters_dir() / "open.use")], capture_output=True, check=False,
    )  # fmt: skip
    assert b"BlockingIOError" in waiting.stderr


def test_cluster_that_up_has_taken_over_stays(kept: Supervisor):
    """A cluster that `up` has taken over from a `run` goes on when no `run` uses it."""
    with locks.Use("open"):
        state.save_cluster(replace(kept.cluster, owner=0))
        assert not kept._is_over()
    assert not kept._is_over()
    with locks.Use("open") as use:
        assert use.is_last(), "the supervisor holds no lock"


def test_full_disk_ends_no_cluster(kept: Supervisor, monkeypatch: pytest.MonkeyPatch):
    """On a full disk a cluster goes on, also a hung one; its gateway is started again; its status is written later."""
    alive = [sys.executable, "-c", "input()"]
    monkeypatch.setattr(keeper, "REAP_PERIOD_S", 0.0)
    monkeypatch.setattr(ray_node, "RayNode", lambda *_: HungNode())
    monkeypatch.setattr(kept, "_health_pages", dict)
    kept._take_ports()
    kept._ray = subprocess.Popen(alive, stdin=subprocess.PIPE)
    kept._gateway = subprocess.Popen([sys.executable, "-c", ""])
    kept._gateway.wait()
    seen: list[str] = []

    class Node(HungNode):
        def look(self) -> ray_node.NodeCondition:
            seen.append(kept._status["ray"] and kept._status["ray"]["state"])
            if len(seen) == 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            kept.stopping = len(seen) == 5
            return super().look()

    monkeypatch.setattr(ray_node, "RayNode", lambda *_: Node())
    monkeypatch.setattr(process, "start", lambda *_, **__: subprocess.Popen(alive, stdin=subprocess.PIPE))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with locks.Use("open"), (kept.cluster.folder / "supervisor.log").open("w") as log, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", log)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            assert kept._watch() is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            for one in (kept._ray, kept._gateway):
                one.communicate(b"\n")
    assert seen == [None, "hung", "hung", "hung", "hung"]
    condition = state.read_status(kept.cluster)["ray"]
    assert (condition["state"], condition["reason"][:39]) == ("hung", "no answer for 300 s from the raylet, wh")


def start_ray(kept: Supervisor, monkeypatch: pytest.MonkeyPatch, gives_up_s: float) -> tuple[str | None, str]:
    """Start a Ray that ends at once, twice, and is up the third time; return the failure, and Ray's log."""
    program = (
        "import os, sys, time; path = sys.argv[1]; tries = os.path.getsize(path) if os.path.exists(path) else 0\n"
        "open(path, 'a').write('x')\n"
        "if tries == 2: sys.exit(input())\n"
        "print('an error: the last 20 lines of dashboard.log:')\nprint('OSError: no such device')\n"
        "print('shutting down')\nsys.exit('Exception: The current node timed out')"
    )
    tries = kept.cluster.folder / "tries"
    monkeypatch.setattr(ray_node, "RAY_GIVES_UP_S", gives_up_s)
    monkeypatch.setattr(keeper, "ray_command", lambda *_: [sys.executable, "-c", program, str(tries)])
    with_pipe = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT}
    monkeypatch.setattr(
        process, "start", lambda argv, *, output, **_: subprocess.Popen(argv, stdout=output, **with_pipe)
    )
    monkeypatch.setattr(
        kept, "_first_missing", lambda: None if tries.exists() and tries.read_text() == "xxx" else "the raylet's agent"
    )
    ended: list[int | None] = []
    monkeypatch.setattr(keeper, "end_descendants", lambda but=None, reap=None: ended.append(but))
    kept._gateway = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with locks.Use("open"):
        kept._start_ray("starting Ray")
        failure = kept._wait_until_up()
    for one in (kept._ray, kept._gateway):
        one.communicate(b"\n")
    assert ended == ([] if failure else [kept._gateway.pid] * 2)
    return failure, (kept.cluster.folder / "ray.log").read_text()


def test_ray_that_gives_up_is_started_again(kept: Supervisor, monkeypatch: pytest.MonkeyPatch):
    """A Ray that has waited in vain for its own processes is started again while `up` waits; its log is kept."""
    failure, log = start_ray(kept, monkeypatch, gives_up_s=0.0)
    assert failure is None
    assert log.count("The current node timed out") == 2
    assert state.read_status(kept.cluster)["phase"].startswith("Ray gave up on its start after ")


def test_ray_that_refuses_is_not_started_again(kept: Supervisor, monkeypatch: pytest.MonkeyPatch):
    """A Ray that ends before it could have waited for anything has failed; the reason has its last lines, whole."""
    failure, _ = start_ray(kept, monkeypatch, gives_up_s=60.0)
    assert failure == (
        "Ray ended while it started (exit code 1): OSError: no such device / shutting down"
        " / Exception: The current node timed out"
    )


def test_reason_of_a_failed_start_names_logs_that_exist(kept: Supervisor, monkeypatch: pytest.MonkeyPatch):
    """The reason of a dead cluster names a folder with its logs that is there when the cluster's own is not."""
    monkeypatch.setattr(kept, "_start_gateway", lambda: None)
    monkeypatch.setattr(kept, "_start_ray", lambda _: (kept.cluster.folder / "ray.log").write_text("why\n"))
    monkeypatch.setattr(kept, "_wait_until_up", lambda: "it failed")
    monkeypatch.setattr(kept, "_end_all", lambda: setattr(kept, "stopping", True))
    with locks.Use("open"):
        kept._keep()
    reason = state.read_status(kept.cluster)["reason"]
    private_folders.remove_private(kept.cluster.folder)
    assert reason == f"it failed; its logs: {state.kept_logs('open')}"
    assert (state.kept_logs("open") / "ray.log").read_text() == "why\n"


def test_dead_cluster_turns_clients_away(kept: Supervisor, monkeypatch: pytest.MonkeyPatch):
    """What connects to the ports of a dead cluster is closed: no client waits for an answer that cannot come."""
    monkeypatch.setattr(kept, "_start_gateway", lambda: None)
    monkeypatch.setattr(kept, "_start_ray", lambda _: None)
    monkeypatch.setattr(kept, "_wait_until_up", lambda: "it failed")
    monkeypatch.setattr(keeper, "end_descendants", lambda: None)  # those of this process are pytest's
    keeping = threading.Thread(target=kept._keep)
    with locks.Use("open"):
        keeping.start()
        while state.read_status(kept.cluster)["phase"] != "dead":
            assert keeping.is_alive()
        with socket.create_connection(kept._listening[0].getsockname(), timeout=20) as client:
            assert client.recv(1) == b""
        kept.stopping = True
        keeping.join()


def test_dashboards_port_that_is_taken_late(kept: Supervisor, monkeypatch: pytest.MonkeyPatch):
    """Another user who takes the dashboard's port while the other pages are asked does not get the token."""
    asked: list[str] = []
    monkeypatch.setattr(ray_node, "ask", lambda _url, token, _limit_s: asked.append(token) or "ok")
    monkeypatch.setattr(keeper, "stranger_listening", lambda *_: 65534 if asked else None)
    assert kept._first_missing() == "Ray's dashboard, whose port another user of this machine has taken"
    assert asked == ["", ""]


def test_peer_that_connects_without_end(kept: Supervisor):
    """A peer that connects again and again does not keep the supervisor from its other work."""
    kept._listening = [mock.Mock(accept=mock.Mock(return_value=(mock.Mock(), None)))]
    kept._turn_away()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("a past error\nTraceback\nException: timed out\nraydebug: ended", "Traceback / Exception: timed out /"),
        ("error: no\ncause: it\nfix: that\nraydebug: on the way out", "error: no / cause: it / fix: that"),
    ],
)
def test_last_words_of_a_container(log: str, words: str):
    """The reason of a container that did not start is its entrypoint's own, or its last lines, not any with `error`."""
    client = mock.Mock()
    client.containers.get.return_value.logs.return_value = log.encode()
    found = engine.Engine(client, "here").last_words(mock.Mock())
    assert found.startswith(words)


def test_shared_memory_that_is_left(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of segments that came after a cluster's start, `down` names those that no process has mapped."""
    cluster = state.Cluster("x", "", "local", tmp_path, tmp_path, "", created=time.time() - 1.0)
    left, mapped = (SharedMemory(create=True, size=4096) for _ in range(2))
    try:
        left.close()
        local._name_left_memory(cluster)
        said = capsys.readouterr().err
        assert (f"/dev/shm/{left.name}" in said, f"/dev/shm/{mapped.name}" in said) == (True, False)
        local._name_left_memory(replace(cluster, created=time.time() + 60.0))
        assert capsys.readouterr().err == ""
    finally:
        mapped.close()
        for segment in (left, mapped):
            segment.unlink()
