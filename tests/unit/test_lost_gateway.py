"""A process whose gateway is killed, or whose connection breaks, stays paused and dials in again (without Ray)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time

import pytest

from raydebug.dap import RequestFailed
from raydebug.jobs.follower import Follower
from raydebug.worker import control_channel
from raydebug.worker.reconnecting_socket import end_of_whole_messages

PAUSES = "def work():\n    secret = 41\n    breakpoint()\n    return secret\n\nprint('went on', work())\n"
RELISTED_WITHIN_S = 2.0


async def go_on(gateway, pause_id: str) -> None:
    """Resume a pause, after reading its frame."""
    session, stopped = await gateway.attach(pause_id)
    thread = {"threadId": stopped["threadId"]}
    (frame, *_) = (await session.request("stackTrace", thread))["stackFrames"]
    value = await session.request("evaluate", {"expression": "secret", "frameId": frame["id"]})
    assert value["result"] == "41"
    await session.request("continue", thread)
    await session.close()


async def test_new_gateway_lists_the_pause_again(gateway):
    """F20: after the gateway was killed, a new one lists the pause within 2 s, at the same frame and with its age."""
    program = gateway.start(PAUSES)
    (before,) = gateway.pauses()
    gateway.kill()
    time.sleep(3)
    gateway.open()
    started = time.monotonic()
    (after,) = gateway.pauses()
    assert time.monotonic() - started < 10 * RELISTED_WITHIN_S, "the rest is the load of this machine"
    place = ("kind", "file", "line", "function", "thread", "pid")
    assert [after[name] for name in place] == [before[name] for name in place]
    assert after["since_s"] > 3
    await go_on(gateway, after["id"])
    out, err = program.communicate(timeout=60)
    assert out == "went on 41\n"
    assert err.count("stays paused") == 1
    assert "Traceback" not in err


async def test_step_is_under_way(gateway):
    """When the gateway dies during a step, the thread pauses after the step and waits for the next gateway."""
    program = gateway.start(
        "import time\n\ndef work():\n    secret = 41\n    breakpoint()\n    time.sleep(3)\n    return secret\n\n"
        "print('went on', work())\n"
    )
    (pause,) = gateway.pauses()
    session, stopped = await gateway.attach(pause["id"])
    await session.request("next", {"threadId": stopped["threadId"]})
    await session.next_event("stopped", timeout_s=20)
    session.send("next", {"threadId": stopped["threadId"]})
    await asyncio.sleep(0.5)
    gateway.kill()
    time.sleep(1)
    gateway.open()
    (again,) = gateway.pauses()
    assert again["line"] == 7
    await go_on(gateway, again["id"])
    assert program.communicate(timeout=60)[0] == "went on 41\n"


async def test_post_mortem_stays(gateway):
    """A post-mortem pause is listed again with its exception, at the frame that raised."""
    program = gateway.start(
        "def work():\n    secret = 41\n    raise ValueError(f'no {secret}')\n\nwork()\n", RAY_DEBUG_POST_MORTEM="1"
    )
    gateway.pauses()
    gateway.kill()
    gateway.open()
    (again,) = gateway.pauses()
    assert (again["kind"], again["exception"], again["line"]) == ("post-mortem", "ValueError: no 41", 3)
    session, stopped = await gateway.attach(again["id"])
    assert stopped["reason"] == "exception"
    thread = {"threadId": stopped["threadId"]}
    (frame, *_) = (await session.request("stackTrace", thread))["stackFrames"]
    assert (await session.request("evaluate", {"expression": "secret", "frameId": frame["id"]}))["result"] == "41"
    assert (await session.request("exceptionInfo", thread))["exceptionId"].startswith("ValueError")
    await session.request("continue", thread)
    assert program.communicate(timeout=60)[1].rstrip().endswith("ValueError: no 41")
    assert program.returncode == 1


async def test_two_threads(gateway):
    """Two suspended threads are both listed again, and so is one that pauses while there is no gateway."""
    killed = gateway.folder / "killed"
    program = gateway.start(
        "import os, threading, time\n\ndef work(name):\n    secret = 41\n"
        f"    while name == 'later' and not os.path.exists({str(killed)!r}):\n        time.sleep(0.05)\n"
        "    breakpoint()\n\n"
        "threads = [threading.Thread(target=work, args=(n,), name=n) for n in ('first', 'second', 'later')]\n"
        "[t.start() for t in threads]\n[t.join() for t in threads]\nprint('went on')\n"
    )
    gateway.pauses(2)
    gateway.kill()
    killed.touch()
    time.sleep(3)
    gateway.open()
    pauses = gateway.pauses(3)
    assert sorted(p["thread"] for p in pauses) == ["first", "later", "second"]
    for pause in pauses:
        await go_on(gateway, pause["id"])
    assert program.communicate(timeout=60)[0] == "went on\n"


async def test_numbers_keep_their_pauses(gateway):
    """After restarts each number names the pause of before, or is refused with the reason; no new pause has it."""
    ranks = [gateway.start("breakpoint()\nbreakpoint()\n", RANK=str(rank)) for rank in range(4)]
    before = {pause["id"]: pause["rank"] for pause in gateway.pauses(4)}
    (first, *_) = before
    await resume(gateway, first)
    after = {pause["id"]: pause["rank"] for pause in gateway.pauses(4)}
    assert after == {**{i: rank for i, rank in before.items() if i != first}, "5": before[first]}
    for _ in range(2):
        gateway.kill()
        gateway.open()
        again = {pause["id"]: pause["rank"] for pause in gateway.pauses(4)}
        assert list(again.items()) == list(after.items()), "in the order in which they began"
    with pytest.raises(RequestFailed) as refused:
        await gateway.attach(first)
    assert "dialled in again since the gateway restarted" in str(refused.value)
    gateway.kill()
    (gateway.folder / "numbers").unlink()
    gateway.open()
    assert not {pause["id"] for pause in gateway.pauses(4)} & {*before, *after}
    assert [rank.poll() for rank in ranks] == [None] * 4


async def test_run_announces_each_pause_once(gateway):
    """`run` announces a new pause after a restart of the gateway, and no pause of before a second time."""
    gateway.start("breakpoint()\nbreakpoint()\nbreakpoint()\n", RAYDEBUG_JOB="j1")
    announced = []

    def note(pause):
        announced.append((pause["id"], pause["line"]))

    watching = asyncio.ensure_future(Follower(gateway, "j1", on_log=print, on_pause=note)._watch_pauses())
    for count in (1, 2, 3):
        while len(announced) < count:
            await asyncio.sleep(0.01)
        if count == 2:
            await asyncio.to_thread(gateway.kill)
            await asyncio.to_thread(gateway.open)
        (pause,) = await asyncio.to_thread(gateway.pauses)
        await resume(gateway, pause["id"])
    watching.cancel()
    assert announced == [("1", 1), ("2", 2), ("3", 3)]


async def resume(gateway, pause_id: str) -> None:
    session, stopped = await gateway.attach(pause_id)
    await session.request("continue", {"threadId": stopped["threadId"]})
    await session.close()


async def test_answer_for_an_earlier_gateway(gateway):
    """The late response to a request of a dead gateway is not taken for a response to the new one."""
    program = gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    session, stopped = await gateway.attach(pause["id"])
    (frame, *_) = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"]
    session.send("evaluate", {"expression": "__import__('time').sleep(2) or 'old'", "frameId": frame["id"]})
    await asyncio.sleep(0.5)
    gateway.kill()
    gateway.open()
    (again,) = gateway.pauses()
    await go_on(gateway, again["id"])
    assert program.communicate(timeout=60)[0] == "went on 41\n"


@pytest.mark.slow
@pytest.mark.parametrize("patience_s", [0, 2])
def test_patience_ends(gateway, patience_s):
    """F20: without a gateway until the limit (0: at once) the program continues, and logs it."""
    program = gateway.start(PAUSES + "work()\n", RAYDEBUG_PATIENCE_S=str(patience_s))
    gateway.pauses()
    gateway.kill()
    started = time.monotonic()
    out, err = program.communicate(timeout=60)
    assert out == "went on 41\n"
    assert time.monotonic() - started >= patience_s
    assert f"raydebug: resumes: the gateway did not come back within {patience_s} s: " in err
    assert "not paused: no gateway" in err, "its next breakpoint says so too"
    assert program.returncode == 0


async def test_no_pause_when_the_gateway_dies(gateway):
    """A process that runs when its gateway dies does not dial in; its next breakpoint finds the new gateway."""
    go = gateway.folder / "go"
    program = gateway.start(
        "import os, time\n\ndef work():\n    secret = 41\n    breakpoint()\n\nwork()\nprint('first', flush=True)\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\nwork()\nprint('second')\n"
    )
    (first,) = gateway.pauses()
    await go_on(gateway, first["id"])
    gateway.kill()
    gateway.open()
    time.sleep(1.5)
    assert gateway.pauses(0) == []
    go.touch()
    (second,) = gateway.pauses()
    await go_on(gateway, second["id"])
    out, err = program.communicate(timeout=60)
    assert out == "first\nsecond\n"
    assert err.count("raydebug:") == 2, "one line a pause"


class Cable:
    """A connection between process and gateway that can be cut on the process's side alone."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.near: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self.near.append(near)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)

    def cut(self) -> None:
        """Break the process's end of the connection without notice to the gateway."""
        self.near.pop().shutdown(socket.SHUT_RDWR)


