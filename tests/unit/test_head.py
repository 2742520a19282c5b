"""Whose end ended a session: the head's, or only the process's. A health page in the head's place answers here."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from raydebug.cli.pauses import named_if_lost
from raydebug.cluster import interpreter, kinds, local
from raydebug.cluster.find import load_cluster
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError

LOST = RaydebugError("the session ended: process 7 is gone", cause="the gateway said: it ended", fix="look",
                     code="session.process-gone", exit_code=Exit.SESSION_LOST)  # fmt: skip


@contextlib.contextmanager
def dashboard(status: int, reason: str, wait_s: float = 0.0) -> Iterator[str]:
    """Answer /api/gcs_healthz as Ray's dashboard does."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(wait_s)
            with contextlib.suppress(OSError):
                self.send_response(status if self.path == "/api/gcs_healthz" else 404, reason)
                self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def joined(tmp_path, monkeypatch):
    """Return the cluster whose dashboard is at an address."""
    (tmp_path / "token").write_text("t" * 64)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RAYDEBUG_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("RAYDEBUG_GATEWAY_CLIENTS", "127.0.0.1:1")

    def at(address: str) -> Cluster:
        monkeypatch.setenv("RAYDEBUG_DASHBOARD", address)
        return load_cluster()

    return at


def lose(cluster: Cluster) -> RaydebugError:
    """Lose a session with a process of this cluster and return what is said of it."""
    with pytest.raises(RaydebugError) as failure, named_if_lost(cluster):
        raise LOST
    return failure.value


def test_a_process_that_ended_alone(joined):
    """While the head is well, or only slow, a session that is lost stays what it is: its process is gone."""
    with dashboard(200, "success") as address:
        assert lose(joined(address)) is LOST
    with dashboard(200, "success", wait_s=3.0) as address:
        assert lose(joined(address)) is LOST


def test_f3_head_gone(joined):
    """F3: a session that is lost with its head says 'session lost: head', keeps the gateway's words, and exits 4."""
    failure = lose(joined("http://127.0.0.1:1"))
    assert failure.what == "session lost: head of cluster 'default' is gone"
    assert failure.cause.startswith("its dashboard does not answer: ")
    assert failure.cause.endswith("; the gateway said: it ended")
    assert failure.fix == "see `raydebug ps`; `raydebug up` brings it back, its jobs are lost"
    assert failure.exit_code == 4


def test_f5_gcs_gone(joined):
    """F5: where the dashboard is there and its GCS is not, the gcs_server is named."""
    with dashboard(503, "GCS is not healthy") as address:
        assert lose(joined(address)).cause.startswith("its gcs_server does not answer: GCS is not healthy; ")


def test_other_errors_pass(joined):
    """What is no lost session passes as it is, whatever the head does."""
    other = RaydebugError("x", cause="y", fix="z", code="pause.busy")
    with pytest.raises(RaydebugError) as failure, named_if_lost(joined("http://127.0.0.1:1")):
        raise other
    assert failure.value is other


@pytest.mark.parametrize(("programs", "told"), [(["ray/gcs_server --x", "raylet"], "no answer within"),
                                                (["raylet"], "its gcs_server has ended")])  # fmt: skip
def test_slow_dashboard(joined, monkeypatch, programs, told):
    """A slow dashboard is not queried again if the head's processes show that its GCS has ended."""
    monkeypatch.setattr(local, "programs", lambda _: programs)
    monkeypatch.setattr(kinds.LocalKind, "why_head_ended", lambda _: None)
    with dashboard(503, "gone", wait_s=3.0) as address:
        cluster = dataclasses.replace(joined(address), kind="local")
        try:
            said = kinds.kind_of(cluster).why_gone()
        except TimeoutError as error:
            said = str(error)
    assert told in str(said)


def test_relative_interpreter(tmp_path, monkeypatch):
    """`up --python` takes a relative path and a name on the PATH; Ray's processes get an absolute path."""
    monkeypatch.chdir(tmp_path)
    assert interpreter.find_interpreter("env/bin/python") == str(tmp_path / "env/bin/python")
    assert interpreter.find_interpreter("sh") == shutil.which("sh")


@pytest.mark.parametrize(
    ("printed", "is_taken"),
    [
        ('{"executable": "/env/bin/python", "ray": "2.60.0", "raydebug": "0.1.0"}', True),
        ('{"executable": "/env/bin/python", "ray": null, "raydebug": "0.1.0"}', False),
        ('{"executable": "/env/bin/python", "ray": "2.60.0", "raydebug": null}', False),
        ("Python 2 does not know -P", False),
    ],
)
def test_the_python_of_the_shell(tmp_path, monkeypatch, printed, is_taken):
    """Without `--python` Ray starts in the shell's `python` where that has Ray and raydebug, else in raydebug's own."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{printed}'\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert interpreter.find_interpreter() == ("/env/bin/python" if is_taken else sys.executable)
