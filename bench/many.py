"""`python -m bench.many`: many ranks at once, many tasks in the cluster, and a gateway that nobody asks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench import measuring
from bench.doors import (
    WAIT_S,
    Held,
    Side,
    attach_to_gateway,
    attach_to_stock,
    paused_at_gateway,
    paused_at_stock,
)
from bench.figures import RAYDEBUG, Samples

ACTORS = 32
TASKS = (100, 1_000, 9_000)
COMMAND = Path(sys.executable).parent / "raydebug"
IDLE_S = 10.0
SETTLE_S, SETTLED_PERCENT = 180.0, 20.0  # thousands of tasks leave Ray busy for a while: that is not what is measured
ROUNDS = 5  # of the dear ones; a repetition of the others is a call


async def measure(sides: list[Side], repetitions: int) -> Samples:
    """Measure all three."""
    samples = measuring.Collected()
    for one in sides:
        await one.ask("start", ACTORS)
        for _ in range(min(ROUNDS, repetitions)):
            await _attach_all(one, samples)
    ours = sides[0]
    assert ours.name == RAYDEBUG
    await _idle(ours, samples)
    await sides[1].ask("start", 0)  # what they cost while they idle is not what is measured
    done = 0
    for tasks in TASKS:
        await ours.ask("tasks", tasks - done)
        done = tasks
        await asyncio.to_thread(_settle)
        for _ in range(repetitions):
            samples.add(f"paused_{tasks}", RAYDEBUG, await asyncio.to_thread(_time_paused, ours.cluster.name))
    return samples.samples


def _settle() -> None:
    """Wait until the machine has little else to do."""
    deadline = time.monotonic() + SETTLE_S
    while psutil.cpu_percent(2.0) > SETTLED_PERCENT and time.monotonic() < deadline:
        pass


async def _attach_all(one: Side, samples: measuring.Collected) -> None:
    """Let all actors pause; when all are listed, attach to each with its stack, all at one time."""
    answer = asyncio.ensure_future(one.ask("together", "pause", 0))
    listed = paused_at_gateway if one.name == RAYDEBUG else paused_at_stock
    rows: Sequence[Mapping[str, Any]] = []
    async with asyncio.timeout(WAIT_S):
        while len(rows) < ACTORS:
            rows = await listed(one.cluster)
            await asyncio.sleep(0.05)
    attach = attach_to_gateway if one.name == RAYDEBUG else attach_to_stock
    start = time.perf_counter()
    held: list[Held] = await asyncio.gather(*(attach(one.cluster, row) for row in rows))
    samples.add("attach_32", one.name, time.perf_counter() - start)
    await _all(one.go_on() for one in held)
    await _all(one.leave() for one in held)
    await answer


async def _all(awaitables: Any) -> None:
    waiting: list[Awaitable[Any]] = list(awaitables)
    await asyncio.gather(*waiting)


async def _idle(one: Side, samples: measuring.Collected) -> None:
    """Take the processor time of the gateway while 32 processes are dialled in, one is paused, and nobody asks."""
    from raydebug.cluster.local import marked_processes

    (gateway,) = (p for p in marked_processes(one.cluster) if "raydebug.gateway" in " ".join(p.cmdline()))
    held, answer = await one.take_pause("pause", 0, 0)
    for _ in range(3):
        before = gateway.cpu_times()
        await asyncio.sleep(IDLE_S)
        after = gateway.cpu_times()
        spent_s = after.user + after.system - before.user - before.system
        samples.add("gateway_idle", RAYDEBUG, 100 * spent_s / IDLE_S)
    await held.go_on()
    await held.leave()
    await answer


def _time_paused(name: str) -> float:
    start = time.perf_counter()
    subprocess.run([COMMAND, "paused", "--name", name], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    measuring.run_alone(measure)
