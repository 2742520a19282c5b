"""Two ways to a paused worker, with one client: through raydebug's gateway, and through stock Ray's open port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx

from bench import heads
from raydebug.client.gateway_client import fetch_pauses
from raydebug.cluster.state import Cluster
from raydebug.dap import DapSession

WAIT_S = 60.0
POLL_S = 0.02  # how often a client of stock Ray looks whether something has paused
# Both filters run in GCS: this is the cheapest question that finds a paused worker (Ray 2.60 state API).
PAUSED_WORKERS = (
    "/api/v0/workers?detail=1&limit=100&filter_keys=num_paused_threads&filter_predicates=%21%3D&filter_values=0"
    "&filter_keys=is_alive&filter_predicates=%3D&filter_values=True"
)


class Held:
    """A paused thread in a client's hands; `seen` says when the client got how far."""

    def __init__(self, session: DapSession, thread: int, frames: list[dict[str, Any]], seen: dict[str, float]) -> None:
        self.session = session
        self.seen = seen
        self._thread = thread
        self._frames = frames

    async def evaluate(self, expression: str) -> str:
        """Evaluate in the frame that paused."""
        arguments = {"expression": expression, "frameId": self._frames[0]["id"], "context": "repl"}
        return str((await self.session.request("evaluate", arguments))["result"])

    async def step_and_look(self) -> None:
        """Step over a line and fetch what a debugger shows then: the stack, its scopes, the local variables."""
        await self.session.request("next", {"threadId": self._thread})
        await self.session.next_event("stopped", timeout_s=WAIT_S)
        self._frames = await _stack(self.session, self._thread)
        scopes = (await self.session.request("scopes", {"frameId": self._frames[0]["id"]}))["scopes"]
        reference = next(s["variablesReference"] for s in scopes if s["name"] == "Locals")
        await self.session.request("variables", {"variablesReference": reference})

    async def go_on(self) -> None:
        """Let the thread run; this client stays attached."""
        await self.session.request("continue", {"threadId": self._thread})

    async def leave(self) -> None:
        """Disconnect."""
        await self.session.request("disconnect", {"terminateDebuggee": False})
        await self.session.close()


async def take_from_gateway(cluster: Cluster, target: str = "next") -> Held:
    """Take a pause by its id, or wait at the gateway for the next one."""
    session = await DapSession.connect(cluster.gateway_host, cluster.gateway_port)
    await session.request("initialize", {"clientName": "bench", "adapterID": "python"})
    await session.request("attach", {"token": cluster.token, "target": target}, timeout_s=WAIT_S)
    seen = {"attachable": time.perf_counter()}
    await session.request("configurationDone")
    return await _hold(session, seen)


async def paused_at_gateway(cluster: Cluster) -> Sequence[Mapping[str, Any]]:
    """Ask the gateway for its pauses."""
    return await asyncio.to_thread(fetch_pauses, cluster)


async def attach_to_gateway(cluster: Cluster, pause: Mapping[str, Any]) -> Held:
    """Take a pause of the gateway's list."""
    return await take_from_gateway(cluster, pause["id"])


async def paused_at_stock(cluster: Cluster) -> Sequence[Mapping[str, Any]]:
    """Ask Ray's worker table for paused workers."""
    headers = {"Authorization": f"Bearer {cluster.token}"}
    async with httpx.AsyncClient(base_url=cluster.dashboard, headers=headers) as table:
        rows: list[dict[str, Any]] = (await table.get(PAUSED_WORKERS)).json()["data"]["result"]["result"]
        return rows


async def take_from_stock(cluster: Cluster) -> Held:
    """Ask Ray's worker table until a worker has paused, then attach to the port that it opened."""
    async with asyncio.timeout(WAIT_S):
        while not (rows := await paused_at_stock(cluster)):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)  # the table cannot be waited on
    return await attach_to_stock(cluster, rows[0])


async def attach_to_stock(_cluster: Cluster, worker: Mapping[str, Any]) -> Held:
    """Attach to the port that a paused worker has opened."""
    seen = {"attachable": time.perf_counter()}
    host, port = worker["ip"], int(worker["debugger_port"])
    session = await DapSession.connect(host, port)
    await session.request("initialize", {"clientName": "bench", "adapterID": "python", "pathFormat": "path"})
    wanted = {"type": "python", "request": "attach", "justMyCode": False, "connect": {"host": host, "port": port}}
    attached = session.send("attach", wanted)  # answered only after configurationDone
    await session.next_event("initialized", timeout_s=WAIT_S)
    await session.request("setExceptionBreakpoints", {"filters": ["uncaught"]})
    await session.request("configurationDone")
    await attached
    return await _hold(session, seen)


async def _hold(session: DapSession, seen: dict[str, float]) -> Held:
    thread = (await session.next_event("stopped", timeout_s=WAIT_S))["body"]["threadId"]
    frames = await _stack(session, thread)
    return Held(session, thread, frames, {**seen, "stack": time.perf_counter()})


async def _stack(session: DapSession, thread: int) -> list[dict[str, Any]]:
    frames = await session.request("stackTrace", {"threadId": thread, "startFrame": 0, "levels": 20})
    return list(frames["stackFrames"])


class Side:
    """One head with its program under the debugger and its way to a pause."""

    def __init__(self, name: str, cluster: Cluster, program: asyncio.subprocess.Process) -> None:
        self.name = name
        self.cluster = cluster
        self._program = program
        self.answers: list[asyncio.Task[Any]] = []

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Run a method of bench/target.py and return its answer."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps([method, *arguments]).encode() + b"\n")
        async with asyncio.timeout(WAIT_S * 2):
            line = await self._program.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.name} program ended; its words are above")
        try:
            return json.loads(line)
        except ValueError:
            raise RuntimeError(f"the {self.name} program said: {line.decode(errors='replace')}") from None

    async def take_pause(self, method: str, *arguments: Any) -> tuple[Held, asyncio.Task[Any]]:
        """Run a method that pauses, and take its pause with a client that was waiting; the task is its answer."""
        take = take_from_gateway if self.name == "raydebug" else take_from_stock
        waiting = asyncio.ensure_future(take(self.cluster))
        answer = asyncio.ensure_future(self.ask(method, *arguments))
        self.answers.append(answer)
        await asyncio.wait({waiting, answer}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            raise RuntimeError(f"{self.name}: {method} ended without a pause: {answer.result()}")
        return waiting.result(), answer


@contextlib.asynccontextmanager
async def side(name: str, cluster: Cluster) -> AsyncIterator[Side]:
    """Start the program under the debugger on a head; a measurement has it start as many actors as it needs."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.target", cluster.address),
        env=heads.client_environment(cluster),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us; we end it ourselves
    )
    one = Side(name, cluster, program)
    try:
        yield one
    finally:
        for answer in one.answers:  # still open when a measurement broke off
            answer.cancel()
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        await program.wait()
