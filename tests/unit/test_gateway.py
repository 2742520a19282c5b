"""The gateway with real processes that pause, without Ray: authentication, attaching, isolation of sessions."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from gateway_under_test import PAUSES, TOKEN, visit
from raydebug.dap import RequestFailed
from raydebug.protocol import wire


def test_pause_is_listed_attached_and_goes_on(gateway):
    """A plain process pauses, its frame and locals are read, and after `continue` it runs to its end."""
    program = gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    assert (pause["kind"], pause["line"], pause["function"], pause["pid"]) == ("breakpoint", 3, "work", program.pid)

    async def look():
        session, stopped = await gateway.attach(pause["id"])
        assert stopped["pause"]["state"] == "attached"
        frames = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"]
        assert [f["name"] for f in frames] == ["work", "<module>"], "none of our own frames is shown"
        value = await session.request("evaluate", {"expression": "secret", "frameId": frames[0]["id"]})
        assert value["result"] == "41"
        await session.request("continue", {"threadId": stopped["threadId"]})
        await session.close()

    visit(gateway, look)
    assert program.communicate(timeout=60)[0] == "went on 41\n"


@pytest.mark.parametrize(("name", "hint"), [("", "raydebug attach"), ("mine", "raydebug attach --name mine")])
def test_hint_names_the_cluster(gateway, name, hint):
    """The line in a job's log names the command that attaches, with `--name` if the cluster is not the default one."""
    program = gateway.start(PAUSES, RAYDEBUG_CLUSTER_NAME=name)
    gateway.pauses()
    program.kill()
    assert f"paused (breakpoint); look at it with: {hint}\n" in program.communicate()[1]


@pytest.mark.parametrize("last", ["disconnect", None])
def test_pause_request_of_a_client_that_leaves(gateway, last):
    """A client may leave right after `pause`: the gateway drops the request, without a warning of Python in its log."""
    gateway.start(PAUSES)
    (pause,) = gateway.pauses()

    async def look():
        session, stopped = await gateway.attach(pause["id"])
        session.send("pause", {"threadId": stopped["threadId"]})
        if last:
            session.send(last)
        await session.close()

    for _ in range(20):
        visit(gateway, look)
    assert [p["id"] for p in gateway.pauses()] == [pause["id"]]
    assert "never awaited" not in gateway.log, gateway.log


def test_step_out_of_breakpoint_line(gateway):
    """Steps stay in the user's code: over the next line, into a function, out of it."""
    gateway.start(
        "def inner():\n    a = 1\n    return a\n\ndef work():\n    breakpoint()\n    b = inner()\n    return b\n\n"
        "work()\n"
    )
    (pause,) = gateway.pauses()

    async def look():
        session, stopped = await gateway.attach(pause["id"])
        thread = {"threadId": stopped["threadId"]}
        seen = []
        for step in ("next", "stepIn", "next", "stepOut"):
            await session.request(step, thread)
            await session.next_event("stopped", timeout_s=20)
            (frame, *_) = (await session.request("stackTrace", thread))["stackFrames"]
            seen.append((frame["name"], frame["line"]))
        assert seen == [("work", 7), ("inner", 2), ("inner", 3), ("work", 7)]
        await session.close()

    visit(gateway, look)


def test_process_that_is_killed_takes_its_pause_along(gateway):
    """After SIGKILL of a paused process its client is notified within 2 s and the pause is no longer listed."""
    program = gateway.start(PAUSES)
    (pause,) = gateway.pauses()

    async def look():
        session, _ = await gateway.attach(pause["id"])
        os.kill(program.pid, signal.SIGKILL)
        ended = await session.next_event("terminated", timeout_s=2)
        assert f"pid {program.pid}" in ended["body"]["reason"]

    visit(gateway, look)
    assert gateway.pauses(0) == []


