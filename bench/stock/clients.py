"""What happens to the client, and to the way to it: F17-F21 and S7, S9, S10 on stock Ray."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import psutil

from bench.stock.client import Client
from bench.stock.head import OWN_JOBS, ROOT, Head, Row, stock_head
from raydebug.dap import ConnectionLost, RequestFailed
from two_hosts import SERVER, TwoHosts, two_hosts

Saw = dict[str, Any]


async def gone_amid_a_step(head: Head) -> Saw:
    """F17: the client is killed while its step runs, and while the thread stands after a step."""
    return {"while the step runs": await _gone(head, runs=True), "after it": await _gone(head, runs=False)}


async def _gone(head: Head, *, runs: bool) -> Saw:
    program = head.start(OWN_JOBS, "slow")
    (row,) = head.wait_paused()
    client = await Client.attach(row)
    await client.session.request("next", {"threadId": client.thread})
    await client.session.next_event("stopped", timeout_s=10)
    if runs:
        client.session.send("next", {"threadId": client.thread})  # over time.sleep(2)
        await asyncio.sleep(0.3)
    await client.drop()
    begin = time.monotonic()
    went_on = program.ended(15)
    saw: Saw = {
        "the task": f"went on to its end within {time.monotonic() - begin:.1f} s" if went_on else "stays",
        "rows": len(head.paused()),
    }
    if not went_on:
        try:
            again = await Client.attach(row)
            stack = await again.session.request("stackTrace", {"threadId": again.thread}, timeout_s=10)
            saw["a new client"] = f"finds it at line {stack['stackFrames'][0]['line']}"
            await again.drop()
        except (TimeoutError, OSError, ConnectionLost, RequestFailed) as error:
            saw["a new client"] = f"{type(error).__name__}: {error}"
    head.end_programs()
    return saw


async def second_client(head: Head) -> Saw:
    """F19, S10: a second client comes."""
    program = head.start(OWN_JOBS, "plain")
    (row,) = head.wait_paused()
    first = await Client.attach(row)
    try:
        await Client.attach(row)
        refused = "not refused"
    except RequestFailed as error:
        refused = str(error)
    saw = {"second client": refused, "the first still answers": await first.answers()}
    await first.go_on()
    return {**saw, "program ended": program.ended(10)}


async def adapter_killed(head: Head) -> Saw:
    """F20: what stands between client and worker, debugpy's adapter, is killed; with a client and without one."""
    saw = {}
    for attach in (True, False):
        before = {p.pid for p in head.adapters()}
        program = head.start(OWN_JOBS, "plain")
        (row,) = head.wait_paused()
        client = await Client.attach(row) if attach else None
        for adapter in head.adapters():
            if adapter.pid not in before:
                adapter.kill()
        seen = await client.observe(5.0) if client else []
        went_on = program.ended(10)
        rows = head.paused()
        try:
            await Client.attach(row)
            again = "attached"
        except Exception as error:
            again = f"{type(error).__name__}: {error}"
        saw["attached" if attach else "nobody attached"] = {
            "client saw": seen, "the task": "went on to its end" if went_on else "does not go on",
            "rows": len(rows), "a new client": again,
        }  # fmt: skip
        head.end_programs()
    return saw


async def on_two_hosts(scenario: str) -> Saw:
    """F18, F21: the client is on another host, and the cable between is cut: for good, for 10 s, for 60 s."""
    with two_hosts() as hosts, stock_head(SERVER, hosts.server.argv) as head:
        saw = {}
        for cut_s in {"F18": (None,), "F21": (10, 60)}[scenario]:
            saw["cut for good" if cut_s is None else f"cut for {cut_s} s"] = _cut(head, hosts, cut_s)
        return saw


def _cut(head: Head, hosts: TwoHosts, cut_s: float | None) -> Saw:
    program = head.start(OWN_JOBS, "plain")
    (row,) = head.wait_paused()
    client = _client_on(hosts, row)
    assert client.stdout is not None
    attached = client.stdout.readline().strip()
    hosts.cut()
    begin = time.monotonic()
    ended = program.ended(60.0 if cut_s is None else cut_s)
    went_on_s = time.monotonic() - begin
    hosts.heal()
    if cut_s is not None and not ended:
        time.sleep(3)
        ended = program.ended(1)
    client.kill()
    seen = [json.loads(line) for line in client.communicate()[0].splitlines()]
    saw = {
        "client": json.loads(attached),
        "the task": f"went on {went_on_s:.1f} s after the cut, to its end" if ended else "stays paused",
        "rows": len(head.paused()),
        "client saw": seen,
    }
    head.end_programs()
    return saw


def _client_on(hosts: TwoHosts, row: Row) -> subprocess.Popen[str]:
    argv = hosts.client.argv(sys.executable, "-m", "bench.stock.client", str(row["ip"]), str(row["debugger_port"]))
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)


async def listens(head: Head) -> Saw:
    """S7, S9: what a paused worker listens on, and what a client without any token may do there."""
    program = head.start(OWN_JOBS, "plain")
    (row,) = head.wait_paused()
    listening = [c.laddr for p in head.adapters() for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    client = await Client.attach(row)
    saw = {
        "debugpy's adapters listen on": sorted(
            {f"{address.ip} (a port of the kernel's choice)" for address in listening}
        ),
        "how many sockets for one paused worker": len(listening),
        "attached without a token, and evaluated 6 * 7": await client.evaluate("6 * 7"),
    }
    await client.go_on()
    return {**saw, "program ended": program.ended(10)}
