"""The watchdog of a process that holds Python's lock in native code (RAYDEBUG_WATCHDOG), without Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.gateway.gateway_client import fetch_stacks
from raydebug.gateway.watchdogs import parse
from raydebug.stacks.verdict import judge

WAIT_S = 20.0
OPEN = "from raydebug.worker import control_channel\ncontrol_channel.open_channel()\n"
GIL = "import ctypes, time\ndef hold(seconds):\n    ctypes.PyDLL(None).usleep(int(seconds * 1e6))\n"
HOLDS = "time.sleep(0.6)\nprint('ready', flush=True)\nhold(20)\n"
USERS = (
    "import faulthandler, sys\nfaulthandler.dump_traceback_later(2.5, file=sys.stdout)\ntime.sleep(1)\n"
    "print('ready', flush=True)\nhold(2)\ntime.sleep(20)\n"
)
FORKS = """
import os
time.sleep(0.6)
print('ready', flush=True)
for number in range(50):
    child = os.fork()
    if child == 0:
        if number == 49:
            time.sleep(0.8)
            hold(20)
        os._exit(0)
    if number < 49:
        assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.01)
time.sleep(20)
"""


def until(gateway: GatewayUnderTest, is_right: Callable[[list[Any]], bool]) -> list[Any]:
    """Fetch stacks until a condition holds."""
    deadline, found = time.monotonic() + WAIT_S, []
    while not is_right(found):
        assert time.monotonic() < deadline, found
        found = fetch_stacks(gateway, timeout_s=0.2)  # type: ignore[arg-type]
    return found


def start(gateway: GatewayUnderTest, program: str, limit_s: str = "0.5") -> Any:
    process = gateway.start(OPEN + GIL + program, RAYDEBUG_JOB="j1", RAYDEBUG_WATCHDOG=limit_s)
    assert process.stdout is not None
    while "ready" not in process.stdout.readline():
        pass
    return process


def test_process_that_holds_the_gil(gateway: GatewayUnderTest) -> None:
    """A process that cannot answer is shown with the stack that its watchdog wrote; the verdict gives the line."""
    start(gateway, HOLDS)
    found = until(gateway, lambda found: any(one["state"] == "watchdog" for one in found))
    assert [one["function"] for one in found[0]["threads"][0]["frames"]] == ["hold", "<module>"]
    assert 0 <= found[0]["age_s"] < WAIT_S
    verdict = judge([found])
    assert (verdict["kind"], verdict["certainty"], verdict["pids"]) == ("gil", "likely", [found[0]["pid"]])
    assert "called at " in verdict["text"]
    assert ":5 hold" in verdict["text"]


def test_process_that_answers_again(gateway: GatewayUnderTest) -> None:
    """The text of an earlier hang is dropped."""
    start(gateway, "time.sleep(0.6)\nprint('ready', flush=True)\nhold(1.5)\ntime.sleep(1)\nhold(20)\n")
    until(gateway, lambda found: any(one["state"] == "watchdog" for one in found))
    until(gateway, lambda found: any(one["state"] == "answered" for one in found))
    seen: set[str] = set()

    def look(found: list[Any]) -> bool:
        seen.update(one["state"] for one in found)
        return "watchdog" in seen

    until(gateway, look)
    assert "silent" in seen, "before the watchdog writes again, nothing old is shown"


@pytest.mark.parametrize("limit_s", ["0", "soon"])
def test_off(gateway: GatewayUnderTest, limit_s: str) -> None:
    """With RAYDEBUG_WATCHDOG=0, or without a number there, faulthandler is not used."""
    start(gateway, HOLDS, limit_s)
    until(gateway, lambda found: bool(found))
    time.sleep(1)
    assert [one["state"] for one in fetch_stacks(gateway, timeout_s=0.2)] == ["silent"]  # type: ignore[arg-type]


def test_timer_of_the_user(gateway: GatewayUnderTest) -> None:
    """A program that uses faulthandler's timer itself keeps it: its text goes to its own file, ours stays off."""
    process = start(gateway, USERS)
    text = "".join(process.stdout.readline() for _ in range(2))
    assert "Timeout (0:00:02.500000)!" in text
    states = [one["state"] for one in fetch_stacks(gateway, timeout_s=0.2)]  # type: ignore[arg-type]
    assert "watchdog" not in states


def test_forks(gateway: GatewayUnderTest) -> None:
    """Forks with a running watchdog exit as usual; a child that continues has its own watchdog."""
    process = start(gateway, FORKS)
    found = until(gateway, lambda found: any(one["state"] == "watchdog" for one in found))
    (stuck,) = [one for one in found if one["state"] == "watchdog"]
    assert stuck["pid"] != process.pid
    assert stuck["threads"][0]["frames"][0]["function"] == "hold"
    assert process.poll() is None
    os.kill(stuck["pid"], signal.SIGKILL)


def test_hostile_text() -> None:
    """A text that is cut, endless or not from faulthandler gives few threads and no error."""
    assert parse("") == []
    assert parse('  File "a.py", line 1 in f\n' * 3) == []
    assert parse("Thread 0x") == []
    assert parse("Thread 0xab") == []
    many = 'Thread 0x1 (most recent call first):\n  File "a.py", line 99999999999 in f\n  File "a", line 2 in g\n' * 500
    assert len(parse(many)) == 100
    assert parse(many)[0]["frames"] == [{"file": "a", "line": 2, "function": "g"}]
    (one,) = parse(f'Thread 0x1 x\n  File "{"y" * 5000}", line 1 in f\n  File "b", line 1 in f\n')
    assert [frame["file"] for frame in one["frames"]] == ["b"]
