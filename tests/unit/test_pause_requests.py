"""`raydebug attach --pid`: running processes are paused at the current line, and resume at full speed."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.client.gateway_client import fetch_pauses, fetch_processes, fetch_stacks
from raydebug.console.attach import attach_pause
from raydebug.console.session import GatewayAddress
from raydebug.dap import RequestFailed
from raydebug.errors import RaydebugError
from raydebug.gateway.board import Board
from raydebug.gateway.channel import ControlChannel
from raydebug.gateway.control import Control
from raydebug.gateway.numbers import Numbers
from raydebug.gateway.pause_requests import PauseRequests
from raydebug.worker import thread_callback
from simulated_processes import Peer

# What a job's process does at `import ray`; then it works in one of these ways until the test ends it.
HEAD = """\
import asyncio, os, queue, signal, sys, threading, time
from raydebug.worker import control_channel
control_channel.open_channel()
end = os.environ["END"]

def is_traced():
    return sys.gettrace() is not None or (sys.version_info >= (3, 12) and sys.monitoring.get_tool(0) is not None)

def step(number):
    total = 0
    for i in range(200):
        total += i
    return total

rest_s = float(os.environ.get("REST_S", "0.002"))  # most tests need no core of their own for it

def work():
    number = 0
    while not os.path.exists(end):
        number += 1
        step(number)
        if rest_s:
            time.sleep(rest_s)
    print("traced" if is_traced() else "not traced", flush=True)
"""
READY = "print('ready', flush=True)\n"
BUSY = HEAD + READY + "work()\n"
# The main thread waits inside of Python's own library, and comes to the user's code for moments only.
IN_LIBRARY = (
    HEAD
    + """
given = queue.Queue()
def give():
    while not os.path.exists(end):
        time.sleep(0.05)
        given.put(1)
    given.put(None)
threading.Thread(target=give, daemon=True).start()
print('ready', flush=True)
while (got := given.get()) is not None:
    step(got)
print("traced" if is_traced() else "not traced", flush=True)
"""
)
ASYNC = (
    HEAD
    + """
async def turn():
    number = 0
    while not os.path.exists(end):
        number += 1
        await asyncio.sleep(0.02)
        step(number)
print('ready', flush=True)
asyncio.run(turn())
print("traced" if is_traced() else "not traced", flush=True)
"""
)
# As in an actor with threads of Ray's: the main thread is Ray's own, and Python has not started those that do the work.
POOL = (
    HEAD
    + """
import _thread
if len(sys.argv) == 1:
    own = os.path.dirname(end) + "/site-packages/ray/worker.py"
    os.makedirs(os.path.dirname(own))
    with open(own, "w") as file:
        file.write("import runpy; runpy.run_path(%r, run_name='pool'); print('ready', flush=True)\\n" % __file__)
        file.write("import time; time.sleep(60)\\n")
    os.execv(sys.executable, [sys.executable, own, "again"])
def pool():
    work()
    os._exit(0)
_thread.start_new_thread(pool, ())
"""
)
# Nothing of the user's works at first: then a thread does.
LATER = POOL.replace(
    "_thread.start_new_thread(pool, ())", "threading.Timer(3, _thread.start_new_thread, (pool, ())).start()"
)
TWO_THREADS = (
    HEAD
    + "judge = threading.Thread(target=work, name='judge: 1')\njudge.start()\n"
    + "def sleep():\n    time.sleep(600)\nthreading.Thread(target=sleep, name='sleeper', daemon=True).start()\n"
    + READY
    + "work()\njudge.join()\n"
)
NO_DEBUGPY = "import sys\nsys.modules['debugpy'] = None\n"
OTHER_PYDEVD = (
    HEAD
    + """
from raydebug.worker import pydevd_session
pydevd_session.import_pydevd()
import pydevd
del pydevd.PyDB.set_suspend
"""
    + READY
    + "work()\n"
)
SLEEPS = HEAD + READY + "time.sleep(float(os.environ['FOR_S']))\nwoke = 1\nprint('woke', is_traced(), flush=True)\n"
FORKS = (
    HEAD
    + """
pid = os.fork()
if pid:
    print(pid, flush=True)
    os.waitpid(pid, 0)
    os._exit(0)