@pytest.mark.alone
def test_s6_guessing_is_slow(gateway):
    """S6: after ten wrong tokens in a minute each further refusal is delayed; the right token never is."""

    async def guess() -> float:
        session = await gateway.connect()
        begin = time.monotonic()
        with pytest.raises(RequestFailed, match="the token is not this cluster's"):
            await session.request("attach", {"token": "x" * 64, "target": "next"})
        return time.monotonic() - begin

    async def look():
        spans = [await guess() for _ in range(12)]
        assert max(spans[:10]) < 1 <= min(spans[10:])

    visit(gateway, look)
    begin = time.monotonic()
    assert ask(gateway, "/pauses", Authorization="Bearer wrong")[0] == 401
    assert time.monotonic() - begin >= 1
    begin = time.monotonic()
    assert ask(gateway, "/pauses", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert time.monotonic() - begin < 1


def test_dial_in_without_the_token_leaves_no_trace(gateway):
    """S7: a process with another cluster's token is refused before its record is listed, and continues."""
    (gateway.folder / "other").write_text("o" * 64)
    program = gateway.start(PAUSES, RAYDEBUG_TOKEN_PATH=str(gateway.folder / "other"), RAYDEBUG_PATIENCE_S="0")
    out, err = program.communicate(timeout=60)
    assert out == "went on 41\n"
    assert "not paused: the gateway refused: 'wrong token'" in err
    assert gateway.pauses(0) == []


def test_dial_ins_of_many_processes(gateway):
    """300 processes that dial in at the same moment are all authenticated; none is refused."""

    async def dial():
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.dial_port)
        mine = wire.new_nonce()
        hello = {"nonce": mine, "proof": wire.proof(TOKEN, wire.AS_HELLO, mine)}
        writer.write(wire.encode(wire.event(1, "hello", hello)))
        decoder, messages = wire.Decoder(), []
        while not messages:
            messages = decoder.feed(await reader.read(4096))
        theirs = messages[0]["body"]["nonce"]
        proof = {"proof": wire.proof(TOKEN, wire.AS_PROCESS, mine, theirs), "purpose": "control"}
        proof["process"] = {"pid": 1, "secret": "s"}
        writer.write(wire.encode(wire.event(2, "proof", proof)))
        answer = decoder.feed(await reader.read(4096))
        writer.close()
        return answer[0]["event"]

    async def dial_all():
        return await asyncio.gather(*(dial() for _ in range(300)))

    assert set(asyncio.run(dial_all())) == {"welcome"}
    assert "refused" not in gateway.log


def say_to_dial_port(gateway, *messages: dict) -> list[dict]:
    """Send messages one after the other, and return the answers."""
    answers = []
    with socket.create_connection(("127.0.0.1", gateway.dial_port)) as connection:
        connection.settimeout(10)
        for message in messages:
            connection.sendall(wire.encode(message))
            answers += wire.Decoder().feed(connection.recv(4096))
        with contextlib.suppress(ConnectionError):
            assert connection.recv(10) == b""
    return answers


@pytest.mark.parametrize(
    "hello",
    [{}, {"nonce": "a" * 64}, {"nonce": "a" * 64, "proof": "0" * 64}, {"nonce": "a" * 64, "proof": "\ud800"},
     {"nonce": "\ud800" * 64, "proof": "0" * 64}, {"nonce": 5, "proof": []}, [], "x"],
)  # fmt: skip
def test_first_packet_without_a_proof(gateway, hello):
    """S7: a dial-in whose first packet was made without the token is refused before the gateway sends a proof."""
    (refused,) = say_to_dial_port(gateway, {**wire.event(1, "hello"), "body": hello})
    assert refused["event"] == "refused"
    assert "Traceback" not in gateway.log


def test_dial_in_with_a_recorded_first_packet(gateway):
    """S7: a recorded first packet is not enough: the next proof is refused, no record is left; it is accepted once."""
    nonce = wire.new_nonce()
    hello = wire.event(1, "hello", {"nonce": nonce, "proof": wire.proof(TOKEN, wire.AS_HELLO, nonce)})
    forged = wire.event(2, "proof", {"proof": "0" * 64, "process": {"pid": 1}})
    answer, refused = say_to_dial_port(gateway, hello, forged)
    assert answer["body"]["proof"] == wire.proof(TOKEN, wire.AS_GATEWAY, nonce, answer["body"]["nonce"])
    assert refused["body"] == {"reason": "wrong token"}
    (again,) = say_to_dial_port(gateway, hello)
    assert again["body"] == {"reason": "its first packet was sent before"}
    assert gateway.pauses(0) == []


