"""Parts of `raydebug up --join` that need no Ray: what runs on the nodes, the way to the head, bad input."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import socketserver
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import runs
from gateway_under_test import open_gateway
from raydebug.cluster import connection, joined_job
from raydebug.cluster.find import cluster_around_us
from raydebug.jobs.submit import node_variables

NODE = {
    "ip": "10.0.0.2", "python": "3.12.1", "executable": "/opt/python", "raydebug": "0.1.0", "ray": "2.60.0",
    "debugpy": "1.8", "hook": True,
}  # fmt: skip


def error_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    lines = done.stderr.strip().splitlines()[-3:]
    assert [line.partition(":")[0] for line in lines] == ["error", "cause", "fix"], done.stderr
    return lines


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"raydebug": None}, "its Python 3.12.1 (/opt/python) has no raydebug"),
        ({"debugpy": None}, "its Python 3.12.1 (/opt/python) has no debugpy"),
        ({"raydebug": "0.2.0"}, "it has raydebug 0.2.0, and this is 0.1.0"),
        (
            {"hook": False},
            "raydebug is installed there without its hook (raydebug.pth)",
        ),
        ({"problem": "it gave no answer"}, "it gave no answer"),
    ],
)
def test_what_a_node_lacks(changed, problem):
    """A node is of use with this raydebug, its hook and debugpy."""
    assert joined_job.problem_of({**NODE, **changed}, "0.1.0") == problem


def test_the_tokens_file(tmp_path):
    """The token's file is its owner's alone, in a folder that is his alone, and goes with the folder."""
    folder = tmp_path / "raydebug-1"
    facts = joined_job.look_at_node(str(folder), "t" * 64)
    assert "problem" not in facts
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "token")] == [0o700, 0o600]
    assert joined_job.look_at_node(str(folder), "u" * 64)["python"] == facts["python"]
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("token", "u" * 64)]
    assert joined_job.leave_node(str(folder)) == {}
    assert joined_job.leave_node(str(folder)) == {}  # where two nodes are one host
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_folder_that_is_not_private(tmp_path, kind):
    """No token is written into a folder that others can read, or that is a link."""
    folder, elsewhere = tmp_path / "raydebug-1", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if kind == "link":
        folder.symlink_to(elsewhere)
    else:
        folder.mkdir()
        folder.chmod(0o755)
    problem = joined_job.look_at_node(str(folder), "t" * 64)["problem"]
    assert "is not a private folder of uid" in problem
    assert not list(folder.iterdir())


def test_a_program_on_a_node(tmp_path):
    """The output and the exit code of the node's Python come back; a folder that is not there is named."""
    ran = joined_job.run_here(["-c", "import os; print(os.getcwd()); raise SystemExit(3)"], str(tmp_path), 30.0)
    assert ran == {"code": 3, "output": f"{tmp_path}\n"}
    (tmp_path / "file").write_text("")
    for folder in ("/nowhere", f"{tmp_path}/file"):
        ran = joined_job.run_here(["-c", ""], folder, 30.0)
        assert ran == {"code": 127, "output": f"the node has no folder {folder}"}


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


@contextlib.contextmanager
def serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """Serve a free port of loopback in a thread, and give the port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_a_port_through_a_command():
    """Bytes go through a command's stdin and stdout to a port at the far end, and back; connections end with it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    way = [sys.executable, "-P", "-m", "raydebug.cluster.connection"]
    with serving(_Echo) as there:
        here = subprocess.Popen([*way, "here", f"{port}={there}", "env", "A=b", *way, "there", "FAR_PORT"])
        try:
            connection = _connect(port)
            sent = os.urandom(300_000)
            sender = threading.Thread(target=lambda: (connection.sendall(sent), connection.shutdown(socket.SHUT_WR)))
            sender.start()
            received = b""
            while data := connection.recv(65536):
                received += data
            sender.join()
            assert received == sent
        finally:
            here.kill()
            here.wait()


def _connect(port: int) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


THERE = [sys.executable, "-P", "-m", "raydebug.cluster.connection", "there", "FAR_PORT"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (THERE, "is where this connection comes from: nothing else listens there"),
        (["env", "-u", connection.PORTS_HERE, *THERE], "3 connections at once: does env lead back to this port?"),
    ],
    ids=["ours", "another"],
)
def test_a_way_that_leads_back(tmp_path, command, says):
    """A command that leads back to its own port does not start processes without end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    code = "import asyncio, sys; from raydebug.cluster import connection; connection.MOST_AT_ONCE = 3;"
    code += "asyncio.run(connection.here(sys.argv[1], sys.argv[2:]))"
    log = tmp_path / "log"
    with log.open("wb") as file:
        here = subprocess.Popen([sys.executable, "-P", "-c", code, f"{port}={port}", *command], stderr=file)
    try:
        with _connect(port) as connection:
            assert connection.recv(1) == b""
        assert says in log.read_text()
    finally:
        here.kill()
        here.wait()


def test_a_dashboard_of_another_program():
    """A web server that is no Ray dashboard is named as such; no record is left."""
    with serving(http.server.SimpleHTTPRequestHandler) as port:
        done = runs.raydebug("up", "--join", f"http://127.0.0.1:{port}", "--name", "other")
    what, cause, fix = error_of(done)
    assert what == f"error: no Ray dashboard is at http://127.0.0.1:{port}"
    assert cause == "cause: Ray refused GET /api/version with 404"
    assert fix.startswith("fix: is it the address of a Ray dashboard, and can it be reached from here?")
    assert "there is no cluster 'other'" in runs.raydebug("ps", "--name", "other").stderr


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--join", "ray://head:10001"), "error: 'ray://head:10001' is not the address of a Ray dashboard"),
        (("--join", "http://head:8265", "--gpus", "2"), "error: --gpus is not for --join"),
        (("--join", "auto", "--cluster", "local", "--cpus", "2"), "error: --cluster and --cpus are not for --join"),
        (("--join", "auto", "--dry-run"), "error: --dry-run is not for --join"),
        (("--through", "ssh head"), "error: --through needs --join"),
    ],
)
def test_options_that_do_not_fit(options, what):
    """What a cluster that runs already cannot be given is refused before anything is asked."""
    done = runs.raydebug("up", *options)
    assert (error_of(done)[0], done.returncode) == (what, 2)


def test_variables_of_a_cluster_around_us(tmp_path):
    """A job of a cluster without a record gets the gateway's own address for processes, as the gateway says it."""
    with open_gateway(tmp_path) as gateway:
        environ = {
            "RAYDEBUG_DASHBOARD": "http://head:8265",
            "RAYDEBUG_GATEWAY_CLIENTS": f"127.0.0.1:{gateway.gateway_port}",
            "RAYDEBUG_TOKEN_PATH": str(gateway.token_file),
        }
        cluster = cluster_around_us(environ)
        needed = {"RAYDEBUG_GATEWAY": f"127.0.0.1:{gateway.dial_port}", "RAYDEBUG_TOKEN_PATH": str(gateway.token_file)}
        assert node_variables(cluster) == needed
        named = cluster_around_us({**environ, "RAYDEBUG_GATEWAY": "10.0.0.1:5679"})
        assert node_variables(named) == {**needed, "RAYDEBUG_GATEWAY": "10.0.0.1:5679"}