work()
os._exit(0)
"""
)


@pytest.fixture
def work(gateway: GatewayUnderTest) -> Iterator[Callable[..., Any]]:
    """Start a process of a job with one of the workloads."""

    def start(program: str = BUSY, job: str = "j1", **variables: str) -> Any:
        started = gateway.start(program, RAYDEBUG_JOB=job, END=str(gateway.folder / "end"), **variables)
        assert started.stdout.readline() == "ready\n", started.communicate()
        return started

    yield start
    (gateway.folder / "end").touch()


def end(gateway: GatewayUnderTest, program: Any) -> tuple[str, str]:
    """Wait for the end of a program, and return its output."""
    (gateway.folder / "end").touch()
    out, err = program.communicate(timeout=60)
    return out, err


async def stop(gateway: GatewayUnderTest, target: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Pause a process; return the session, the body of `stopped`, and the innermost frame."""
    session, stopped = await gateway.attach(target)
    stack = await session.request("stackTrace", {"threadId": stopped["threadId"], "levels": 1})
    return session, stopped, stack["stackFrames"][0]


async def go_on(session: Any, stopped: dict[str, Any]) -> None:
    await session.request("continue", {"threadId": stopped["threadId"]})
    await session.close()


async def stop_and_go_on(gateway: GatewayUnderTest, target: str) -> dict[str, Any]:
    session, stopped, _ = await stop(gateway, target)
    await go_on(session, stopped)
    return stopped["pause"]


async def refusal(gateway: GatewayUnderTest, target: str) -> RequestFailed:
    session = await gateway.connect()
    with pytest.raises(RequestFailed) as refused:
        await session.request("attach", {"token": gateway.token, "target": target})
    await session.close()
    return refused.value


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("looks", [0, 2])
async def test_busy_main_thread(gateway, work, looks):
    """A loop is paused at its current line, with its values; it can be stepped, and runs at full speed afterwards.

    Looks at its stacks before, which mark the calls that they see (worker/stacks.py), change nothing.
    """
    program = work(REST_S="0")
    for _ in range(looks):
        assert fetch_stacks(gateway, timeout_s=5.0)[0]["calls"][0]["function"] == "work"
    session, stopped, frame = await stop(gateway, f"pid:{program.pid}")
    pause = stopped["pause"]
    assert (pause["kind"], pause["pid"], pause["job"]) == ("requested", program.pid, "j1")
    assert pause["function"] in ("work", "step")
    assert (frame["name"], frame["line"]) == (pause["function"], pause["line"])
    asked = {"expression": "number > 0", "frameId": frame["id"], "context": "repl"}
    assert (await session.request("evaluate", asked))["result"] == "True"
    lines = [frame["line"]]
    for _ in range(2):
        await session.request("next", {"threadId": stopped["threadId"]})
        await session.next_event("stopped", timeout_s=20)
        stack = await session.request("stackTrace", {"threadId": stopped["threadId"], "levels": 1})
        lines.append(stack["stackFrames"][0]["line"])
    assert lines[0] != lines[1] != lines[2]
    await go_on(session, stopped)
    assert end(gateway, program)[0] == "not traced\n"


@pytest.mark.parametrize("program", [IN_LIBRARY, ASYNC, POOL], ids=["library", "async", "pool"])
async def test_stops_at_the_users_code(gateway, work, program):
    """A thread that is mostly in Python's own code, or not the main one, is paused at a line of the program, twice."""
    program = work(program)
    for _ in range(2):
        pause = await stop_and_go_on(gateway, f"pid:{program.pid}")
        assert pause["file"] == str(gateway.folder / "program0.py")
    assert end(gateway, program)[0] == "not traced\n"


async def test_a_named_thread(gateway, work):
    """The thread that is named pauses, and its place is told meanwhile, whatever the active one does."""
    program = work(TWO_THREADS)
    assert (await stop_and_go_on(gateway, f"pid:{program.pid}#judge: 1"))["thread"] == "judge: 1"
    assert (await stop_and_go_on(gateway, f"pid:{program.pid}"))["thread"] == "MainThread"
    session = await gateway.connect()
    asking = session.send("attach", {"token": gateway.token, "target": f"pid:{program.pid}#sleeper"})
    said = await session.next_event("output", timeout_s=20)
    assert "its sleeper is at program0.py:" in str(said)
    asking.cancel()
    await session.close()
    refused = await refusal(gateway, f"pid:{program.pid}#none")
    assert "it has no thread 'none' now" in str(refused)
    assert end(gateway, program)[0] == "not traced\n" * 2


