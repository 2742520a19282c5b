"""A Ray cluster that raydebug did not start: no hook, no gateway, Ray's own listeners."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pexpect
import pytest

import ray
from raydebug.cluster.environment import ray_command
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import choose_ports
from raydebug.settings.flavours import has_token_mode
from runs import JOBS, RAYDEBUG, WAIT_S, wait_for

pytestmark = pytest.mark.timeout(180)
START_S = WAIT_S  # of a worker in its own environment


@dataclass
class Stock:
    """A cluster of plain `ray start --head`, and jobs on it."""

    dashboard: str
    gcs: str
    environment: dict[str, str]
    jobs: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, case: str, **variables: str) -> subprocess.Popen[str]:
        """Start a driver on the cluster."""
        environment = {**self.environment, "RAY_ADDRESS": self.gcs, **variables}
        argv = [sys.executable, str(JOBS / "stock.py"), case]
        job = subprocess.Popen(argv, env=environment, cwd=JOBS, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)  # fmt: skip
        self.jobs.append(job)
        return job

    def raydebug(self, *arguments: str, exit_code: int = 0, **variables: str) -> str:
        """Run a verb against the cluster; return stdout, or stderr if it has to fail."""
        argv = [str(RAYDEBUG), arguments[0], "--address", self.dashboard, *arguments[1:]]
        done = subprocess.run(argv, env={**self.environment, **variables}, stdin=subprocess.DEVNULL, cwd=JOBS,
                              capture_output=True, text=True, timeout=WAIT_S, check=False)  # fmt: skip
        assert done.returncode == exit_code, f"{done.stdout}\n{done.stderr}"
        return done.stderr if exit_code else done.stdout

    def pauses(self, count: int) -> list[dict[str, Any]]:
        """Wait until this many workers are listed as paused, with their tasks, which Ray reports a second later."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            nonlocal found
            found = json.loads(self.raydebug("paused", "--json"))["pauses"]
            return len(found) == count and all(pause["task"] for pause in found)

        wait_for(enough, f"{count} paused workers", START_S)
        return found

    def end_jobs(self) -> None:
        """End the jobs that still run, and wait until their workers have ended: the next test must see only its own."""
        for job in self.jobs:
            job.kill()
            job.communicate()
        if self.jobs:
            self.pauses(0)
        self.jobs.clear()


@pytest.fixture
def stock(stock_cluster: Stock) -> Iterator[Stock]:
    """A stock cluster without jobs of earlier tests."""
    yield stock_cluster
    stock_cluster.end_jobs()


