"""A client whose network is gone: another host than the gateway's, and the cable between them is cut.

The programs are the real ones, `raydebug attach` too; the hosts are network namespaces (tests/support/two_hosts.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from gateway_under_test import PAUSES, GatewayUnderTest, open_gateway
from raydebug.dap import DapSession
from two_hosts import SERVER, NoNamespaces, TwoHosts, two_hosts

pytestmark = pytest.mark.timeout(200)

RAYDEBUG = str(Path(sys.executable).parent / "raydebug")
PROMPT = r"\(raydebug\)"
SHOWING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # a terminal's control sequences
DETECTED_WITHIN_S = 30.0
HANG_S = 100.0  # a guard against waiting for ever; what is wanted is noted beside what was measured


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    try:
        with two_hosts() as both:
            yield both
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.fixture
def there(hosts: TwoHosts, tmp_path: Path) -> Iterator[GatewayUnderTest]:
    """A gateway on the server, and a program that pauses there."""
    with open_gateway(tmp_path, host=SERVER, run_on=hosts.server.argv) as gateway:
        yield gateway


class Person:
    """`raydebug attach` in a terminal of one of the hosts."""

    def __init__(self, gateway: GatewayUnderTest, argv: Callable[..., list[str]], pause_id: str) -> None:
        plain = {"TERM": "xterm", "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1"}
        command, *arguments = argv(RAYDEBUG, "attach", pause_id)
        environment = {**gateway.client_env, **plain}
        self.child = pexpect.spawn(command, arguments, env=environment, encoding="utf-8", timeout=30)
        self.child.expect(PROMPT)

    def ended(self) -> tuple[int, str]:
        """Wait until it ends by itself; return its exit code and its output."""
        self.child.expect(pexpect.EOF, timeout=HANG_S)
        self.child.wait()
        return int(self.child.exitstatus or 0), str(self.child.before)


@pytest.fixture
def attach(there: GatewayUnderTest) -> Iterator[Callable[..., Person]]:
    opened: list[Person] = []

    def start(argv: Callable[..., list[str]], pause_id: str) -> Person:
        opened.append(Person(there, argv, pause_id))
        return opened[-1]

    yield start
    for one in opened:
        one.child.close(force=True)


def listed(gateway: GatewayUnderTest, hosts: TwoHosts) -> list[dict[str, Any]]:
    """Return the pauses, fetched on the server."""
    said = hosts.server.run("env", *_changed(gateway.client_env), RAYDEBUG, "paused", "--json")
    return list(json.loads(said)["pauses"])


def _changed(environment: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items() if os.environ.get(name) != value]


def wait_state(gateway: GatewayUnderTest, hosts: TwoHosts, state: str) -> float:
    """Wait until the one pause is in a state; return the time it took."""
    begin = time.monotonic()
    while [one["state"] for one in listed(gateway, hosts)] != [state]:
        assert time.monotonic() - begin < HANG_S, f"the pause is not {state}: {listed(gateway, hosts)}"
        time.sleep(0.5)
    return time.monotonic() - begin


def goes_on_from_the_server(
    gateway: GatewayUnderTest, hosts: TwoHosts, attach: Callable[..., Person], program: Any
) -> None:
    """Attach on the server to the same frame, and let the program run to its end."""
    (pause,) = listed(gateway, hosts)
    assert (pause["line"], pause["function"]) == (3, "work")
    person = attach(hosts.server.argv, pause["id"])
    person.child.sendline("p secret")
    person.child.expect("41")
    person.child.sendline("c")
    assert person.ended()[0] == 0
    assert program.communicate(timeout=60)[0] == "went on 41\n"


@pytest.mark.long
@pytest.mark.parametrize("asks", [False, True], ids=["idle", "an answer is on its way"])
def test_f18_half_open(there, hosts, attach, took, asks):
    """F18: a client that falls silent is detected and its pause is released; the task stays paused."""
    program = there.start(PAUSES)
    wait_state(there, hosts, "waiting")
    person = attach(hosts.client.argv, "1")
    if asks:  # what is not acknowledged keeps the kernel from asking whether the other side is there
        person.child.sendline("__import__('time').sleep(3)")
        time.sleep(1)
    hosts.cut()
    took("noticed after", wait_state(there, hosts, "waiting"), DETECTED_WITHIN_S)
    goes_on_from_the_server(there, hosts, attach, program)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_f18_killed_client(there, hosts, attach, took):
    """F18: the pause of a killed client is released; the task stays paused."""
    program = there.start(PAUSES)
    wait_state(there, hosts, "waiting")
    person = attach(hosts.client.argv, "1")
    person.child.kill(signal.SIGKILL)
    took("noticed after", wait_state(there, hosts, "waiting"), DETECTED_WITHIN_S)
    goes_on_from_the_server(there, hosts, attach, program)


@pytest.mark.long
def test_f21_cut_of_10_s(there, hosts, attach, took):
    """F21: a session survives a cut of 10 s between client and gateway; requests sent meanwhile are answered later."""
    program = there.start(PAUSES)
    wait_state(there, hosts, "waiting")
    person = attach(hosts.client.argv, "1")
    hosts.cut()
    time.sleep(2)
    person.child.sendline("p secret + 900")
    time.sleep(8)
    assert [one["state"] for one in listed(there, hosts)] == ["attached"]
    hosts.heal()
    begin = time.monotonic()
    person.child.expect("941", timeout=HANG_S)
    took("answered after the cut's end by", time.monotonic() - begin, None)
    person.child.sendline("c")
    assert person.ended()[0] == 0
    assert program.communicate(timeout=60)[0] == "went on 41\n"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("asks", [False, True], ids=["idle", "asks"])
def test_f21_cut_of_60_s(there, hosts, attach, took, asks):
    """F21: a cut of 60 s ends the session with a message and exit code 4; the pause waits for another client."""
    program = there.start(PAUSES)
    wait_state(there, hosts, "waiting")
    person = attach(hosts.client.argv, "1")
    hosts.cut()
    begin = time.monotonic()
    if asks:
        person.child.sendline("p secret + 900")
    took("place free after", wait_state(there, hosts, "waiting"), DETECTED_WITHIN_S)
    code, said = person.ended()
    took("client told after", time.monotonic() - begin, 60.0)
    assert code == 4
    words = [
        line.strip() for line in SHOWING.sub("", said).splitlines() if line.startswith(("error:", "cause:", "fix:"))
    ]
    assert words == [
        "error: the session ended: the gateway is out of reach",
        f"cause: {SERVER}:{there.gateway_port} does not answer: Connection timed out",
        "fix: the task stays paused: `raydebug attach` again when the network is back",
    ], said
    time.sleep(max(0.0, 60.0 - (time.monotonic() - begin)))
    hosts.heal()
    person = attach(hosts.client.argv, "1")
    person.child.sendline("p secret")
    person.child.expect("41")
    person.child.sendline("c")
    assert person.ended()[0] == 0
    assert program.communicate(timeout=60)[0] == "went on 41\n"


@pytest.mark.long
def test_f21_cut_tells_an_editor(there, hosts, took):
    """F21: an editor's adapter, cut off from the gateway, ends the session with the reason; the pause waits."""
    there.start(PAUSES)
    wait_state(there, hosts, "waiting")

    async def look():
        adapter = await asyncio.create_subprocess_exec(
            *hosts.client.argv(RAYDEBUG, "adapter"), env=there.client_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert adapter.stdout is not None
        assert adapter.stdin is not None
        editor = DapSession(adapter.stdout, adapter.stdin)
        await editor.request("initialize")
        await editor.request("attach", {"target": "1"})
        await editor.request("configurationDone")
        await editor.next_event("stopped", timeout_s=20)
        hosts.cut()
        begin = time.monotonic()
        ended = await editor.next_event("terminated", timeout_s=HANG_S)
        took("editor told after", time.monotonic() - begin, 60.0)
        said = "the gateway is out of reach: Connection timed out; the task stays paused"
        assert ended["body"]["reason"] == said
        assert await asyncio.wait_for(adapter.wait(), 10) == 0

    asyncio.run(look())
    wait_state(there, hosts, "waiting")
