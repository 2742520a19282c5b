"""When a Ray node is slow, hung or dead, and how long its start may take; with health pages and a clock of our own."""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydebug.cluster import ray_node
from raydebug.cluster.ray_node import GCS, RAYLET, Part, Startup, judge


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.contextmanager
def page(status: int = 200, wait_s: float = 0.0) -> Iterator[str]:
    """Serve a health page that answers with a status after a time."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(wait_s)
            with contextlib.suppress(OSError):
                self.send_response(status if self.headers["Authorization"] == "Bearer secret" else 401)
                self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/healthz"
        server.shutdown()


def closed_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/healthz"


def test_outcomes_of_a_probe():
    """A page that answers 200 is well; one that is late, or that says 503, has not answered; a closed port refuses."""
    with page() as url:
        assert ray_node.ask(url, "secret") == "ok"
        assert ray_node.ask(url, "another's") == "none"
    with page(503) as url:
        assert ray_node.ask(url, "secret") == "none"
    with page(wait_s=3.0) as url:
        assert ray_node.ask(url, "secret", timeout_s=0.2) == "none"
    assert ray_node.ask(closed_port()) == "refused"
    with socket.create_server(("127.0.0.1", 0)) as server:  # a program that does not speak HTTP
        answer = threading.Timer(0.1, lambda: server.accept()[0].sendall(b"220 mail.example.org ESMTP\r\n"))
        answer.start()
        assert ray_node.ask(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=5.0) == "none"
        answer.join()


def test_silence_is_slow_and_then_hung_but_never_death():
    """F62: a part without an answer is slow after 5 s, hung after 300 s, up with its next answer, and never dead."""
    clock = Clock()
    parts = [Part(RAYLET, clock), Part(GCS, clock)]
    states = []
    for _ in range(155):
        clock.now_s += 2.0
        parts[0].note("none")
        parts[1].note("ok")
        states.append(judge([], parts).state)
    assert [states.count(state) for state in ("up", "slow", "hung", "dead")] == [2, 147, 6, 0]
    assert judge([], parts).reason == "no answer for 310 s from the raylet, whose process exists"
    parts[0].note("ok")
    assert judge([], parts).state == "up"


def test_death():
    """A process that has ended and a port that refuses twice in a row are deaths; one refusal is none."""
    clock = Clock()
    parts = [Part(RAYLET, clock), Part(GCS, clock)]
    assert judge([RAYLET], parts) == ray_node.NodeCondition("dead", "the raylet has ended")
    for answer, state in (("refused", "up"), ("none", "up"), ("refused", "up"), ("refused", "dead")):
        parts[1].note(answer)
        assert judge([], parts).state == state
    assert judge([], parts).reason == "Ray's head (gcs_server) is gone: its health page refuses connections"


RAYLETS = """
import ctypes, os, time
if os.fork():
    time.sleep(600)
else:
    ctypes.CDLL(None).prctl(15, b"raylet", 0, 0, 0)
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


def test_the_end_of_a_raylet_is_noticed_by_its_process():
    """F63: a raylet that is killed is dead at once, also as a zombie, and while its page still answers."""
    with page() as url:
        ray = subprocess.Popen([sys.executable, "-c", RAYLETS], stdout=subprocess.PIPE, text=True)
        raylet = int(ray.stdout.readline())
        node = ray_node.RayNode(ray.pid, {RAYLET: url})
        try:
            assert node.look().state == "up"
            ray_node.psutil.Process(raylet).kill()
            deadline = time.monotonic() + 20
            while node.look().state == "up":
                assert time.monotonic() < deadline
            assert node.look() == ray_node.NodeCondition("dead", "the raylet has ended")
        finally:
            node.close()
            ray.kill()
            ray.wait()


def test_hung_names_the_process_and_its_stack(tmp_path, monkeypatch):
    """A hung part is named with the state of its page's process and, where py-spy may look, the stack."""
    monkeypatch.setattr(ray_node, "HUNG_AFTER_S", 0.0)
    agent = tmp_path / "dashboard" / "agent.py"
    agent.parent.mkdir()
    agent.write_text(
        "import time\n\ndef waits_for_ever():\n    print(1, flush=True)\n    time.sleep(600)\n\nwaits_for_ever()\n"
    )
    starter = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])"
    ray = subprocess.Popen([sys.executable, "-c", starter, str(agent)], stdout=subprocess.PIPE, text=True)
    assert ray.stdout.readline() == "1\n"
    children = ray_node.psutil.Process(ray.pid).children()
    node = ray_node.RayNode(ray.pid, {RAYLET: closed_port()})
    try:
        found = node.look()
        assert found.state == "hung"
        assert f"stack of its page's process (pid {children[0].pid}, sleeping): " in found.reason
        assert "waits_for_ever (" in found.reason or "(" in found.reason.rpartition(": ")[2], "py-spy may not look"
    finally:
        node.close()
        for one in [*children, ray_node.psutil.Process(ray.pid)]:
            one.kill()
        ray.wait()


def test_start_waits_while_logs_grow(tmp_path: Path):
    """A start is waited for while Ray's logs grow, up to 300 s; every 10 s a line says for what."""
    clock = Clock()
    startup = Startup(tmp_path / "logs", clock)
    assert startup.is_over() is None
    (tmp_path / "logs").mkdir()
    log = (tmp_path / "logs" / "raylet.out").open("a")
    lines = []
    for second in range(0, 300, 5):
        clock.now_s = 1000.0 + second
        if second % 80 == 0:
            log.write("more\n")
            log.flush()
        assert startup.is_over() is None, second
        lines.append(startup.line("Ray's dashboard"))
    assert len([line for line in lines if line]) == 29
    assert lines[3:5] == [None, "waiting for Ray's dashboard for 20 s; Ray's logs grew 20 s ago"]
    clock.now_s = 1300.0
    assert startup.is_over() == "Ray has not come up within 300 s"
    log.close()


def test_start_that_does_nothing(tmp_path: Path):
    """A start whose logs do not grow for 90 s has failed."""
    clock = Clock()
    startup = Startup(tmp_path, clock)
    clock.now_s += 89.0
    assert startup.is_over() is None
    clock.now_s += 1.0
    assert startup.is_over() == "Ray has not come up, and its logs have not grown for 90 s"


@pytest.mark.parametrize("pid", [2**22 + 5])
def test_stack_of_a_process_that_is_gone(pid: int):
    """Where py-spy cannot tell a stack, its own words take the stack's place."""
    said = ray_node.stack_of(pid)
    assert said.startswith("(")
    assert said.endswith(")")


def test_end_of_a_long_log(tmp_path):
    """Of a log without end only the end is read."""
    log = tmp_path / "tunnel.log"
    log.write_text("a banner\n" * 100_000 + "no way\n")
    assert ray_node.last_words(log) == "a banner / a banner / no way"
    with log.open("r+b") as file:
        file.truncate(1 << 40)  # a hole, which takes no room
    assert len(ray_node.last_words(log)) <= ray_node.LAST_CHARS
