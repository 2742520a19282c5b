"""Clients, gateways and workers of 0.1 beside those of now, as real processes: each pair understands the other."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from gateway_under_test import open_gateway

ROOT = Path(__file__).resolve().parents[2]
EARLIER = "e505644"  # raydebug/protocol/earlier.py
WORK = """\
import os, sys, time
from raydebug.worker import control_channel
control_channel.open_channel()
if os.environ.get("NO_DEBUGGER"):
    sys.modules["debugpy"] = None
def step(number):
    total = number
    return total
print("ready", flush=True)
number = 0
while True:
    number += 1
    step(number)
    time.sleep(0.001)
"""
# What its arguments name is the gateway; `source` and `pid` are of the program above.
HEAD = """\
import sys, time
from types import SimpleNamespace
from raydebug.console.attach import attach_pause
from raydebug.console.session import GatewayAddress
from raydebug.errors import RaydebugError
from raydebug.client import gateway_client
port, token, pid, source = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
cluster = SimpleNamespace(name="test", has_gateway=True, gateway_host="127.0.0.1", gateway_port=port, token=token)
cluster.repair, cluster.is_joined = "", False
def attach(target, *commands):
    return attach_pause(GatewayAddress("127.0.0.1", port, token), target, cluster="mine", commands=commands)
def until(is_right, ask):
    deadline = time.monotonic() + 20
    while not is_right(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found
"""
ALL = """
(process,) = gateway_client.fetch_processes(cluster)
assert (process["pid"], process["answers"]) == (pid, True), process
assert process["doing"]["file"] == source, process
(stacks,) = gateway_client.fetch_stacks(cluster, timeout_s=10.0)
assert stacks["state"] == "answered", stacks
assert "<module>" in [frame["function"] for frame in stacks["threads"][0]["frames"]], stacks
assert attach(f"pid:{pid}", "p number > 0", "c") == 0
spec = {"where": "step", "file": source, "source": source, "function": "step", "policy": {}}
added = gateway_client.add_break(cluster, spec)
assert [one["state"] for one in added["processes"]] == ["set"], added
(pause,) = until(bool, lambda: gateway_client.fetch_pauses(cluster))
assert (pause["kind"], pause["function"]) == ("breakpoint", "step"), pause
saved = gateway_client.save_pause(cluster, pause["id"])
assert (saved["kind"], saved["function"]) == ("pause", "step"), saved
gateway_client.remove_break(cluster, added["id"])
assert attach(pause["id"], "p number", "c") == 0
until(lambda found: not found, lambda: gateway_client.fetch_pauses(cluster))
print("all", flush=True)
"""
REFUSED = """
try:
    attach(f"pid:{pid}", "c")
except RaydebugError as error:
    print(error.cause)
"""
ASK = """
from raydebug.protocol import questions
questions.QUESTIONS["new"] = questions.STACKS._replace(name="new")
try:
    (one,) = gateway_client.ask_processes(cluster, questions.QUESTIONS[sys.argv[5]], {}, timeout_s=10.0)
    print(one["process"]["pid"] == pid, one["state"], "threads" in (one["answer"] or {}))
except RaydebugError as error:
    print(error)
"""


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of 0.1, from the history of this repository."""
    folder = tmp_path_factory.mktemp("earlier")
    done = subprocess.run(["git", "-C", ROOT, "archive", EARLIER, "src"], capture_output=True, check=False)
    if done.returncode:
        why = f"the history has no {EARLIER}: {done.stderr.decode().strip()}"
        pytest.fail(why) if os.environ.get("GITHUB_ACTIONS") else pytest.skip(why)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def of(source: Path) -> Callable[..., list[str]]:
    """Return what makes a program run with a version of raydebug."""
    return lambda *argv: ["env", f"PYTHONPATH={source}", *argv]


@pytest.fixture
def run(tmp_path: Path, earlier: Path, request: pytest.FixtureRequest) -> Any:
    """Run a client's program with one of the three (`request.param`) of 0.1; return what it prints."""
    source = {who: earlier if who == request.param else ROOT / "src" for who in ("client", "gateway", "worker")}
    with open_gateway(tmp_path, run_on=of(source["gateway"])) as gateway:
        gateway.run_on = of(source["worker"])

        def start(program: str, *more: str, **variables: str) -> tuple[str, str]:
            worker = gateway.start(WORK, RAYDEBUG_JOB="j1", **variables)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n", worker.communicate()
            place = [str(gateway.gateway_port), gateway.token, str(worker.pid), str(worker.args[-1])]  # type: ignore[index]
            argv = of(source["client"])(sys.executable, "-c", HEAD + program, *place, *more)
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, done.stdout + done.stderr + gateway.log
            return done.stdout, gateway.log

        yield start


WHO = pytest.mark.parametrize("run", ["client", "gateway", "worker"], indirect=True)


@pytest.mark.timeout(120)
@WHO
def test_all_that_0_1_can(run) -> None:
    """Processes, stacks, pauses, breakpoints and snapshots of a pause work when one of the three is of 0.1."""
    printed, log = run(ALL)
    assert printed.endswith("all\n")
    assert "Traceback" not in log
    assert "a record is refused" not in log


@pytest.mark.timeout(60)
@WHO
def test_pause_that_is_refused(run) -> None:
    """The reason why a process cannot pause reaches the client when one of the three is of 0.1."""
    printed, _ = run(REFUSED, NO_DEBUGGER="1")
    assert "it cannot be paused: debugpy cannot be loaded" in printed


@pytest.mark.timeout(60)
@pytest.mark.parametrize("run", ["worker"], indirect=True)
def test_worker_of_0_1_is_asked_what_it_knows(run) -> None:
    """`POST /processes/NAME` gets the answer of a worker of 0.1 too."""
    assert run(ASK, "stacks")[0] == "True answered True\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("run", ["gateway"], indirect=True)
def test_gateway_of_0_1_has_no_questions(run) -> None:
    """A client that asks a gateway of 0.1 by `POST /processes/NAME` learns that the gateway may be older."""
    assert run(ASK, "stacks")[0] == (
        "error: the gateway of cluster 'test' refused a request\n"
        "cause: POST /processes/stacks: there are /health, /status, /pauses, /processes, /stacks, /snapshots/JOB, "
        "/pause, /breaks and /jobs/ID\n"
        "fix: if its version differs, restart it with `raydebug down --name test` and `up`\n"
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("older", ["gateway", "worker"])
def test_line_in_the_jobs_log(tmp_path: Path, earlier: Path, older: str) -> None:
    """A pause expires with either; a worker of 0.1 does not write why: it does not know the gateway's request."""
    ours = ROOT / "src"
    with open_gateway(
        tmp_path, "--pause-limit-s", "0.5", run_on=of(earlier if older == "gateway" else ours)
    ) as gateway:
        gateway.run_on = of(earlier if older == "worker" else ours)
        said, log = gateway.start("breakpoint()\nprint('went on')\n").communicate(timeout=40)
        assert said == "went on\n"
        assert ("0.5 s without a debugger: resumed" in log) == (older == "gateway")
        assert ("was not written to the job's log" in gateway.log) == (older == "worker")