@pytest.mark.slow
def test_sleep(gateway, work, capfd):
    """A client that pauses a sleeping process sees its line, and attaches when it wakes."""
    program = work(SLEEPS, FOR_S="5")
    code = attach_pause(GatewayAddress(gateway.gateway_host, gateway.gateway_port, gateway.token), f"pid:{program.pid}",
                        cluster="mine", commands=("p __file__", "c"))  # fmt: skip
    out, err = capfd.readouterr()
    assert code == 0
    line = HEAD.count("\n") + 2
    assert f"its MainThread is at program0.py:{line} <module>: time.sleep(float(os.environ['FOR_S']))" in err
    assert "program0.py" in out
    assert program.communicate(timeout=60)[0] == "woke False\n"


def test_timeout(gateway, work):
    """After --timeout the error says so and the request is withdrawn: the process does not pause when it wakes."""
    program = work(SLEEPS, FOR_S="4")
    with pytest.raises(RaydebugError) as error:
        attach_pause(GatewayAddress(gateway.gateway_host, gateway.gateway_port, gateway.token), f"pid:{program.pid}",
                     cluster="mine", commands=("c",), timeout_s=0.5)  # fmt: skip
    assert str(error.value) == (
        f"error: pid:{program.pid} did not stop within 0.5 s\n"
        "cause: its thread did not reach a line of the user's code; the messages above say what it runs\n"
        "fix: wait longer (without --timeout: until Ctrl-C), or set a breakpoint with `raydebug break add`"
    )
    assert error.value.exit_code == 124
    assert program.communicate(timeout=60)[0] == "woke False\n"


def test_ctrl_c_while_waiting(gateway, work):
    """Ctrl-C while a process does not pause ends the wait with 130; the process does not pause later."""
    program = work(SLEEPS, FOR_S="4")
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    code = attach_pause(GatewayAddress(gateway.gateway_host, gateway.gateway_port, gateway.token), f"pid:{program.pid}",
                        cluster="mine", commands=("c",))  # fmt: skip
    assert code == 130
    assert program.communicate(timeout=60)[0] == "woke False\n"


async def test_client_that_leaves_too_late(gateway, work):
    """A client that leaves just as the thread pauses leaves no pause behind: the thread is resumed."""
    program = work()
    # Stopping takes 0.3 s the first time, most of it for loading the debugger.
    for after_s in (0.0, 0.15, 0.4):
        session = await gateway.connect()
        asked = session.send("attach", {"token": gateway.token, "target": f"pid:{program.pid}"})
        asked.add_done_callback(lambda done: done.exception())
        await asyncio.sleep(after_s)
        await session.close()
        time.sleep(1.0)
        left = fetch_pauses(gateway)
        for pause in left:  # attached before it left: then it stays paused, as any pause that a client leaves
            assert "attach " in gateway.log, left
            await stop_and_go_on(gateway, pause["id"])
    assert end(gateway, program)[0] == "not traced\n"


async def test_paused_already(gateway, work):
    """A request for a process that is paused attaches to that pause; a pause of another client is refused."""
    program = work(HEAD + READY + "breakpoint()\nprint('went on', flush=True)\n")
    (there,) = gateway.pauses()
    session, stopped, _ = await stop(gateway, f"pid:{program.pid}")
    assert (stopped["pause"]["id"], stopped["pause"]["kind"]) == (there["id"], "breakpoint")
    other = await gateway.connect()
    with pytest.raises(RequestFailed, match=f"paused already .pause {there['id']}., and a test holds the pause"):
        await other.request("attach", {"token": gateway.token, "target": f"pid:{program.pid}"})
    await other.close()
    thief, stopped = await gateway.attach(f"pid:{program.pid}", steal=True)
    assert stopped["pause"]["id"] == there["id"]
    assert "took this pause over" in (await session.next_event("terminated", timeout_s=20))["body"]["reason"]
    await go_on(thief, stopped)
    assert program.communicate(timeout=60)[0] == "went on\n"