@pytest.fixture(scope="module")
def stock_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    """A cluster with a token, started by Ray's own command without raydebug in its environment."""
    temp_dir = Path(tempfile.mkdtemp(prefix="rds-", dir="/tmp"))
    token_file = tmp_path_factory.mktemp("token") / "token"
    token_file.write_text(secrets.token_hex(32))
    ports = choose_ports(dict.fromkeys(("dashboard", "gateway"), 0), {}, ())
    cluster = Cluster("stock", "", "local", temp_dir, temp_dir, sys.executable, ports, 4, 0, "breakpoint", "core", 0.0)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "RAYDEBUG_"))}
    environment = {**clean, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file)}
    with (temp_dir / "head.log").open("w") as log:
        head = subprocess.Popen(ray_command(cluster), env=environment, cwd="/", stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not _answers(cluster.dashboard):
            assert head.poll() is None, (temp_dir / "head.log").read_text()
            assert time.monotonic() < deadline, "the dashboard does not answer"
            time.sleep(0.2)
        yield Stock(cluster.dashboard, cluster.address, environment)
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(timeout=30)
        shutil.rmtree(temp_dir, ignore_errors=True)


def _answers(dashboard: str) -> bool:
    try:
        with urllib.request.urlopen(f"{dashboard}/api/gcs_healthz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_breakpoint(stock: Stock) -> None:
    """A breakpoint in an actor of a stock cluster is listed with Ray's facts, inspected, stepped and resumed."""
    job = stock.start("actor")
    (pause,) = stock.pauses(1)
    assert pause["kind"] is None
    assert pause["since_s"] is None
    assert pause["actor"] == "Actor"
    assert pause["task"] == "Actor.method"
    assert pause["threads"] == 1
    table = stock.raydebug("paused")
    assert "Actor pid" in table
    printed = stock.raydebug("attach", pause["id"], "-x", "p secret", "-x", "n", "-x", "p secret * 2", "-x", "c")
    assert printed.splitlines()[0] == "41"
    assert "return secret" in printed
    assert printed.splitlines()[-1] == "82"
    assert job.communicate(timeout=WAIT_S)[0].splitlines()[-1] == "done: 41"


@pytest.mark.long
def test_post_mortem(stock: Stock) -> None:
    """A crash of a task on a stock cluster opens at the frame that raised; the task then fails as without us."""
    job = stock.start("crash", RAY_DEBUG_POST_MORTEM="1")
    (pause,) = stock.pauses(1)
    printed = stock.raydebug("attach", "-x", "p numbers", "-x", "u", "-x", "p scale", "-x", "c")
    assert "[]" in printed
    assert "7" in printed
    assert "ZeroDivisionError" in job.communicate(timeout=WAIT_S)[0]
    assert job.returncode != 0
    assert pause["task"] == "crash"


@pytest.mark.long
def test_next_waits_and_leaving_lets_it_go_on(stock: Stock) -> None:
    """`next` waits for a pause; without a gateway, leaving without `c` resumes the task, and `attach` says so."""
    argv = [str(RAYDEBUG), "attach", "next", "--address", stock.dashboard, "-x", "p secret"]
    waiting = subprocess.Popen(argv, env=stock.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    job = stock.start("actor")
    printed, said = waiting.communicate(timeout=WAIT_S)
    assert printed.splitlines() == ["41"]
    assert "the task is resumed: without a gateway a pause ends with its debugger" in said
    assert job.communicate(timeout=WAIT_S)[0].splitlines()[-1] == "done: 41"


@pytest.mark.long
def test_prompt(stock: Stock) -> None:
    """The prompt is the same; it asks before leaving, because the task would resume."""
    job = stock.start("actor")
    (pause,) = stock.pauses(1)
    argv = ["attach", pause["id"], "--address", stock.dashboard]
    child = pexpect.spawn(str(RAYDEBUG), argv, env={**stock.environment, "TERM": "xterm"}, timeout=30, encoding="utf-8",
                          dimensions=(40, 120), cwd=str(JOBS))  # fmt: skip
    child.expect_exact("breakpoint in")
    child.expect_exact("(raydebug)")
    child.sendline("w")
    child.expect_exact("method")
    child.sendline("q")
    child.expect_exact("leaving resumes the task")
    child.sendline("b")
    child.expect_exact("(raydebug)")
    child.sendline("c")
    assert job.communicate(timeout=WAIT_S)[0].splitlines()[-1] == "done: 41"
    child.expect([pexpect.EOF, "waits for the next stop"])
    child.close(force=True)


@pytest.mark.long
def test_second_debugger_is_refused(stock: Stock) -> None:
    """A worker with an attached debugger is not listed, and its port refuses a second debugger in words."""
    from raydebug.console.session import Output
    from raydebug.console.unmanaged_session import UnmanagedSession
    from raydebug.errors import RaydebugError

    job = stock.start("actor")
    (pause,) = stock.pauses(1)

    async def both() -> str:
        output: list[Output] = []
        first = await UnmanagedSession.attach_worker(pause, on_output=output.append)
        assert json.loads(stock.raydebug("paused", "--json"))["pauses"] == []
        with pytest.raises(RaydebugError) as refused:
            await UnmanagedSession.attach_worker(pause)
        assert await first.evaluate("secret") == "41"
        await first.resume("continue")
        await first.leave()
        return str(refused.value)

    import asyncio

    assert "cannot be attached" in asyncio.run(both())
    assert job.communicate(timeout=WAIT_S)[0].splitlines()[-1] == "done: 41"


@pytest.mark.long
def test_child_process_is_not_held(stock: Stock) -> None:
    """A child that a worker starts under a debugger runs; debugpy would suspend it before its first line."""
    job = stock.start("child")
    (pause,) = stock.pauses(1)
    printed = stock.raydebug("attach", pause["id"], "-x", "n", "-x", "n", "-x", "p answer", "-x", "c")
    assert printed.splitlines()[-1] == "'child ran'"
    assert job.communicate(timeout=WAIT_S)[0].splitlines()[-1] == "done: child ran"


@pytest.mark.timeout(60)
def test_bad_input(stock: Stock) -> None:
    """A wrong address or token, no token, an unknown id and commands that need a gateway fail in three lines."""
    if has_token_mode(ray.__version__):
        wrong = {"RAY_AUTH_TOKEN": "f" * 64}
        refused = stock.raydebug("paused", exit_code=1, **wrong)
        fix = "name this cluster's token as Ray itself wants it: RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH=FILE"
        assert f"fix: {fix}" in refused
    assert "there is no pause 'ffff'" in stock.raydebug("attach", "ffff", exit_code=1)
    assert "gives one pause at a time" in stock.raydebug("attach", "all", exit_code=2)
    assert "no pause waits to be attached" in stock.raydebug("attach", exit_code=1)
    argv = [str(RAYDEBUG), "paused", "--address"]
    for address, words in (("ray://head:10001", "is not the address of a Ray dashboard"),
                           ("http://127.0.0.1:9", "does not answer")):  # fmt: skip
        done = subprocess.run([*argv, address], env=stock.environment, capture_output=True, text=True, timeout=30,
                              check=False)  # fmt: skip
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 3
