"""`python -m bench.spans`: what a span costs: a timer of verl's shape, plain, watched, and with the ring that keeps it.

CPU time of the thread in microseconds; the forms take turns, and of each the quickest turn counts. The last figures are
the cost of saying 1,000 spans, and the memory of a full ring.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from raydebug.worker import spans

TURNS, COUNT = 10, 5000


def _timers() -> ModuleType:
    module = ModuleType("timers")

    def _timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
        began = time.perf_counter()
        yield
        timing_raw[name] = timing_raw.get(name, 0.0) + time.perf_counter() - began

    module._timer = _timer  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def marked_timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
        yield from module._timer(name, timing_raw)

    module.marked_timer = marked_timer  # type: ignore[attr-defined]
    return module


def _cost_us(timer: Callable[..., Any]) -> float:
    raw: dict[str, float] = {}
    began = time.thread_time()
    for _ in range(COUNT):
        with timer("gen", raw):
            pass
    return (time.thread_time() - began) / COUNT * 1e6


async def _run_agent_loop(cost: Callable[[], float], trajectory: dict[str, int], **_kwargs: Any) -> float:
    return cost()


def main() -> None:
    """Print the figures."""
    plain, watched = _timers(), _timers()
    spans.watch(watched)
    best: dict[str, float] = {}

    def note(name: str, cost_us: float) -> None:
        best[name] = min(best.get(name, cost_us), cost_us)

    for _ in range(TURNS):
        spans.recorders.clear()
        note("plain timer", _cost_us(plain.marked_timer))
        note("watched (--no-spans)", _cost_us(watched.marked_timer))
        spans.keep_phases()
        note("kept, a phase", _cost_us(watched.marked_timer))
        sample = _run_agent_loop(lambda: _cost_us(watched.marked_timer), {"sample_index": 1, "rollout_n": 0}, uid="u1")
        note("kept, of a sample, with its uid", asyncio.run(sample))
        spans._forget()
    for name, cost_us in best.items():
        print(f"{name:40} {cost_us:6.2f} us")
    tracemalloc.start()
    for _ in range(spans.MOST):
        with watched.marked_timer("gen", {}):
            pass
    print(f"{'a full ring':40} {tracemalloc.get_traced_memory()[0] / 2**20:6.1f} MiB")
    tracemalloc.stop()
    began = time.thread_time()
    answer = spans.spans_since({})
    print(f"{'to say 1,000 spans':40} {(time.thread_time() - began) * 1e3:6.2f} ms, {len(answer['spans'])} said")


if __name__ == "__main__":
    main()