async def test_requested_pause_goes_to_its_requester(gateway, work):
    """A requested pause goes to its requester, not to clients that wait for the next pause or for all."""
    program = work()
    waits_there, stopped, _ = await stop(gateway, f"pid:{program.pid}")
    await waits_there.request("continue", {"threadId": stopped["threadId"]})  # and waits for its next stop
    waits_anywhere = await gateway.connect()
    asked = {"token": gateway.token, "target": "next"}
    waiting = waits_anywhere.send("attach", asked)
    waiting.add_done_callback(lambda done: done.exception())
    session, stopped, _ = await stop(gateway, f"pid:{program.pid}")
    assert not waiting.done()
    await go_on(session, stopped)
    await waits_anywhere.close()
    await waits_there.close()
    assert end(gateway, program)[0] == "not traced\n"


async def test_request_of_an_earlier_gateway():
    """A request has another name than those of an earlier gateway: a pause that answers one of them is no answer."""
    peer = Peer()
    channel = ControlChannel({"pid": 4}, peer)
    names: list[str] = []
    for number in range(2):
        asking = asyncio.ensure_future(PauseRequests(Control(Numbers()), Board(Numbers()))._request(channel, "", print))
        while len(names) == number:
            await asyncio.sleep(0)
            names = [asked["arguments"]["request"] for asked in peer.asked if asked.get("command") == "pause"]
        asking.cancel()
    first, second = names
    assert first != second


async def test_comes_to_a_breakpoint_meanwhile(gateway, work):
    """When another thread reaches a breakpoint first, its pause fulfils the request; there is no second one."""
    # The main thread waits in C for the other one: it can neither stop before that one does, nor look before its end.
    program = work(
        HEAD
        + "def step_and_break():\n    breakpoint()\nlate = threading.Timer(1, step_and_break)\nlate.start()\n"
        + READY
        + "late.join()\nwoke = 1\nprint('woke', is_traced(), flush=True)\n"
    )
    pause = await stop_and_go_on(gateway, f"pid:{program.pid}")
    assert (pause["kind"], pause["function"]) == ("breakpoint", "step_and_break")
    assert program.communicate(timeout=60)[0] == "woke False\n"


@pytest.mark.slow
async def test_work_that_comes_later(gateway, work):
    """A process without an active thread is paused when any of its threads begins to work."""
    program = work(LATER)
    pause = await stop_and_go_on(gateway, f"pid:{program.pid}")
    assert pause["function"] in ("work", "step", "pool")
    assert end(gateway, program)[0] == "not traced\n"


@pytest.mark.slow
async def test_work_that_comes_later_and_cannot_be_paused(gateway, work):
    """When another thread begins to work, and no thread can be paused, the request is refused with the reason."""
    program = work(NO_DEBUGPY + LATER)
    refused = str(await refusal(gateway, f"pid:{program.pid}"))
    assert refused.startswith("it cannot be paused: ")
    assert "debugpy" in refused
    (listed,) = fetch_processes(gateway)
    assert listed["answers"]


async def test_pause_that_fails_after_it_was_announced(gateway, work):
    """A pause that fails at the last step, with another pydevd for instance, is refused with the reason."""
    program = work(OTHER_PYDEVD)
    refused = str(await refusal(gateway, f"pid:{program.pid}"))
    assert refused.startswith("it cannot be paused: AttributeError: 'PyDB' object has no attribute 'set_suspend'")
    assert fetch_pauses(gateway) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", [BUSY, ASYNC, POOL], ids=["busy", "async", "pool"])
async def test_again_and_again(gateway, work, program):
    """A process that was paused and resumed ten times is as it was before (RAYDEBUG_TEST_LONG=1: forty times)."""
    program = work(program, REST_S="0")
    for _ in range(40 if os.environ.get("RAYDEBUG_TEST_LONG") == "1" else 10):
        await stop_and_go_on(gateway, f"pid:{program.pid}")
    assert end(gateway, program)[0] == "not traced\n"


async def test_two_ask_for_one_process(gateway, work):
    """The refusal of a second request names the waiting requester and for how long it has been waiting."""
    program = work(SLEEPS, FOR_S="5")
    first = await gateway.connect()
    waiting = first.send("attach", {"token": gateway.token, "target": f"pid:{program.pid}"})
    waiting.add_done_callback(lambda done: done.exception())
    await asyncio.sleep(0.3)
    second = await gateway.connect()
    with pytest.raises(RequestFailed, match=r'"a test"@127.0.0.1:\d+ has been waiting for it for 0 s'):
        await second.request("attach", {"token": gateway.token, "target": f"pid:{program.pid}"})
    await second.close()
    await first.close()