def test_outside_a_cluster_nothing_is_hooked():
    """Without the variables of a cluster an interpreter starts without any module of raydebug."""
    program = "import sys; print([m for m in sys.modules if 'raydebug' in m], sys.breakpointhook.__module__)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAYDEBUG")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[] sys\n"


def test_before_the_first_pause_nothing_heavy_is_imported(gateway):
    """The hook imports a few modules at the start of an interpreter, all others at the first pause."""
    code = "import sys; print(*sorted(sys.modules))\n"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    hooked = gateway.start(code).communicate(timeout=60)[0].split()
    ours = {f"raydebug.worker.{name}" for name in ("import_hooks", "job", "startup")}
    ours |= {"raydebug", "raydebug.worker", "raydebug.protocol", "raydebug.protocol.variables"}
    assert (
        set(hooked) - set(plain) - {*ours, "__future__", "atexit"} == set()
    )  # atexit is built in: no file is read for it


def test_debugger_off(gateway):
    """With RAY_DEBUG=0 a breakpoint is ignored without a message."""
    assert gateway.start(PAUSES, RAY_DEBUG="0").communicate(timeout=60) == ("went on 41\n", "")


LOOP = """\
import sys
def is_traced():
    return sys.gettrace() is not None or (sys.version_info >= (3, 12) and sys.monitoring.get_tool(0) is not None)
def train():
    breakpoint()
    first = 1
    second = 2
    return is_traced()
print(train())
"""


def test_full_speed_after_a_step(gateway):
    """A thread that was stepped and then continued is not traced, although the function of its pause still runs."""
    program = gateway.start(LOOP)
    (pause,) = gateway.pauses()

    async def step():
        session, stopped = await gateway.attach(pause["id"])
        thread = {"threadId": stopped["threadId"]}
        for line in (6, 7):
            await session.request("next", thread)
            await session.next_event("stopped", timeout_s=20)
            stack = await session.request("stackTrace", {**thread, "levels": 1})
            assert stack["stackFrames"][0]["line"] == line
        await session.request("continue", thread)

    visit(gateway, step)
    assert program.communicate(timeout=60)[0] == "False\n"


OTHER_ENDS = """\
import sys, threading
breakpoint()
from raydebug.worker import suspended_threads
import pydevd
debugger = pydevd.get_global_debugger()
info = debugger.set_additional_thread_info(threading.current_thread())
print(sys.monitoring.get_tool(0))
suspended_threads.suspended_by(debugger).any = lambda: True
suspended_threads.trace_only_while_needed(debugger, info)
print(sys.monitoring.get_tool(0))
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")
def test_a_thread_at_full_speed_takes_no_monitoring_for_another(gateway):
    """When two threads resume at once, the first does not claim sys.monitoring again after the second has freed it."""
    program = gateway.start(OTHER_ENDS)
    gateway.resume(gateway.pauses()[0]["id"])
    assert program.communicate(timeout=60)[0] == "None\nNone\n"


def ask(gateway, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", gateway.gateway_port, timeout=5)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_long_value_passes_through_whole(gateway):
    """A value of several MiB arrives whole, as the response to its own request among short ones."""
    gateway.start("def f():\n    big = '\\\\\"}' + 'x' * 3_000_000\n    breakpoint()\nf()\n")
    (pause,) = gateway.pauses()

    async def look():
        session, body = await gateway.attach(pause["id"])
        stack = await session.request("stackTrace", {"threadId": body["threadId"], "levels": 1})
        about = {"frameId": stack["stackFrames"][0]["id"], "context": "clipboard"}
        asked = [session.send("evaluate", {"expression": code, **about}) for code in ("1 + 1", "big", "2 + 2")]
        answers = [await one for one in asked]
        await session.close()
        return answers

    short, long, other = visit(gateway, look)
    assert (short["body"]["result"], other["body"]["result"]) == ("2", "4")
    assert long["body"]["result"] == repr('\\"}' + "x" * 3_000_000)
    assert short["request_seq"] < long["request_seq"] < other["request_seq"]
    assert len({one["seq"] for one in (short, long, other)}) == 3
