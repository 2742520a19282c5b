"""Breakpoints set, listed and removed while a job's processes run (`raydebug break`), over their control channels."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.client.gateway_client import (
    describe_break_states,
    fetch_breaks,
    fetch_processes,
    fetch_snapshots,
    remove_break,
    set_breaks,
)
from raydebug.gateway.channel import ControlChannel
from raydebug.gateway.control import Control
from raydebug.gateway.numbers import Numbers
from raydebug.protocol import wire
from raydebug.protocol.questions import SPANS

LIB = """\
import functools


def double(x):
    y = x * 2
    return y


class Agent:
    @staticmethod
    def run(x):
        return x + 1

    def nested(self, x):
        def inner():
            return x + 10
        return inner()


@functools.lru_cache(maxsize=0)
def cached(x):
    return x
"""
# What a job's process does at `import ray`; then it works until the test creates the file `end`.
WORK = """\
import sys, time, os, gc
sys.path.insert(0, os.environ["LIB"])
from raydebug.worker import control_channel
control_channel.open_channel()
if os.environ.get("LATE"):
    print("ready", flush=True)
    while not os.path.exists(os.environ["LIB"] + "/go"):
        time.sleep(0.01)
import lib
if os.environ.get("FROZEN"):
    gc.freeze()
agent = lib.Agent()
print("ready", flush=True)
while not os.path.exists(os.environ["LIB"] + "/end"):
    lib.double(3), agent.nested(4), lib.Agent.run(5), lib.cached(6)
    time.sleep(0.01)
print("traced" if sys.gettrace() else "not traced", flush=True)
"""


@pytest.fixture
def work(gateway: GatewayUnderTest) -> Callable[..., object]:
    """Start processes of jobs that call lib.py in a loop."""
    (gateway.folder / "lib.py").write_text(LIB)

    def start(job: str = "j1", **variables: str):
        program = gateway.start(WORK, RAYDEBUG_JOB=job, LIB=str(gateway.folder), **variables)
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        return program

    yield start
    (gateway.folder / "end").touch()


def set_at(gateway: GatewayUnderTest, job: str | None = None, **definition: object) -> str:
    """Set a breakpoint in lib.py and return its id."""
    place = {"file": str(gateway.folder / "lib.py"), "source": str(gateway.folder / "lib.py"), "policy": {}}
    (added,) = set_breaks(gateway, [{"where": "lib.py", **place, **definition}], job=job)  # type: ignore[arg-type]
    return str(added["id"])


def state_of(gateway: GatewayUnderTest, break_id: str, state: str) -> str:
    """Wait until a breakpoint has this state in every process; return its summary."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        (one,) = [b for b in fetch_breaks(gateway) if b["id"] == break_id]  # type: ignore[arg-type]
        if one["processes"] and all(p["state"] == state for p in one["processes"]):
            return describe_break_states(one)
        time.sleep(0.02)
    raise AssertionError(f"not '{state}': {one}")


@pytest.mark.parametrize(
    ("place", "line", "function"),
    [
        ({"line": 6}, 6, "double"),
        ({"function": "Agent.run"}, 12, "Agent.run"),
        ({"function": "Agent.nested.inner"}, 16, "Agent.nested.<locals>.inner"),
        ({"function": "cached"}, 22, "cached"),
    ],
)
def test_set_in_a_function_that_runs_already(gateway, work, place, line, function):
    """A breakpoint pauses a function that was loaded long before; afterwards the process is not traced."""
    program = work()
    break_id = set_at(gateway, **place)
    (pause,) = gateway.pauses()
    assert (pause["line"], pause["function"], pause["job"]) == (line, function, "j1")
    assert state_of(gateway, break_id, "set").startswith("set in 1")
    remove_break(gateway, break_id)
    gateway.resume(pause["id"])
    time.sleep(0.3)
    gateway.pauses(0)
    (gateway.folder / "end").touch()
    out, err = program.communicate(timeout=60)
    assert out == "not traced\n", err


def test_frozen_heap(gateway, work):
    """Functions are also found in a process with a frozen heap (gc.freeze), as in vLLM's engine."""
    work(FROZEN="1")
    set_at(gateway, line=6)
    assert gateway.pauses()[0]["line"] == 6


def test_two_in_one_function(gateway, work):
    """A second breakpoint in a function keeps the first one, and each is removed separately."""
    work()
    first = set_at(gateway, line=5, policy={"max": 1})
    (pause,) = gateway.pauses()
    second = set_at(gateway, line=6, policy={"max": 1})
    assert state_of(gateway, second, "set") == "set in 1; double runs now and stops there from its next call"
    gateway.resume(pause["id"])
    (pause,) = gateway.pauses()
    assert pause["line"] == 6
    remove_break(gateway, first)
    assert [b["id"] for b in fetch_breaks(gateway)] == [second]
    gateway.resume(pause["id"])


