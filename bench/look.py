"""`python -m bench.look`: how long a debugger waits for an answer while a worker is paused."""

from __future__ import annotations

import statistics
import time

from bench import measuring
from bench.doors import Side
from bench.figures import Samples

EVALUATES, STEPS = 20, 5  # in a repetition, whose value is their median


async def measure(sides: list[Side], repetitions: int) -> Samples:
    """Measure `evaluate`, and a step with all that a debugger fetches after it, in one pause of each side's worker."""
    samples = measuring.Collected()
    for one in sides:
        await one.ask("start", 1)  # thirty idle workers take a fifth of two cores
    paused = {one: await one.take_pause("walk", 0, 1000) for one in sides}
    for _ in range(repetitions):
        for one, (held, _) in paused.items():
            spans = []
            for _ in range(EVALUATES):
                start = time.perf_counter()
                await held.evaluate("len(names) + 1")
                spans.append((time.perf_counter() - start) * 1000)
            samples.add("evaluate", one.name, statistics.median(spans))
    for _ in range(repetitions):
        for one, (held, _) in paused.items():
            spans = []
            for _ in range(1 + STEPS):
                start = time.perf_counter()
                await held.step_and_look()
                spans.append((time.perf_counter() - start) * 1000)
            samples.add("step", one.name, spans[0])
            samples.add("step_again", one.name, statistics.median(spans[1:]))
    for held, answer in paused.values():
        await held.go_on()
        await held.leave()
        await answer
    return samples.samples


if __name__ == "__main__":
    measuring.run_alone(measure)
