"""Stacks and verdicts of plain processes that hang in planted ways."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from pathlib import Path

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.client.gateway_client import fetch_stacks
from raydebug.errors import RaydebugError
from raydebug.stacks.collect import take_locals
from raydebug.stacks.groups import active_frames, group
from raydebug.stacks.show import left_out_lines, whole_lines
from raydebug.stacks.verdict import judge
from raydebug.worker import stacks
from runs import raydebug, three_lines

OPEN = "from raydebug.worker import control_channel\ncontrol_channel.open_channel()\n"
SLEEP = "import time\ndef step():\n    time.sleep(60)\nready()\nstep()\n"
LOCKS = """
import threading, time
a, b = threading.Lock(), threading.Lock()
def one():
    with a:
        time.sleep(0.3)
        with b:
            pass
def two():
    with b:
        time.sleep(0.3)
        with a:
            pass
threads = [threading.Thread(target=one, name="one"), threading.Thread(target=two, name="two")]
for thread in threads: thread.start()
time.sleep(1)
ready()
for thread in threads: thread.join()
"""
QUEUE = "import queue\nfull = queue.Queue(1)\nfull.put(1)\nready()\ndef produce():\n    full.put(2)\nproduce()\n"
CHILD = """
import subprocess
ready()
def build():
    subprocess.run(["sleep", "10"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
build()
"""
HTTP = """
import socket, urllib.request
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
def reward():
    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/score")
ready()
reward()
"""
ASYNC_QUEUE = """
import asyncio
async def consume():
    ready()
    await asyncio.Queue().get()
async def main():
    await asyncio.create_task(consume(), name="consumer")
asyncio.run(main())
"""
GIL = "import ctypes\nready()\nctypes.PyDLL(None).sleep(20)\n"
MOVES = "import time\nready()\nfor i in range(100):\n    time.sleep(0.04)\n    time.sleep(0.04)\n"
COMPUTES = """
def one():
    return [number for number in range(100)]
def other():
    return {number for number in range(100)}
ready()
while True:
    one()
    other()
"""
READY = "def ready():\n    print('ready', flush=True)\n"


@pytest.fixture
def hang(gateway: GatewayUnderTest):
    """Start a program that hangs; return its stacks and the verdict."""

    def start(program: str, *, samples: int = 1, apart_s: float = 0.0137, **variables: str):
        process = gateway.start(OPEN + READY + program, RAYDEBUG_JOB="j1", **variables)
        assert process.stdout is not None
        printed = ""
        while "ready" not in printed:
            printed += process.stdout.readline()
        time.sleep(0.3)
        taken = []
        for number in range(samples):
            time.sleep(0.0 if number == 0 else apart_s)
            taken.append(fetch_stacks(gateway, timeout_s=1.0))  # type: ignore[arg-type]
        return taken[-1], judge(taken), printed

    return start


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        (SLEEP, "sleep", "waits for time.sleep at "),
        (LOCKS, "deadlock", "wait for each other's locks: "),
        (QUEUE, "queue", "waits for a queue (put) at "),
        (CHILD, "subprocess", "waits for a process that it started (pid "),
        (HTTP, "network", "waits for an HTTP response from 127.0.0.1:"),
        (ASYNC_QUEUE, "queue", "waits for a queue (get) at "),
        (GIL, "gil", "native code holds Python's lock (GIL) there"),
    ],
    ids=["sleep", "locks", "queue", "child", "http", "async", "gil"],
)
def test_planted_hangs(hang, program: str, kind: str, words: str) -> None:
    """Each planted hang gets its verdict, with the user's line."""
    _, verdict, _ = hang(program)
    assert (verdict["kind"], words in verdict["text"]) == (kind, True), verdict
    assert kind == "gil" or "program0.py:" in verdict["text"]


def test_host_of_a_request(hang) -> None:
    """The verdict on a request names the address that does not answer."""
    _, verdict, printed = hang(HTTP)
    assert f"127.0.0.1:{printed.split()[0]} at " in verdict["text"]


def test_slow_is_no_hang(hang) -> None:
    """A program that moves between two samples does not hang."""
    _, verdict, _ = hang(MOVES, samples=10)
    assert (verdict["kind"], verdict["certainty"]) == ("moving", "likely"), "it goes from sleep to sleep: it may poll"
    _, verdict, _ = hang(COMPUTES, samples=10)
    assert (verdict["kind"], verdict["certainty"]) == ("moving", "certain")


def test_stacks_name_lines_and_functions(hang) -> None:
    """A stack begins with the innermost frame, of the thread that runs the user's code."""
    (process,), _, _ = hang(SLEEP)
    frames = active_frames(process)
    assert [(one["function"], one["line"]) for one in frames[:2]] == [("step", 7), ("<module>", 9)]
    assert [one["name"] for one in process["threads"]] == ["MainThread"]
    (found,) = group([process])
    assert (found["pids"], found["outlier"]) == ([process["pid"]], False)
    assert json.dumps(process)


LOCALS = """import queue
def consume(password="hunter2-and-more"):
    rows, names, lr, batch = [1, 2, 3], "a\\nb", 1e-6, object()
    queue.Queue().get()
ready(); consume()
"""


def test_locals_of_a_process_that_waits(hang, gateway: GatewayUnderTest) -> None:
    """What attach could not stop shows its frames with their locals, without secrets; the verdict names the command."""
    (process,), verdict, _ = hang(LOCALS)
    assert verdict["next"] == f"raydebug stacks --locals {process['pid']}"
    lines = [*whole_lines([take_locals(gateway, None, str(process["pid"]))])]
    at = next(number for number, line in enumerate(lines) if "consume" in line)
    assert [line.strip() for line in lines[at + 1 : at + 6]] == [
        "password = (a secret)", "rows = list, 3 items", r"names = 'a\nb'", "lr = 1e-06", "batch = object",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": 1}', '{"version": 2, "processes": []}', '{"version": 1, "processes": [1]}',
     '{"version": 1, "processes": [{"pid": 1}]}', "\0\xff",
     '{"version": 1, "processes": [], "training": {"x": 3}}',
     '{"version": 1, "processes": [], "training": {"1": {"step": "a"}}}'],
)  # fmt: skip
def test_bad_file(tmp_path: Path, text: str) -> None:
    """A file without stacks, or of another version, is refused in three lines."""
    (tmp_path / "stacks.json").write_text(text)
    three_lines(raydebug("stacks", "--from", str(tmp_path / "stacks.json")), 2)


def test_saved_stacks(hang, tmp_path: Path) -> None:
    """Saved stacks have the same verdict as the live ones; no cluster is needed."""
    processes, verdict, _ = hang(LOCKS)
    (tmp_path / "stacks.json").write_text(json.dumps({"version": 1, "processes": processes}))
    done = raydebug("stacks", "--from", str(tmp_path / "stacks.json"))
    assert f"verdict (likely): {verdict['text']}" in done.stdout, done.stdout + done.stderr


SILENT = """
import socket, threading, urllib.request, http.server
silent = socket.create_server(("127.0.0.1", 0))
def judge():
    urllib.request.urlopen(f"http://127.0.0.1:{silent.getsockname()[1]}/judge")
"""
SERVES = f"""{SILENT}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        judge()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("ready", server.server_address[1], flush=True)
threading.Event().wait()
"""
POOL = f"""{SILENT}
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(3) as pool:
    futures = [pool.submit(threading.Event().wait), pool.submit(judge)]
    ready()
    futures[1].result()
"""
ASYNC = f"""{SILENT}
import asyncio
async def score():
    await asyncio.to_thread(judge)
async def main():
    ready()
    await asyncio.gather(asyncio.create_task(score()), asyncio.sleep(600))
asyncio.run(main())
"""
WRITER = """
import os, multiprocessing, sys, threading
reader, writer = multiprocessing.Pipe(duplex=False)
os.set_inheritable(reader.fileno(), True)
child = "import sys; from multiprocessing.connection import Connection; from raydebug.worker import control_channel;"
child += "control_channel.open_channel(); Connection(int(sys.argv[1])).recv()"
import subprocess
read = subprocess.Popen([sys.executable, "-c", child, str(reader.fileno())], close_fds=False)
ready()
threading.Event().wait()
"""


@pytest.mark.parametrize("program", [POOL, ASYNC], ids=["pool", "async"])
def test_chain_in_a_process(hang, program: str) -> None:
    """A chain leads through tasks and futures to the thread that works for them, with what that waits for."""
    _, verdict, _ = hang(program, samples=2, apart_s=1.1)
    assert (verdict["kind"], verdict["certainty"]) == ("network", "certain"), verdict
    assert re.search(r"waits for an HTTP response from 127.0.0.1:\d+ at \S+program0.py:\d+ judge", verdict["text"])
    assert len({one["at"] for one in verdict["chain"]}) > 1


def test_chain_over_http(hang, gateway: GatewayUnderTest) -> None:
    """A request to a server of the job leads to the handler in its process, and to the server that this one asks."""
    _, _, printed = hang(SERVES)
    client = f"import urllib.request\nready()\nurllib.request.urlopen('http://127.0.0.1:{printed.split()[1]}/score')\n"
    asks = gateway.start(OPEN + READY + client, RAYDEBUG_JOB="j1")
    assert asks.stdout is not None
    asks.stdout.readline()
    looks = []
    for apart_s in (0.5, 1.1):
        time.sleep(apart_s)
        looks.append(fetch_stacks(gateway, timeout_s=1.0))  # type: ignore[arg-type]
    for look in looks:
        for one in look:
            one["is_driver"] = one["pid"] == asks.pid
    verdict = judge(looks)
    assert (verdict["kind"], verdict["certainty"], verdict["chain"][0]["pid"]) == ("network", "certain", asks.pid)
    assert verdict["pids"][0] != asks.pid
    assert "Handler.do_GET" in verdict["chain"][-1]["at"] or "judge" in verdict["text"]


def test_chain_over_a_pipe(hang, gateway: GatewayUnderTest) -> None:
    """A process that reads a pipe waits for the one that has its other end: possible, so it is not certain."""
    hang(WRITER)
    deadline, found = time.monotonic() + 30, []
    while not found:  # the child starts
        assert time.monotonic() < deadline
        processes = fetch_stacks(gateway, timeout_s=1.0)  # type: ignore[arg-type]
        found = [one for one in processes if any("pipe" in thread for thread in one["threads"][:1])]
    (reads,) = found
    for one in processes:
        one["is_driver"] = one is reads
    verdict = judge([processes, processes])
    assert [one["pid"] for one in verdict["chain"]] == [reads["pid"], reads["child_of"] or verdict["pids"][0]]
    assert (verdict["kind"], verdict["certainty"]) == ("lock", "likely"), verdict


FORKS = """
import os, time
ready()
for _ in range(300):
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print('done', flush=True)
time.sleep(20)
"""


def test_fork_while_stacks_are_taken(gateway: GatewayUnderTest) -> None:
    """A process that forks again and again answers each time, and all of its children exit with 0."""
    process = gateway.start(OPEN + READY + FORKS, RAYDEBUG_JOB="j1")
    assert process.stdout is not None
    process.stdout.readline()
    states = []
    for _ in range(30):
        found = fetch_stacks(gateway, timeout_s=10.0)  # type: ignore[arg-type]
        states += [one["state"] for one in found if one["pid"] == process.pid]
    assert states == ["answered"] * 30
    assert process.stdout.readline() == "done\n"


def test_gateway_that_is_killed_meanwhile(gateway: GatewayUnderTest) -> None:
    """A gateway that ends while it collects stacks is an error with its three lines, before any limit is over."""
    gateway.start(OPEN + READY + GIL, RAYDEBUG_JOB="j1").stdout.readline()  # type: ignore[union-attr]
    threading.Timer(0.5, gateway.process.kill).start()
    with pytest.raises(RaydebugError) as error:
        fetch_stacks(gateway, timeout_s=20.0)  # type: ignore[arg-type]
    assert (error.value.code, error.value.exit_code) == ("gateway.no-answer", 4)
    assert isinstance(error.value.__cause__, ConnectionError), "not the TimeoutError of the request's limit"


async def test_equal_tasks_hide_no_other():
    """Of many equal tasks and threads some are listed, those that differ are, and what is left out is counted."""
    tasks = [asyncio.create_task(asyncio.sleep(60)) for _ in range(3 * stacks.MAX_TASKS)]
    other = asyncio.create_task(asyncio.Event().wait(), name="differs")
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(stacks.MAX_THREADS + 20)]
    for thread in threads:
        thread.start()
    await asyncio.sleep(0)
    record = stacks.collect()
    stop.set()
    for task in (*tasks, other):
        task.cancel()
    names = [one["name"] for one in record["threads"]]
    assert "task differs" in names
    assert len(names) == stacks.MAX_TASKS + stacks.MAX_THREADS
    assert record["left_out"] >= 2 * stacks.MAX_TASKS + 20
    (line,) = left_out_lines([{"role": "a", "rank": 0, "pid": 1, "ip": "h", "left_out": 7, "threads": []}])  # type: ignore[list-item]
    assert line.endswith(": 7 more threads and tasks are not listed; of equal stacks some are")
