"""Stacks and lists of many processes: what travels, and what a second client notices."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

import pytest

import simulated_processes
from gateway_under_test import TOKEN, GatewayUnderTest
from raydebug.client.gateway_client import fetch_processes, fetch_stacks
from raydebug.gateway import control
from raydebug.gateway.channel import ControlChannel
from raydebug.protocol import messages, wire
from raydebug.protocol.records import StackFrame, digest_of
from raydebug.worker import dial_in
from simulated_processes import Peer

FRAMES: list[StackFrame] = [{"file": "/job/train.py", "line": line, "function": "step"} for line in (3, 2, 1)]
OTHER: list[StackFrame] = [{"file": "/job/reward.py", "line": 7, "function": "wait"}]


class Simulated:
    """A process of a job with one thread in FRAMES, which counts what it is asked."""

    frames = FRAMES

    def __init__(self, pid: int) -> None:
        self.pid, self.asked = pid, list[str]()
        self._socket = dial_in.proven_connection(messages.CONTROL, timeout_s=10)
        self._socket.settimeout(None)
        self.send(messages.KNOWN, {"breaks": [], "set": []})
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, name: str, body: dict[str, Any]) -> None:
        self._socket.sendall(wire.encode(wire.event(1, name, body)))

    def _serve(self) -> None:
        decoder = wire.Decoder()
        while data := self._socket.recv(65536):
            for message in decoder.feed(data):
                if message["type"] == "request":
                    self.asked.append(message["command"])
                    body = self.answer(message["command"], message["arguments"])
                    self._socket.sendall(wire.encode(wire.response(1, message, body)))

    def answer(self, asked: str, body: dict[str, Any]) -> dict[str, Any]:
        if asked == "stacks":
            frames = {"digest": digest_of(self.frames)} if body.get("digests") else {"frames": self.frames}
            return {"pid": self.pid, "threads": [{"name": "MainThread", **frames, "cpu_s": float(self.pid)}]}
        return {"pid": self.pid} if asked == "describe" else self.frames_for(body["digests"])

    def frames_for(self, digests: list[str]) -> dict[str, Any]:
        return {"known": [{"digest": digest, "frames": self.frames} for digest in digests]}


class Liar(Simulated):
    """A process that sends other frames than those that its digest stands for."""

    def frames_for(self, digests: list[str]) -> dict[str, Any]:
        return {"known": [{"digest": digest, "frames": OTHER} for digest in digests]}


class Elsewhere(Simulated):
    """A process that waits in another place."""

    frames = OTHER


Start = Callable[..., list[Simulated]]


@pytest.fixture
def start(gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start simulated processes of these kinds, with the pids 1, 2 ..., and wait until the gateway knows them."""
    for name in ("RAYDEBUG_GATEWAY", "RAYDEBUG_TOKEN_PATH"):
        monkeypatch.setenv(name, gateway.environment[name])
    monkeypatch.setattr(dial_in.records, "describe_process", dict)
    secrets = itertools.count()

    def begin(*kinds: type[Simulated]) -> list[Simulated]:
        begun = []
        for pid, kind in enumerate(kinds, 1):
            monkeypatch.setattr(dial_in, "_secret", f"i{next(secrets)}")
            begun.append(kind(pid))
        while len(fetch_processes(gateway)) < len(kinds):
            pass
        return begun

    return begin


def taken(gateway: GatewayUnderTest, timeout_s: float = 10.0) -> list[Any]:
    """Return state and threads of each process, by pid."""
    found = fetch_stacks(gateway, timeout_s=timeout_s)
    return [(one["state"], one["threads"]) for one in sorted(found, key=lambda one: one["pid"] or 0)]


def thread_of(pid: int, frames: list[StackFrame]) -> list[dict[str, Any]]:
    return [{"name": "MainThread", "frames": frames, "cpu_s": float(pid)}]


def test_equal_frames_are_sent_once(gateway: GatewayUnderTest, start: Start) -> None:
    """Of processes that wait in the same place one sends its frames; all are listed with them."""
    processes = start(Simulated, Simulated, Elsewhere, Simulated)
    expected = [("answered", thread_of(one.pid, one.frames)) for one in processes]
    assert taken(gateway) == expected
    asked = [one.asked.count("frames") for one in processes]
    assert (sum(asked), asked[2]) == (2, 1)


def test_a_debugger_of_others_gets_whole_stacks(gateway: GatewayUnderTest, start: Start) -> None:
    """POST /stacks with a token lists each process with all of its frames, as before."""
    processes = start(Simulated, Simulated)
    question = json.dumps({"timeout_s": 10}).encode()
    request = Request(f"http://127.0.0.1:{gateway.gateway_port}/stacks", question)  # noqa: S310 - our own address
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with urlopen(request, timeout=20) as answer:  # noqa: S310 - as above
        document = json.loads(answer.read())
    assert (document["version"], sorted(document)) == (1, ["processes", "version"])
    listed = {one["pid"]: one for one in document["processes"]}
    assert [listed[one.pid]["threads"] for one in processes] == [thread_of(one.pid, FRAMES) for one in processes]
    assert [listed[one.pid]["pauses"] for one in processes] == [[], []]


def test_frames_that_are_not_those_of_the_digest(gateway: GatewayUnderTest, start: Start) -> None:
    """A process cannot have its frames shown as another's; when nobody sends the right ones, it is silent."""
    start(Liar)
    assert taken(gateway, 1.0) == [("silent", [])]


def test_the_next_process_is_asked(gateway: GatewayUnderTest, start: Start) -> None:
    """When a process does not send the frames of its digest, another with the same digest is asked."""
    processes = start(Liar, Liar, Simulated)
    assert taken(gateway) == [("answered", thread_of(one.pid, FRAMES)) for one in processes]


async def test_a_fresh_description_is_kept() -> None:
    """`ps --processes` asks no process again whose description is fresh; what needs a new one asks all."""
    peer = Peer()
    channel = ControlChannel({"pid": 1}, peer)
    for fresh_s, asked in ((60.0, 1), (60.0, 1), (0.0, 2)):
        updating = asyncio.ensure_future(channel.update(fresh_s))
        await asyncio.sleep(0)
        assert len(peer.asked) == asked
        channel.take(wire.response(1, peer.asked[-1], {"pid": 1}))
        await updating
        assert channel.answers


async def test_processes_are_asked_in_turns() -> None:
    """A second turn of processes is asked when the first has answered, or does not answer soon."""
    begun, first = [], asyncio.Event()

    async def ask(number: int) -> int:
        begun.append(number)
        if number == 0:
            await first.wait()
        return number

    asking = asyncio.ensure_future(control._in_turns([ask(number) for number in range(130)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(begun) == control.ASKED_IN_A_TURN
    while len(begun) < 130:  # the first one has not answered
        await asyncio.sleep(0.001)
    first.set()
    assert await asking == list(range(130))


@pytest.mark.alone
def test_a_second_client_during_stacks_of_a_thousand(gateway: GatewayUnderTest) -> None:
    """While the stacks of 1,000 processes are taken, another client's list of pauses comes within 0.5 s."""
    argv = [sys.executable, "-c", simulated_processes.PROCESSES, "1000", "0", "now"]
    with subprocess.Popen(argv, env=gateway.environment, stdout=subprocess.PIPE) as processes:
        try:
            assert processes.stdout.readline() == b"ready\n"
            assert simulated_processes.during_stacks(gateway) < 0.5
            found = fetch_stacks(gateway, timeout_s=10.0)
            assert [one["state"] for one in found] == ["answered"] * 1000
            assert {len(one["threads"]) for one in found} == {7}
        finally:
            processes.kill()
