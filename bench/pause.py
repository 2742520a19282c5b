"""`python -m bench.pause`: from breakpoint() to a client that shows the stack; Python's speed before and after.

First pauses: each repetition has a fresh worker process on each side. Warm pauses: the first of these, again. For
raydebug the client waits at the gateway (`attach` with target `next`); for stock Ray it asks the worker table every
20 ms, as it must to find a paused worker and its port, then attaches.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from bench import measuring
from bench.doors import Side
from bench.figures import STOCK, Samples

DELAY_S = 0.4  # the client waits before the program stops
SETTLE_S = 0.3  # after leaving, until the process counts as left


async def measure(sides: list[Side], repetitions: int) -> Samples:
    """Measure first pauses and calls, one actor a repetition, then warm pauses of the first actor."""
    samples = measuring.Collected()
    for one in sides:
        await one.ask("start", repetitions)
    with tempfile.TemporaryDirectory(prefix="rd-bench-") as folder:
        for actor in range(repetitions):
            before = {one.name: await one.ask("measure", actor) for one in sides}
            again = {one.name: await one.ask("measure", actor) for one in sides}
            samples.add("calls_ns", STOCK, before[STOCK])
            for one in sides:
                # The worker of the stock head has no debugger yet: it is what both are compared with.
                samples.add("calls_before", one.name, again[one.name] / before[STOCK])
                await _first_pause(one, actor, Path(folder), before[one.name], samples)
    for _ in range(repetitions):
        for one in sides:
            held, answer = await one.take_pause("pause", 0, DELAY_S)
            at = float(await held.evaluate("before"))
            samples.add("warm_stack", one.name, held.seen["stack"] - at)
            await held.go_on()
            await held.leave()
            await answer
    return samples.samples


async def _first_pause(one: Side, actor: int, folder: Path, ns_before: float, samples: measuring.Collected) -> None:
    timed, left = (folder / f"{one.name}-{actor}-{word}" for word in ("timed", "left"))
    held, answer = await one.take_pause("pause_and_measure", actor, DELAY_S, str(timed), str(left))
    at = float(await held.evaluate("before"))
    samples.add("first_attachable", one.name, held.seen["attachable"] - at)
    samples.add("first_stack", one.name, held.seen["stack"] - at)
    await held.go_on()
    while not timed.exists() and not answer.done():  # noqa: ASYNC110 - the calls with the client attached
        await asyncio.sleep(0.05)
    await held.leave()
    await asyncio.sleep(SETTLE_S)
    left.touch()
    attached, alone = await answer
    samples.add("calls_attached", one.name, attached / ns_before)
    samples.add("calls_left", one.name, alone / ns_before)
    samples.add("calls_later", one.name, await one.ask("measure", actor) / ns_before)


if __name__ == "__main__":
    measuring.run_alone(measure)
