"""S9 under slow connections without the token, on both ports: nobody who holds the token waits for them.

RAYDEBUG_TEST_LONG=1 keeps 1,000 connections on each port for a minute; without it these are 300 for some seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_under_test import TOKEN, GatewayUnderTest, visit
from raydebug.client.gateway_client import fetch_pauses
from raydebug.errors import RaydebugError
from raydebug.gateway.listener import MAX_UNPROVEN, raise_file_limit
from raydebug.protocol import wire

LONG = bool(os.environ.get("RAYDEBUG_TEST_LONG"))
COUNT, SECONDS, BREAKPOINTS = (1000, 60.0, 20) if LONG else (300, 3.0, 3)
CROWD_LIMIT_S = 230.0
SCRIPT = Path(__file__).resolve().parents[1] / "support" / "slow_connections.py"
WORK = "def work():\n    breakpoint()\n\nfor _ in range({}):\n    work()\nprint('done')\n"
TIMED = "import time\nprint(time.monotonic(), flush=True)\nbreakpoint()\nprint('done')\n"


@pytest.fixture
def crowd(gateway: GatewayUnderTest) -> Iterator[list[subprocess.Popen[str]]]:
    """Slow connections on both ports of the gateway."""
    crowd = []
    for port in (gateway.dial_port, gateway.gateway_port):
        argv = [sys.executable, "-S", str(SCRIPT), "127.0.0.1", str(port), str(COUNT), str(CROWD_LIMIT_S)]
        crowd.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
    time.sleep(1)  # all of them have connected by now
    yield crowd
    for one in crowd:
        one.kill()
        one.communicate()


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_s9_slow_connections(gateway, crowd, took, record_property):
    """S9: under slow connections on both ports every pause of every process is listed and can be attached to."""
    begin, listed, attached = time.monotonic(), [], []
    while len(listed) < BREAKPOINTS or time.monotonic() < begin + SECONDS:
        program = gateway.start(TIMED)
        assert program.stdout is not None
        at_its_breakpoint = float(program.stdout.readline())
        pause = only_pause(gateway)
        listed.append(time.monotonic() - at_its_breakpoint)
        begins_to_attach = time.monotonic()
        visit(gateway, lambda pause_id=pause["id"]: go_on(gateway, pause_id, attached))
        attached[-1] -= begins_to_attach
        out, err = program.communicate(timeout=60)
        assert out == "done\n"
        assert "not paused" not in err
    assert all(one.poll() is None for one in crowd), "they were there all the time"
    took("a breakpoint was listed after at most", max(listed), 2.0)
    took("attached after at most", max(attached), 1.0)
    record_property("breakpoints", f"{len(listed)}, with {COUNT} slow connections on each port")


def only_pause(gateway: GatewayUnderTest) -> dict[str, Any]:
    """Wait until a pause is listed; a busy machine may take its time."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(RaydebugError):
            found = [pause for pause in fetch_pauses(gateway) if pause["state"] == "waiting"]  # type: ignore[arg-type]
            if found:
                return found[0]
        time.sleep(0.02)
    raise AssertionError("no pause is listed")


async def go_on(gateway: GatewayUnderTest, pause_id: str, attached: list[float]) -> None:
    """Attach, note the time, and resume the pause."""
    session, stopped = await gateway.attach(pause_id)
    attached.append(time.monotonic())
    await session.request("continue", {"threadId": stopped["threadId"]})
    await session.close()


def test_s9_first_packet_is_read_before_others_displace_it(gateway):
    """S9: a process whose first packet has arrived is authenticated, even if more peers connect than the budget."""
    raise_file_limit()
    gateway.process.send_signal(signal.SIGSTOP)  # they all wait in the kernel
    try:
        many = [connect(gateway) for _ in range(200)]
        nonce = wire.new_nonce()
        own = connect(gateway)
        own.sendall(
            wire.encode(wire.event(1, "hello", {"nonce": nonce, "proof": wire.proof(TOKEN, wire.AS_HELLO, nonce)}))
        )
        many += [connect(gateway) for _ in range(MAX_UNPROVEN + 100)]
    finally:
        gateway.process.send_signal(signal.SIGCONT)
    with own:
        own.settimeout(20)
        (answer,) = wire.Decoder().feed(own.recv(4096))
        assert answer["event"] == "proof"
    deadline = time.monotonic() + 20
    while (ended := sum(is_closed(one) for one in many)) < 200:  # the oldest are closed for the newest
        assert time.monotonic() < deadline, f"{ended} were closed"
        time.sleep(0.1)
    assert "it had not shown the token" in gateway.log
    for one in many:
        one.close()


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def connect(gateway: GatewayUnderTest) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.dial_port), timeout=20)


@pytest.mark.slow
def test_process_waits_for_a_gateway_that_is_not_there_yet(gateway):
    """F20: a breakpoint reached without a gateway waits for the next gateway, and the job's log says so."""
    gateway.kill()
    program = gateway.start(WORK.format(1))
    time.sleep(4)
    assert program.poll() is None
    gateway.open()
    (pause,) = gateway.pauses()
    visit(gateway, lambda: go_on(gateway, pause["id"], []))
    out, err = program.communicate(timeout=60)
    assert out == "done\n"
    assert err.count("program0.py:2 waits to pause for up to 3600 s, until the gateway answers: no gateway at") == 1


def test_process_waits_once(gateway):
    """F20: after a process has waited for a gateway until its limit, its further breakpoints do not wait."""
    gateway.kill()
    program = gateway.start(WORK.format(50), RAYDEBUG_PATIENCE_S="2")
    out, err = program.communicate(timeout=60)
    assert out == "done\n"
    assert err.count("not paused: no gateway") == 50