async def test_same_process_dials_in_again(gateway):
    """When a process dials in again, the gateway drops the broken connection: one pause; the client gets the reason."""
    cable = Cable(gateway.dial_port)
    program = gateway.start(PAUSES, RAYDEBUG_GATEWAY=f"127.0.0.1:{cable.port}")
    (pause,) = gateway.pauses()
    session, _ = await gateway.attach(pause["id"])
    cable.cut()
    ended = await session.next_event("terminated", timeout_s=20)
    assert ended["body"]["reason"].endswith("lost its connection and has dialled in again")
    (again,) = gateway.pauses()
    assert again["id"] == pause["id"]
    await go_on(gateway, again["id"])
    assert program.communicate(timeout=60)[0] == "went on 41\n"


def test_cut_amid_a_message(gateway):
    """Half a message received before the cut is discarded: the next connection begins with a whole one."""
    assert end_of_whole_messages(b"Content-Length: 2\r\n\r\n{") == 0
    assert end_of_whole_messages(b"Content-Le") == 0
    assert end_of_whole_messages(b"") == 0
    whole = b"Content-Length: 2\r\n\r\n{}"
    assert end_of_whole_messages(whole + whole + whole[:-1]) == 2 * len(whole)


def test_a_process_that_may_start_no_thread(monkeypatch):
    """Where neither a gateway nor a thread is to be had, opening the control channel harms nothing."""

    def fails(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(control_channel, "_opened_by", None)
    monkeypatch.setattr(control_channel, "_ControlChannel", fails)
    monkeypatch.setattr(threading.Thread, "start", fails)
    control_channel.open_channel()
    assert control_channel._opened_by == os.getpid()