async def test_not_there(gateway, work):
    """An unknown pid, and a process without a control channel, are refused with a fix."""
    program = work()
    for target in ("pid:1", f"pid:{os.getpid()}", f"pid:{program.pid}@10.1.2.3", "worker:abcd"):
        refused = await refusal(gateway, target)
        assert "is not a process of a job that has a control channel" in str(refused)
        assert refused.body["error"]["fix"] == "see the processes that can be paused with `raydebug ps --processes`"


async def test_number_that_two_have(gateway, work):
    """A pid that two processes have in different namespaces is refused with the options that name one."""
    apart = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may make no process namespaces (unshare --pid)")
    path = gateway.folder / "busy.py"
    path.write_text(BUSY)
    for job in ("j1", "j2"):
        variables = {**gateway.environment, "RAYDEBUG_JOB": job, "END": str(gateway.folder / "end")}
        argv = [*apart, sys.executable, str(path)]
        gateway.programs.append(subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=None, text=True))
    wait_until(lambda: len(fetch_processes(gateway)) == 2, "both lines")
    refused = await refusal(gateway, "pid:1")
    assert str(refused).startswith("2 processes are process 1: --pid 1@127.0.0.1 (")
    assert "busy.py, job j2)" in str(refused)
    assert refused.body["error"]["fix"] == "name one: --pid 1@127.0.0.1"


async def test_process_that_ends(gateway, work):
    """When a process is killed instead of pausing, the requester is notified at once."""
    program = work(SLEEPS, FOR_S="30")
    threading.Timer(3.0, program.kill).start()  # behind the request, also on a busy machine
    begin = time.monotonic()
    assert str(await refusal(gateway, f"pid:{program.pid}")).startswith("the process has ended; ")
    assert time.monotonic() - begin < 20


async def test_fork(gateway, work):
    """A forked child has its own control channel and is paused; its parent keeps running."""
    program = work(FORKS.replace("pid = os.fork()", READY + "pid = os.fork()"))
    child = int(program.stdout.readline())
    wait_until(lambda: child in [p["pid"] for p in fetch_processes(gateway)], "the fork's line")
    pause = await stop_and_go_on(gateway, f"pid:{child}")
    assert (pause["pid"], pause["kind"]) == (child, "requested")
    assert "not traced" in end(gateway, program)[0]


@pytest.mark.slow
async def test_stopped_from_outside(gateway, work):
    """A process stopped by SIGSTOP is reported as not answering; after SIGCONT it pauses."""
    program = work()
    os.kill(program.pid, signal.SIGSTOP)
    said: list[str] = []
    session = await gateway.connect()
    waiting = session.send("attach", {"token": gateway.token, "target": f"pid:{program.pid}"})
    said.append((await session.next_event("output", timeout_s=10))["body"]["output"])
    os.kill(program.pid, signal.SIGCONT)
    assert (await asyncio.wait_for(waiting, 10))["success"]
    await session.request("configurationDone")
    await go_on(session, (await session.next_event("stopped", timeout_s=20))["body"])
    assert "it does not answer: native code holds Python's lock (GIL) there, or the process is stopped" in said[0]
    assert end(gateway, program)[0] == "not traced\n"


async def test_gateway_that_dies_while_asked(gateway, work):
    """A request ends with its gateway: the process keeps running and does not pause later."""
    program = work(SLEEPS, FOR_S="4")
    session = await gateway.connect()
    asked = session.send("attach", {"token": gateway.token, "target": f"pid:{program.pid}"})
    asked.add_done_callback(lambda done: done.exception())
    await asyncio.sleep(0.5)
    gateway.kill()
    await session.close()
    gateway.open()
    assert program.communicate(timeout=60)[0] == "woke False\n"


async def test_interrupted_while_paused(gateway, work):
    """A KeyboardInterrupt during the pause, as Ray raises one in a cancelled task, reaches the program."""
    program = work(HEAD + READY + "try:\n    work()\nexcept KeyboardInterrupt:\n    print('interrupted', flush=True)\n")
    session, _, frame = await stop(gateway, f"pid:{program.pid}")
    # The suspended thread evaluates: it has come to pydevd's wait, where an exception reaches us. On the way there,
    # and in the few lines behind the answer, pydevd catches everything: a signal then is lost.
    await session.request("evaluate", {"expression": "1", "frameId": frame["id"], "context": "repl"})
    ended = asyncio.ensure_future(session.next_event("terminated", timeout_s=20))
    while not ended.done():
        program.send_signal(signal.SIGINT)
        await asyncio.wait([ended], timeout=2)
    body = (await ended)["body"]
    assert "KeyboardInterrupt was raised in it" in body["reason"]
    assert program.communicate(timeout=60)[0] == "interrupted\n"


