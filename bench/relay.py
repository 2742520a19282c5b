"""`python -m bench.relay`: what the gateway adds between a debugger and a paused process, beside a plain relay (socat).

The same paused program and the same questions over four ways: straight to the bench (which proves itself to the
program as a gateway does, and speaks to its pydevd), through socat to the bench, through an asyncio program that only
copies, and through a gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import measuring
from bench.doors import Side
from bench.figures import RAYDEBUG, STOCK, Samples
from raydebug.cluster.up import choose_ports
from raydebug.dap import DapSession
from raydebug.gateway.__main__ import Gateway, Ports

TURNS, EVALUATES = (
    10,
    20,
)  # in a repetition, whose value is the median of all: the machine's speed changes by the second
BIG_MIB = 12
PROGRAM = f"def look():\n    big = 'x' * ({BIG_MIB} << 20)\n    breakpoint()\nlook()\n"
WAIT_S = 30.0
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


async def measure(_sides: list[Side], repetitions: int) -> Samples:
    """Measure the ways, taking turns."""
    samples = measuring.Collected()
    if shutil.which("socat") is None:
        print("no socat here: what the gateway adds is not measured", file=sys.stderr)
        return {}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "token").write_text(secrets.token_hex(32))
        (folder / "program.py").write_text(PROGRAM)
        ways = {
            "direct": await stack.enter_async_context(_direct(folder)),
            "socat": await stack.enter_async_context(_direct(folder, _socat)),
            "copying": await stack.enter_async_context(_direct(folder, _copying)),
            "gateway": await stack.enter_async_context(_gateway(folder)),
        }
        for _ in range(repetitions):
            taken = await _take_turns(ways)
            samples.add("way_direct", RAYDEBUG, taken["direct"])
            samples.add("way", RAYDEBUG, taken["gateway"])
            samples.add("way", STOCK, taken["socat"])
            samples.add("way_copied", STOCK, taken["copying"] - taken["direct"])
            big = {name: await _fetch(*way) for name, way in ways.items() if name != "copying"}
            samples.add("way_mib_direct", RAYDEBUG, big["direct"])
            samples.add("way_mib", RAYDEBUG, big["gateway"])
            samples.add("way_mib", STOCK, big["socat"])
    _compare(samples)
    return samples.samples


def _compare(samples: measuring.Collected) -> None:
    """Add what the gateway adds, as a multiple of what socat adds, repetition by repetition."""
    direct, way, big = (samples.samples[key] for key in ("way_direct", "way", "way_mib"))
    for alone, ours, socats in zip(direct[RAYDEBUG], way[RAYDEBUG], way[STOCK], strict=True):
        samples.add("way_added", RAYDEBUG, ours - alone)
        samples.add("way_added", STOCK, socats - alone)
    added = {side: statistics.median(values) for side, values in samples.samples["way_added"].items()}
    samples.add("way_ratio", RAYDEBUG, added[RAYDEBUG] / added[STOCK])
    for ours, socats in zip(big[RAYDEBUG], big[STOCK], strict=True):
        samples.add("way_mib_ratio", RAYDEBUG, ours / socats)


async def _take_turns(ways: dict[str, tuple[Ask, int]]) -> dict[str, float]:
    """Return how long an evaluate takes by each way, in ms."""
    spans: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, (ask, frame) in ways.items():
            for _ in range(EVALUATES):
                start = time.perf_counter()
                await ask("evaluate", {"expression": "1 + 1", "frameId": frame, "context": "repl"})
                spans[name].append((time.perf_counter() - start) * 1000)
    return {name: statistics.median(values) for name, values in spans.items()}


async def _fetch(ask: Ask, frame: int) -> float:
    start = time.perf_counter()
    answer = await ask("evaluate", {"expression": "big", "frameId": frame, "context": "clipboard"})
    assert len(answer["result"]) > BIG_MIB << 20
    return (time.perf_counter() - start) / BIG_MIB * 1000


@contextlib.asynccontextmanager
async def _direct(
    folder: Path, through: Callable[[int, int], list[str]] | None = None
) -> AsyncIterator[tuple[Ask, int]]:
    """Be the gateway of a program that pauses, and ask its pydevd; `through` makes the argv of a relay between."""
    gateway = Gateway((folder / "token").read_text())
    port = (await gateway.start(Ports("127.0.0.1", 0, "127.0.0.1", 0))).dial_port
    relay = None
    if through is not None:
        behind = port
        port = choose_ports({}, {}, ())["dial"]
        relay = _run(through(port, behind), {})
        await asyncio.sleep(0.5)
    program = _start(folder, port)
    try:
        async with asyncio.timeout(WAIT_S):
            pause = await gateway.board.next_waiting()
        session = pause.process.session
        yield session.request, await _frame(session, pause.thread_id)
    finally:
        program.kill()
        program.wait()
        if relay is not None:
            relay.terminate()
            relay.wait()


def _socat(port: int, behind: int) -> list[str]:
    return ["socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay", f"TCP:127.0.0.1:{behind},nodelay"]


def _copying(port: int, behind: int) -> list[str]:
    return [sys.executable, "-m", "bench.copying", str(port), str(behind)]


@contextlib.asynccontextmanager
async def _gateway(folder: Path) -> AsyncIterator[tuple[Ask, int]]:
    """Ask a paused program through a gateway."""
    ports = choose_ports({"gateway": 0}, {}, ())
    argv = [sys.executable, "-m", "raydebug.gateway", "--client-port", str(ports["gateway"])]
    argv += ["--dial-port", str(ports["dial"])]
    gateway = _run(argv, {"RAYDEBUG_TOKEN_PATH": str(folder / "token")})
    session = await _connect(ports["gateway"])
    program = _start(folder, ports["dial"])
    try:
        await session.request("initialize", {"clientName": "bench"})
        await session.request("attach", {"token": (folder / "token").read_text(), "target": "next"}, timeout_s=WAIT_S)
        await session.request("configurationDone")
        thread = (await session.next_event("stopped", timeout_s=WAIT_S))["body"]["threadId"]
        yield session.request, await _frame(session, thread)
        await session.close()
    finally:
        program.kill()
        program.wait()
        gateway.terminate()
        gateway.wait()


async def _connect(port: int) -> DapSession:
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(OSError):
                return await DapSession.connect("127.0.0.1", port)
            await asyncio.sleep(0.1)


def _start(folder: Path, dial_port: int) -> subprocess.Popen[bytes]:
    variables = {"RAYDEBUG_GATEWAY": f"127.0.0.1:{dial_port}", "RAYDEBUG_TOKEN_PATH": str(folder / "token")}
    return _run([sys.executable, str(folder / "program.py")], variables)


def _run(argv: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAYDEBUG_", "RAY_DEBUG"))}
    return subprocess.Popen(argv, env={**environment, **variables}, stderr=subprocess.DEVNULL)


async def _frame(session: DapSession, thread_id: int) -> int:
    stack = await session.request("stackTrace", {"threadId": thread_id, "levels": 1})
    return int(stack["stackFrames"][0]["id"])


if __name__ == "__main__":
    measuring.run_alone(measure, needs_heads=False)
