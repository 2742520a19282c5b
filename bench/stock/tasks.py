"""What ends a paused task from outside, many pauses, and where a program can stop: F8-F16 on stock Ray."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from bench.stock.client import Client
from bench.stock.head import JOBS, OWN_JOBS, Head, Program
from environments import with_version, without

Saw = dict[str, Any]
WATCH_S = 10.0


async def cancelled(head: Head) -> Saw:
    """F8: the task is cancelled while a client is attached; and without one."""
    return {"attached": await _struck(head, "cancel"), "nobody attached": await _struck(head, "cancel", attach=False)}


async def killed(head: Head) -> Saw:
    """F9: the actor is killed while a client is attached."""
    return {"attached": await _struck(head, "kill")}


async def _struck(head: Head, fault: str, *, attach: bool = True) -> Saw:
    strike = Path(tempfile.mkdtemp()) / "strike"
    program = head.start("faults.py", fault, strike)
    (row,) = head.wait_paused()
    client = await Client.attach(row) if attach else None
    strike.touch()
    begin = time.monotonic()
    seen = await client.observe(WATCH_S) if client else []
    ended = program.ended(WATCH_S)
    saw = {
        "client saw": seen,
        "driver": _driver_error(program) if ended else f"still waits {time.monotonic() - begin:.0f} s later",
        "rows left": len(head.paused()),
        "adapters left": len(head.adapters()),
    }
    if client and not ended:
        saw["the session still answers"] = await client.answers()
    if client:
        await client.drop()
        saw["driver, once the client is gone"] = _driver_error(program) if program.ended(WATCH_S) else "still waits"
    return saw


def _driver_error(program: Program) -> str:
    found = re.search(r"failed as it should: (.+)", program.text)
    return found[1] if found else f"exit code {program.process.returncode}"


async def job_stopped(head: Head) -> Saw:
    """F10: the job is stopped while two clients are attached to its tasks."""
    body = {"entrypoint": f"{sys.executable} {JOBS / 'faults.py'} stop -"}
    job = _post(f"{head.dashboard}/api/jobs/", body)["submission_id"]
    rows = head.wait_paused(2)
    clients = [await Client.attach(row) for row in rows]
    _post(f"{head.dashboard}/api/jobs/{job}/stop", {})
    seen = await asyncio.gather(*(client.observe(WATCH_S) for client in clients))
    saw = {
        "clients saw": seen,
        "workers left": [row["pid"] for row in rows if psutil.pid_exists(row["pid"])],
        "rows left": len(head.paused()),
        "adapters left": len(head.adapters()),
    }
    for client in clients:
        await client.drop()
    return saw


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read() or b"null")


async def retried(head: Head) -> Saw:
    """F11: a task crashes, is retried, and crashes again, each time with post-mortem."""
    program = head.start(OWN_JOBS, "retried", Path(tempfile.mkdtemp()) / "attempts")
    seen = []
    for _ in range(2):
        rows = head.wait_paused(within_s=30)
        client = await Client.attach(rows[0])
        seen.append({"rows": len(rows), "says of the attempt": [k for k in rows[0] if "attempt" in k],
                     "exception": client.stopped[0].get("description")})  # fmt: skip
        await client.go_on()
        deadline = time.monotonic() + 10
        while head.paused() == rows and time.monotonic() < deadline:
            time.sleep(0.1)
    return {"pauses": seen, "driver": program.text.strip().splitlines()[-1] if program.ended(20) else "still waits"}


async def two_threads(head: Head) -> Saw:
    """F12: two threads of one worker pause; one is let go on."""
    program = head.start("cases.py", "two_threads")
    rows = head.wait_paused()
    deadline = time.monotonic() + 10
    while rows[0]["num_paused_threads"] < 2 and time.monotonic() < deadline:
        rows = head.paused()
    client = await Client.attach(rows[0], stops=2)
    await client.session.request("continue", {"threadId": client.thread, "singleThread": True})
    seen = await client.observe(5.0)
    return {
        "rows": len(rows),
        "paused threads of the row": rows[0]["num_paused_threads"],
        "after `continue` of one with singleThread": seen,
        "the program": "went on to its end: both were resumed" if program.ended(5) else "waits: the other stands still",
    }


async def thirty_two(head: Head) -> Saw:
    """F13: 32 actors pause at once."""
    program = head.start("cases.py", "many")
    begin = time.monotonic()
    rows = head.wait_paused(32, within_s=180)
    listed_s = time.monotonic() - begin
    adapters = head.adapters()
    memory = sum(one.memory_info().rss for one in adapters) / 2**20
    for row in rows:
        await (await Client.attach(row)).go_on()
    return {"listed": len(rows), "all after s": round(listed_s, 1), "adapters": len(adapters),
            "adapters' memory MiB": round(memory), "program ended": program.ended(60)}  # fmt: skip


async def an_hour(head: Head) -> Saw:
    """F14: a pause that nobody looks at for an hour and five minutes; only when asked for by its name."""
    program = head.start(OWN_JOBS, "plain")
    (row,) = head.wait_paused()
    said = len(program.text)
    begin = time.monotonic()
    while time.monotonic() < begin + 3900 and head.paused():
        await asyncio.sleep(10)
    saw = {
        "paused still": [r["pid"] for r in head.paused()] == [row["pid"]],
        "after s": round(time.monotonic() - begin),
        "said meanwhile": program.text[said:].strip().splitlines()[-3:],
    }
    if head.paused():
        await (await Client.attach(row)).go_on()
    return saw


PLACES = ("task", "nested", "actor", "async_actor", "actor_thread", "driver", "init", "child", "fork", "spawn")


async def places(head: Head) -> Saw:
    """F15: every place in a program where it can stop."""
    return {place: await _stops_at(head, place) for place in PLACES}


async def _stops_at(head: Head, place: str) -> str:
    program = head.start("cases.py", place)
    deadline = time.monotonic() + 20
    while not (rows := head.paused()) and program.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if rows:
        client = await Client.attach(rows[0])
        value = await client.evaluate("secret")
        await client.go_on()
        return f"listed, secret is {value}" + ("" if program.ended(15) else "; does not go on")
    if program.process.poll() is None:
        head.end_programs()
        return "not listed, does not go on (20 s)"
    errors = [line for line in program.text.splitlines() if re.search(r"(Error|Exception): ", line)]
    return f"not listed, not paused: exit code {program.process.returncode}; {errors[-1].strip() if errors else ''}"


async def no_debugpy(head: Head) -> Saw:
    """F16: a worker without debugpy, and one whose debugpy is 1.10.0; three breakpoints each."""
    saw = {}
    for name in ("missing", "1.10.0"):
        folder = Path(tempfile.mkdtemp()) / "env"
        python = without(folder, "debugpy") if name == "missing" else with_version(folder, "debugpy", name)
        program = head.start("other_python.py", python)
        deadline = time.monotonic() + 40
        while program.process.poll() is None and not head.paused() and time.monotonic() < deadline:
            time.sleep(0.2)
        rows = len(head.paused())
        saw[name] = {
            "paused": rows,
            "went on": "went on: 41" in program.text,
            "warnings": program.text.count("Module 'debugpy>=1.8.0' cannot be loaded"),
        }
        head.end_programs()
    return saw


async def legacy_listens(head: Head) -> Saw:
    """S8: what the legacy debugger listens on."""
    program = head.start(OWN_JOBS, "legacy")
    deadline = time.monotonic() + 30
    while "RemotePdb session open" not in program.text and time.monotonic() < deadline:
        time.sleep(0.2)
    found = re.findall(r"RemotePdb session open at ([^,\s]+)", program.text)
    listening = [c.laddr for p in head.processes() if p.name().startswith("ray::plain")
                 for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]  # fmt: skip
    return {"says": found, "the worker listens on": sorted({address.ip for address in listening})}
