"""The program under the debugger, the same on both heads: actors that pause and time their own calls.

`python -m bench.target ADDRESS` is a driver. It takes one JSON list a line on stdin, [method, argument...], or
["start", count], ["together", method, argument...] for all actors, or ["tasks", count], and answers each with one JSON
line on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

CALLS, CHUNKS, APART_S = 20_000, 40, 0.002


def called() -> None:
    """Do nothing: what is timed is the call."""


def ns_per_call() -> float:
    """Return the time of a Python call in ns; the best of some chunks, each shorter than a time slice."""
    best = float("inf")
    for _ in range(CHUNKS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            called()
        best = min(best, (time.perf_counter_ns() - start) / CALLS)
        time.sleep(APART_S)  # another moment: some are free of what else runs on the machine
    return best


class Target:
    """An actor's class: each instance has a process of its own."""

    def measure(self) -> float:
        """Time calls in a task of their own."""
        return ns_per_call()

    def pause(self, delay_s: float) -> None:
        """Stop once, `delay_s` after the call; the clock of `before` is one for all processes of a Linux machine."""
        time.sleep(delay_s)
        before = time.perf_counter()  # noqa: F841 - the debugger reads it
        breakpoint()
        time.sleep(0)  # stock stops at the line after breakpoint(), so there must be one in this function

    def pause_and_measure(self, delay_s: float, timed: str, left: str) -> list[float]:
        """Stop once, then time calls from this very function: at once (then `timed` appears), and when `left` has."""
        time.sleep(delay_s)
        before = time.perf_counter()  # noqa: F841 - the debugger reads it
        breakpoint()
        attached = ns_per_call()
        Path(timed).touch()
        while not Path(left).exists():
            time.sleep(0.05)
        return [attached, ns_per_call()]

    def walk(self, rounds: int) -> int:
        """Stop once, then offer lines to step over, among values of several kinds."""
        names, sizes, table = ["a", "b", "c"], (1, 2, 3), {"loss": 0.5, "step": 1}
        before = time.perf_counter()
        breakpoint()
        total = 0
        for _ in range(rounds):
            total += len(names)
            total += sizes[0]
            total -= len(table)
        return total if before else 0


def main(address: str) -> None:
    """Answer the lines on stdin until they end."""
    import ray

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints the raylet's warnings on stdout, whatever log_to_driver says
    ray.init(address=address, log_to_driver=False, logging_level="error", configure_logging=False)
    actors: list[Any] = []
    nothing = ray.remote(num_cpus=0)(called)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        if method == "start":
            actors = [ray.remote(num_cpus=0)(Target).remote() for _ in range(arguments[0])]
            answer = len(ray.get([actor.measure.remote() for actor in actors]))
        elif method == "together":
            answer = ray.get([getattr(actor, arguments[0]).remote(*arguments[1:]) for actor in actors])
        elif method == "tasks":
            answer = len(ray.get([nothing.remote() for _ in range(arguments[0])]))
        else:
            actor, *rest = arguments
            answer = ray.get(getattr(actors[actor], method).remote(*rest))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