def test_file_that_is_loaded_later(gateway, work):
    """A breakpoint waits for its file, pauses the very first call, and is then reported as set."""
    work(LATE="1")
    break_id = set_at(gateway, line=5)
    assert state_of(gateway, break_id, "waiting") == "not loaded yet in 1"
    (gateway.folder / "go").touch()
    assert gateway.pauses()[0]["line"] == 5
    assert state_of(gateway, break_id, "set") == "set in 1"


def test_process_that_starts_later(gateway, work):
    """A process that starts after the breakpoint was set pauses there too; one of another job does not."""
    set_at(gateway, job="j2", line=5)
    work("j1")
    program = work("j2")
    (pause,) = gateway.pauses()
    assert (pause["pid"], pause["job"]) == (program.pid, "j2")


def test_changed_file(gateway, work):
    """A breakpoint in a file that changed since it was loaded is refused: its lines are not those that run."""
    work()
    (gateway.folder / "lib.py").write_text(LIB.replace("x * 2", "x * 3 + 1"))
    break_id = set_at(gateway, line=6)
    assert state_of(gateway, break_id, "failed").endswith("lib.py has changed since it was loaded here")


def test_line_that_has_run_already(gateway, work):
    """A line outside any function of a loaded file is refused with the reason."""
    work()
    break_id = set_at(gateway, line=1)
    why = "its line has run already: it is outside of any function"
    assert state_of(gateway, break_id, "failed") == f"failed in 1; {why}"


def test_new_gateway_learns_what_an_old_one_knew(gateway, work):
    """After the gateway was killed and restarted, the breakpoints of running processes are listed again."""
    work()
    break_id = set_at(gateway, line=6, policy={"if": "x > 100"})
    state_of(gateway, break_id, "set")
    gateway.kill()
    gateway.open()
    early = set_at(gateway, line=5, policy={"if": "x > 100"})  # before the process has dialled in again
    deadline = time.monotonic() + 15
    while len(fetch_breaks(gateway)) < 2 and time.monotonic() < deadline:  # type: ignore[arg-type]
        time.sleep(0.05)
    assert {b["id"] for b in fetch_breaks(gateway)} == {break_id, early} == {"b1", "b2"}  # type: ignore[arg-type]
    assert [state_of(gateway, one, "set")[:8] for one in (break_id, early)] == ["set in 1"] * 2


class Wire:
    """A connection of a process; `said` are the messages to it."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "10.0.0.1", 4

    def write(self, data: bytes) -> None:
        self.said += wire.Decoder().feed(data)

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("known", "state", "told"),
    [
        ({"id": "b1", "where": "a.py:1"}, "waiting", {}),
        ({"id": "b1", "where": "b.py:1"}, "sent", {"add": ["b1"], "remove": ["b1"]}),
        ({"id": "b2", "where": "b.py:1"}, "sent", {"add": ["b1"], "remove": ["b2"]}),
        ({"id": "x1", "where": "a.py:1"}, "sent", {"add": ["b1"], "remove": ["x1"]}),
    ],
)
async def test_breakpoint_that_is_not_the_one_given(tmp_path, known, state, told):
    """A gateway that starts again knows its breakpoints; a process that says others, the first one too, drops them."""
    (tmp_path / "numbers").touch()
    before = Control(Numbers(tmp_path / "numbers"))
    before.add([{"where": place, "source": "/a.py", "line": 1} for place in ("a.py:1", "b.py:1")], None)
    before.remove(["b2"])
    control = Control(Numbers(tmp_path / "numbers"))
    for definition in ({**known, "source": "/a.py", "line": 1}, None):
        channel = ControlChannel({"pid": 4}, said := Wire())
        body = {"breaks": [definition] if definition else [], "set": []}
        control._take(channel, {"event": "known", "body": body})
        (message,) = said.said
        found = {name: [one if name == "remove" else one["id"] for one in ids]
                 for name, ids in message["body"].items() if ids}  # fmt: skip
        assert found == (told if definition else {"add": ["b1"]})
        (listed,) = control.describe_breaks()
        assert (listed["where"], listed["processes"][0]["state"]) == ("a.py:1", state)
        control.channels.clear()
        state = "sent"


async def test_known_breakpoints_are_taken_once():
    """A process can send what it knows once: more is neither kept nor answered, nor are reports of more."""
    control, channel = Control(Numbers(None)), ControlChannel({"pid": 4}, Wire())
    (ours,) = control.add([{"where": "a.py:1", "source": "/a.py"}], None)
    for break_id in (ours["id"], "x1", "x2"):
        control._take(channel, {"event": "known", "body": {"breaks": [{**ours, "id": break_id}]}})
    for break_id in (ours["id"], "x1", "x2"):
        control._take(channel, {"event": "break", "body": {"id": break_id, "state": "set", "message": "m" * 9000}})
    assert [(name, len(report["message"])) for name, report in channel.reports.items()] == [(ours["id"], 1000)]
    assert len(channel._writer.said) == 1


JOBS = """
import os
from raydebug.worker import control_channel
control_channel.open_channel()
os.environ["RAYDEBUG_JOB"] = "theirs"
breakpoint()
from raydebug.protocol import messages, wire
from raydebug.worker import dial_in
with dial_in.proven_connection(messages.SNAPSHOT) as connection:
    connection.sendall(wire.encode(wire.event(3, messages.OFFER, {"id": "s1", "kind": "crash"})))
    if dial_in.receive(connection, messages.WANTED)["wanted"]:
        connection.sendall(wire.encode(wire.event(4, messages.SNAPSHOT, {"data": "eA=="})))
        dial_in.receive(connection, messages.KEPT)
