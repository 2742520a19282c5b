"""The main path in real containers, attached from the host through the one published debug port."""

from __future__ import annotations

import json
import subprocess

import psutil
import pytest

from containers import IMAGE
from raydebug.cluster.compose.engine import Container
from raydebug.cluster.compose.project import containers
from raydebug.cluster.state import Cluster
from runs import raydebug

BREAKPOINTS = [("task", "task"), ("actor", "Actor.method"), ("async_actor", "AsyncActor.method"), ("driver", "driver")]


@pytest.mark.timeout(120)
def test_nodes(cluster):
    """`ps --json` shows the head and both workers alive, each at an address of its own."""
    document = json.loads(raydebug("ps", "--name", cluster.name, "--json").stdout)
    assert document["kind"] == "compose"
    assert sorted((n["role"], n["state"]) for n in document["nodes"]) == [
        ("head", "alive"),
        ("worker", "alive"),
        ("worker", "alive"),
    ]
    assert len({n["ip"] for n in document["nodes"]}) == 3


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("case", "function"), BREAKPOINTS, ids=[b[0] for b in BREAKPOINTS])
def test_breakpoint(run, case, function):
    """A pause in a container is listed, attached and resumed from the host, as on a local cluster."""
    job = run("--", "python", "cases.py", case)
    (pause,) = job.pauses(1)
    assert (pause["function"], pause["file"]) == (function, "/workspace/cases.py")
    assert job.attach(pause["id"], "p secret").strip() == "41"
    assert "secret" in job.attach(pause["id"], "l"), "the source is shown, though no file of this host is there"
    job.attach(pause["id"], "c")
    assert f"done: {case}" in job.end()


@pytest.mark.timeout(180)
def test_break_from_outside(run):
    """`--break` names a file of the project or a module of the image, and is checked in the container."""
    job = run("--break", "spawned.py:spawned", "--", "python", "cases.py", "spawn")
    (pause,) = job.pauses(1)
    assert (pause["file"], pause["where"]) == ("/workspace/spawned.py", "spawned.py:spawned")
    job.attach(pause["id"], "c")
    (own,) = job.pauses(1)
    job.attach(own["id"], "c")
    assert "done: spawn" in job.end()
    wrong = run("--break", "no.such:thing", "--", "python", "cases.py", "task")
    assert "--break no.such:thing names nothing" in wrong.end(code=2)


@pytest.mark.timeout(120)
def test_edit_is_seen_at_once(run, project):
    """The next job runs a code edit on the host without a build."""
    (project / "edited.py").write_text("print('first')")
    assert "first" in run("--", "python", "edited.py").end()
    (project / "edited.py").write_text("print('second')")
    assert "second" in run("--", "python", "edited.py").end()


def test_outside_the_project(cluster, tmp_path):
    """A job from a folder outside the containers' mount is refused, with the mounted folder."""
    (tmp_path / "x.py").touch()
    done = raydebug("run", "--name", cluster.name, "--", "python", "x.py", cwd=tmp_path)
    assert done.returncode == 2
    assert f"error: the containers of cluster '{cluster.name}' do not see {tmp_path}" in done.stderr


# Security (requirements/security.md)


def test_published_on_loopback_only(cluster):
    """S1: the cluster publishes two ports, on 127.0.0.1 only."""
    ours = {cluster.ports["dashboard"], cluster.ports["gateway"]}
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port in ours]
    assert {c.laddr.port for c in listening} == ours
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    for container in containers(cluster):
        ports = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Ports}}", container.name))
        bound = [b for bindings in ports.values() for b in bindings or []]
        assert all(b["HostIp"] == "127.0.0.1" for b in bound)


def test_locked_down(cluster):
    """S11-S15: what the compose files say holds: no capability, no new privileges, not root, a read-only image."""
    for container in containers(cluster):
        status = docker("exec", container.name, "cat", "/proc/1/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(fields["CapEff"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        assert "0" not in fields["Uid"].split()
        wrote = subprocess.run(["docker", "exec", container.name, "touch", "/opt/venv/x"], capture_output=True)
        assert wrote.returncode != 0


def test_token_is_nowhere(cluster):
    """S4, S6: the token has 256 bits, only its owner can read it, and it is in no inspect, log, argv or image layer."""
    token = cluster.token
    assert len(token) == 64
    assert cluster.token_file.stat().st_mode & 0o777 == 0o600
    assert cluster.folder.stat().st_mode & 0o777 == 0o700
    places = [docker("image", "history", "--no-trunc", IMAGE)]
    for container in containers(cluster):
        places += [docker("inspect", container.name), docker("logs", container.name), docker("top", container.name)]
    assert not [place for place in places if token in place]


WORKERS_PORTS = range(10002, 11000)  # the ports of Ray's workers among themselves: entrypoints/node.py


def listening(container: Container) -> set[tuple[str, int]]:
    """Return the listening addresses and ports of a container, without Docker's own name server."""
    rows = docker("exec", container.name, "cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines()
    fields = [row.split() for row in rows]
    found = {tuple(row[1].rsplit(":", 1)) for row in fields if len(row) > 3 and row[3] == "0A"}
    return {(address, int(port, 16)) for address, port in found if address != "0B00007F"}


def opened_by_a_pause(run, cluster: Cluster, *options: str) -> set[tuple[str, int]]:
    """Return the sockets that a node listens on only during a pause, without Ray's own ports."""
    nodes = [c for c in containers(cluster) if c.service in ("head", "worker")]
    before = {node.address: listening(node) for node in nodes}
    job = run(*options, "--", "python", "cases.py", "task")
    (pause,) = job.pauses(1)
    (node,) = [c for c in nodes if c.address == pause["ip"]]
    opened = listening(node) - before[node.address]
    job.attach(pause["id"], "c")
    assert "done: task" in job.end()
    return {(address, port) for address, port in opened if port not in WORKERS_PORTS}


@pytest.mark.timeout(120)
def test_no_debug_socket_in_a_worker(run, cluster):
    """S7: a pause opens no listening socket in its container, apart from Ray's own ports."""
    assert opened_by_a_pause(run, cluster) == set()


@pytest.mark.timeout(120)
def test_legacy_debugger_listens_inside_its_container(run, cluster):
    """S8: a legacy breakpoint's socket is on its container's own loopback, unreachable from other containers."""
    ((address, _),) = opened_by_a_pause(run, cluster, "--debugger", "legacy")
    assert address == "0100007F", "127.0.0.1"


def docker(*arguments: str) -> str:
    """Run a docker command and return its output."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout
