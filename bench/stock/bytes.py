"""What a client sends that is no good, too much, or without an end: F25, F26, F29, F31, F32 on stock Ray.

Each connection begins as a session, with `initialize`; what is wrong comes after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import psutil

from bench.stock.client import ANSWER_S, Client
from bench.stock.head import OWN_JOBS, Head, Program, Row
from raydebug.dap import ConnectionLost, RequestFailed
from raydebug.protocol import wire

Saw = dict[str, Any]
MIB = 2**20
FRAMES = {
    "(nothing wrong)": b"",
    "no length": b"Content-Type: x\r\n\r\n",
    "negative": b"Content-Length: -5\r\n\r\n{}",
    "over 16 MiB": b"Content-Length: 16777217\r\n\r\n" + b"x" * 4096,
    "non-number": b"Content-Length: five\r\n\r\n{}",
    "duplicate": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "bad JSON": b"Content-Length: 5\r\n\r\n{nope",
    "bad UTF-8": b"Content-Length: 4\r\n\r\n\xff\xfe\xff\xfe",
    "not an object": b"Content-Length: 2\r\n\r\n[]",
    "nested 200k": b"Content-Length: 400000\r\n\r\n" + b"[" * 200_000 + b"]" * 200_000,
    "truncated": b"Content-Length: 100\r\n\r\n{",
}


async def malformed(head: Head) -> Saw:
    """F25: a second session sends a malformed frame, while the first one is attached."""
    saw = {}
    for name, data in FRAMES.items():
        program, row = _paused(head, "plain")
        first = await Client.attach(row)
        second = await Client.begin(row)
        second.session._writer.write(data)
        if name == "truncated":
            second.session._writer.close()
        seen = await second.observe(4.0)
        try:
            third = await Client.begin(row)
            third_one = "answered"
            await third.drop()
        except (TimeoutError, OSError, ConnectionLost, RequestFailed) as error:
            third_one = f"not answered ({type(error).__name__})"
        saw[name] = {
            "its connection": seen or "stays open, nothing is said",
            "it is answered again": await second.answers(3.0),
            "the first session answers": await first.answers(),
            "a third client's `initialize`": third_one,
        }
        await second.drop()
        await first.drop()
        program.ended(5)
        head.end_programs()
    return saw


async def endless_header(head: Head) -> Saw:
    """F26: a second session sends a header without an end, for 10 s or until 100 MB are sent."""
    _, row = _paused(head, "plain")
    adapter = _adapter_of(head)
    first = await Client.attach(row)
    second = await Client.begin(row)
    memory, busy, begin = adapter.memory_info().rss, sum(adapter.cpu_times()[:2]), time.monotonic()
    sent, writer = 0, second.session._writer
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(10):
            while sent < 100 * 10**6:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
    await asyncio.sleep(max(0.0, begin + 10 - time.monotonic()))
    saw = {
        "taken MB": round(sent / 10**6, 1),
        "cut off": second.session.ended,
        "adapter's CPU over 10 s, %": round(100 * (sum(adapter.cpu_times()[:2]) - busy) / (time.monotonic() - begin)),
        "adapter's memory + MiB": round((adapter.memory_info().rss - memory) / MIB, 1),
        "the first session answers within 5 s": await first.answers(),
    }
    await second.drop()
    return saw


async def never_reads(head: Head) -> Saw:
    """F29: the client asks for 1 GiB, 1 MiB at a time, and reads nothing."""
    _, row = _paused(head, "big")
    adapter, worker = _adapter_of(head), psutil.Process(row["pid"])
    client = await Client.attach(row)
    frame = await client.frame()
    client.session._writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads no more
    before = adapter.memory_info().rss, worker.memory_info().rss
    for seq in range(1000, 2024):
        arguments = {"expression": "value", "frameId": frame, "context": "clipboard"}
        client.session._writer.write(wire.encode(wire.request(seq, "evaluate", arguments)))
    largest = [0.0, 0.0]
    begin = time.monotonic()
    while time.monotonic() < begin + 60:
        await asyncio.sleep(0.5)
        now = adapter.memory_info().rss, worker.memory_info().rss
        largest = [max(old, (new - first) / MIB) for old, new, first in zip(largest, now, before, strict=True)]
    await client.drop()
    return {"adapter + MiB": round(largest[0]), "worker + MiB": round(largest[1]), "within s": 60}


async def huge_values(head: Head) -> Saw:
    """F31: a text of 200 MB and a list of a million items are shown."""
    program, row = _paused(head, "huge")
    client = await Client.attach(row)
    frame = await client.frame()
    scopes = (await client.session.request("scopes", {"frameId": frame}, timeout_s=60))["scopes"]
    reference = scopes[0]["variablesReference"]
    saw: Saw = {}
    saw["variables"], shown = await _timed(client, "variables", {"variablesReference": reference})
    items = next((v for v in shown.get("variables", ()) if v["name"] == "items"), None)
    if items:
        inside = {"variablesReference": items["variablesReference"]}
        saw["the list opened"], _ = await _timed(client, "variables", inside)
    for context in ("repl", "hover", "clipboard"):
        asked = {"expression": "text", "frameId": frame, "context": context}
        saw[f"the text, evaluated as {context}"], _ = await _timed(client, "evaluate", asked)
    await client.drop()
    return {**saw, "program ended once the client was gone": program.ended(20)}


async def _timed(client: Client, command: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    begin = time.monotonic()
    try:
        body = await client.session.request(command, arguments, timeout_s=60)
    except (RequestFailed, ConnectionLost, TimeoutError) as error:
        return f"{type(error).__name__}: {str(error)[:80]} after {time.monotonic() - begin:.1f} s", {}
    return f"{len(json.dumps(body)) / 1e6:.3f} MB after {time.monotonic() - begin:.2f} s", body


async def never_returns(head: Head) -> Saw:
    """F32: an evaluation never returns."""
    program, row = _paused(head, "plain")
    client = await Client.attach(row)
    frame = await client.frame()
    endless = {"expression": "while True: pass", "frameId": frame, "context": "repl"}
    running = client.session.send("evaluate", endless)
    await asyncio.sleep(3)
    saw: Saw = {}
    requests: dict[str, dict[str, Any]] = {
        "threads": {}, "pause": {"threadId": client.thread}, "cancel": {"requestId": 1},
        "stackTrace": {"threadId": client.thread}, "evaluate": {"expression": "1", "frameId": frame},
    }  # fmt: skip
    for command, arguments in requests.items():
        try:
            await client.session.request(command, arguments, timeout_s=5)
            saw[command] = "answered"
        except (RequestFailed, TimeoutError, ConnectionLost) as error:
            saw[command] = f"{type(error).__name__}: {str(error)[:100]}"
    saw["the evaluation"] = "ended" if running.done() else "still runs"
    with contextlib.suppress(TimeoutError, ConnectionLost, RequestFailed):
        await client.session.request("disconnect", {"terminateDebuggee": False}, timeout_s=ANSWER_S)
    await client.drop()
    went_on = program.ended(10)
    saw["the task, after disconnect"] = "went on" if went_on else "does not go on (10 s)"
    with contextlib.suppress(psutil.NoSuchProcess):
        worker = psutil.Process(row["pid"])
        saw["the worker's CPU then, %"] = worker.cpu_percent(interval=2.0)
        if not went_on:
            worker.kill()  # of our own head: it would spin for ever
    return saw


def _paused(head: Head, case: str) -> tuple[Program, Row]:
    program = head.start(OWN_JOBS, case)
    rows = head.wait_paused()
    return program, rows[0]


def _adapter_of(head: Head) -> psutil.Process:
    return max(head.adapters(), key=lambda one: one.create_time())