dial_in._secret = ""
try:
    dial_in.proven_connection(messages.SNAPSHOT)
except dial_in.Unreachable as refused:
    print(refused)
"""


@pytest.mark.timeout(60)
def test_process_that_names_another_job(gateway: GatewayUnderTest) -> None:
    """Pauses and snapshots are of the job whose control channel their process has, whatever it says later."""
    program = gateway.start(JOBS, RAYDEBUG_JOB="own")
    (pause,) = gateway.pauses()
    assert pause["job"] == "own"
    gateway.resume(pause["id"])
    out, err = program.communicate(timeout=60)
    assert "it has no secret of its own" in out, err
    found = {job: [one["id"] for one in fetch_snapshots(gateway, job)] for job in ("own", "theirs")}  # type: ignore[arg-type]
    assert found == {"own": ["s1"], "theirs": []}


async def test_spans_of_a_process_that_answers_late():
    """Late spans are given to who asks next; beyond the limit the oldest are counted for the recorder of their job."""
    control, channel = Control(Numbers()), ControlChannel({"pid": 4, "job": "j"}, Wire())
    control.channels.add(channel)
    (silent,) = await control.ask(SPANS, {}, {"job": "j"}, 0.01)
    assert silent["state"] == "silent"
    spans = [{"name": f"s{number}", "began_ns": 1, "ended_ns": 2} for number in range(1000)]
    control._take(channel, {"request_seq": 1, "body": {"spans": spans, "lost": 3}})
    control.channels.clear()
    (late,) = await control.ask(SPANS, {}, {"job": "j"}, 0.01)
    assert (len(late["answer"]["spans"]), late["answer"]["lost"]) == (1000, 3)
    other = ControlChannel({"pid": 5, "job": "k"}, Wire())
    control._take(channel, {"event": "lastSpans", "body": {"spans": spans, "lost": 3}})
    for _ in range(20):
        control._take(other, {"event": "lastSpans", "body": {"spans": spans}})
    found = await control.ask(SPANS, {}, {"job": "j"}, 0.01)
    assert [one["answer"] for one in found] == [{"lost": 1003}]
    found = await control.ask(SPANS, {}, {"job": "k"}, 0.01)
    assert sum(len(one["answer"].get("spans", ())) + one["answer"].get("lost", 0) for one in found) == 20_000
    assert await control.ask(SPANS, {}, {}, 0.01) == []


SITE = """
from raydebug.worker.breakpoints.runtime import Site

for every in (1, 3):
    site = Site({"id": "b1", "where": "lib.py:1", "policy": {"every": every}})
    once_round = [False] * (every - 1) + [True]
    assert [site.is_due() for _ in once_round] == once_round
    site.armed = False
    assert not any(site.is_due() for _ in range(10))
    site.arm()
    assert [site.is_due() for _ in 2 * once_round] == 2 * once_round
    site.is_due()
    site.arm()  # as each new gateway asks for it: a count that runs goes on
    assert [site.is_due() for _ in once_round[1:]] == once_round[1:]
"""


def test_site_that_was_removed_and_is_set_again():
    """A removed breakpoint pauses no call; one that is set again counts from the start."""
    subprocess.run([sys.executable, "-c", SITE], check=True)


CLOSES_ALL = """
import os, socket, time
from raydebug.worker import control_channel
control_channel.open_channel()
print("ready", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
os.closerange(3, 256)
ends = [*socket.socketpair(), *socket.socketpair(), *socket.socketpair()]
print("closed", flush=True)
while os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
for end in ends:
    end.setblocking(False)
    try:
        print(end.fileno(), end.recv(100))
    except BlockingIOError:
        print("nothing")
"""


def test_program_that_closes_all_descriptors(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    """Nothing is written to a file of the program that has got the channel's number; the process connects again."""
    go = tmp_path / "go"
    program = gateway.start(CLOSES_ALL, GO=str(go), RAYDEBUG_JOB="j")
    assert program.stdout.readline() == "ready\n"
    assert len(fetch_processes(gateway)) == 1
    go.touch()
    assert program.stdout.readline() == "closed\n"
    deadline = time.monotonic() + 30
    while not any(process["answers"] for process in fetch_processes(gateway)):
        assert time.monotonic() < deadline
    go.unlink()
    assert program.communicate(timeout=30)[0].split() == ["nothing"] * 6