# HTTP


def http_request(
    gateway: GatewayUnderTest, method: str, path: str, body: object = None, timeout: float = 20
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(gateway.gateway_host, gateway.gateway_port, timeout=timeout)
    sent = None if body is None else json.dumps(body)
    connection.request(method, path, body=sent, headers={"Authorization": f"Bearer {gateway.token}"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_processes(gateway, work):
    """GET /processes lists each process of a job with its identity, its current line and its pauses."""
    program = work(SLEEPS, FOR_S="30", RANK="3")
    wait_until(lambda: fetch_processes(gateway)[0]["answers"], "an answer in time")
    status, document = http_request(gateway, "GET", "/processes")
    assert status == 200
    (process,) = document["processes"]
    assert {k: process[k] for k in ("pid", "ip", "job", "rank", "worker_id", "actor", "pauses", "answers")} == {
        "pid": program.pid, "ip": "127.0.0.1", "job": "j1", "rank": 3, "worker_id": None, "actor": None,
        "pauses": [], "answers": True,
    }  # fmt: skip
    assert process["doing"]["text"].startswith("time.sleep")
    assert sys.executable in process["title"]


async def test_pause_by_http(gateway, work):
    """POST /pause pauses a process and returns the pause, which waits for a client."""
    program = work()
    status, document = http_request(gateway, "POST", "/pause", {"target": f"pid:{program.pid}"})
    assert (status, document["pause"]["state"], document["pause"]["pid"]) == (200, "waiting", program.pid)
    assert http_request(gateway, "GET", "/processes")[1]["processes"][0]["pauses"] == [document["pause"]["id"]]
    await stop_and_go_on(gateway, document["pause"]["id"])
    assert end(gateway, program)[0] == "not traced\n"


@pytest.mark.slow
def test_pause_by_http_in_vain(gateway, work):
    """An invalid POST /pause is refused; one that times out reports the current line, and is withdrawn."""
    program = work(SLEEPS, FOR_S="9")
    status, document = http_request(gateway, "POST", "/pause", {"target": "pid:1"})
    assert (status, document["error"]["code"]) == (409, "process.unknown")
    for malformed in ({}, {"target": "pid:1", "timeout_s": 0}, {"target": "pid:1", "timeout_s": float("nan")}, [], 7):
        status, document = http_request(gateway, "POST", "/pause", malformed)
        assert (status, document["error"]["code"]) == (400, "http.malformed"), malformed
    question = {"target": f"pid:{program.pid}", "timeout_s": 4}
    status, document = http_request(gateway, "POST", "/pause", question)
    assert (status, document["error"]["code"]) == (504, "process.not-stopped")
    assert "its MainThread is at program0.py" in document["error"]["message"]
    assert program.communicate(timeout=60)[0] == "woke False\n"


def test_client_of_http_that_leaves(gateway, work):
    """A client of POST /pause that disconnects before the process has paused withdraws its request."""
    program = work(SLEEPS, FOR_S="3")
    with pytest.raises(TimeoutError):
        http_request(gateway, "POST", "/pause", {"target": f"pid:{program.pid}"}, timeout=0.5)
    assert program.communicate(timeout=60)[0] == "woke False\n"


def test_tracers_of_other_threads_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that has traced only the main thread, or none, takes no tracer from other threads."""
    ended: list[bool] = []
    monkeypatch.setattr(thread_callback, "_end_tracing_of_all", lambda: ended.append(True))
    monkeypatch.setattr(thread_callback, "_in_main_thread", lambda _: None)
    for ident, is_traced, expected in ((threading.main_thread().ident, True, 0), (1, False, 0), (1, True, 1)):
        monkeypatch.setattr(thread_callback, "_trace_thread", lambda *_, found=is_traced: found)
        one = thread_callback.ThreadCallback(ident or 0, lambda _: None)
        one.schedule()
        one.cancel()
        assert len(ended) == expected
