"""`python -m bench.steps`: what a step of a training costs more with all that raydebug does by default.

Needs the flavour cpu in this environment. Runs with and without it take turns; each starts the training anew, which
takes most of the time. `without` is `--debugger off --no-spans`: the run is still recorded from its log, as that is
where the times of the steps come from. Beside a step's time stands the processor time that the whole machine spends in
it, raydebug's own programs included: it varies less, as it does not count what a step waits for.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import measuring
from bench.containers import machine_line
from bench.starts import cluster_for
from bench.training import COMMAND, RAYDEBUG, place, run

WAYS = {"with": [], "without": ["--debugger", "off", "--no-spans"]}
FIRST = 3  # steps before it warm up
APART_S = 0.05  # between two looks at the machine's processor time


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: python -m bench.steps --runs 2 --steps 8")  # fmt: skip
    parser.add_argument("--runs", type=int, default=10, help="of each way")
    parser.add_argument("--steps", type=int, default=60, help="of each run")
    options = parser.parse_args()
    took: dict[str, list[Cost]] = {way: [] for way in WAYS}
    before = measuring.machine()
    with place() as folder, cluster_for(folder):
        for number in range(options.runs):
            for way in sorted(WAYS, reverse=bool(number % 2)):
                took[way].append(cost_of_step(folder, WAYS[way], options.steps))
                print(f"{way}: {took[way][-1]}", file=sys.stderr, flush=True)
    about = {**before, "load_after": measuring.machine()["load"], "repetitions": options.runs}
    print(f"{machine_line(about)}\n\n| a step | median of {options.runs} runs | smallest and largest |\n|---|---|---|")
    for column, name in enumerate(Cost._fields):
        values = {way: [cost[column] for cost in costs] for way, costs in took.items()}
        for way, ones in values.items():
            row = f"{1e3 * statistics.median(ones):.1f} ms | {1e3 * min(ones):.1f} to {1e3 * max(ones):.1f} ms"
            print(f"| {name}, {way} | {row} |")
        pairs = [(one / other - 1) * 100 for one, other in zip(values["with"], values["without"], strict=True)]
        error = statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else float("nan")
        more = f"{statistics.median(pairs):+.2f} %, mean {statistics.mean(pairs):+.2f} ± {error:.2f} %"
        print(f"| {name}, more with it, of pairs | {more} | {min(pairs):+.2f} to {max(pairs):+.2f} % |")


class Cost(NamedTuple):
    """Of one step, in seconds."""

    time: float
    processor: float


def cost_of_step(folder: Path, more: list[str], steps: int) -> Cost:
    """Run the training, and return the median time of its steps, as its own log has them, and their processor time."""
    length = ["trainer.total_epochs=1000", f"trainer.total_training_steps={steps}"]
    with noting_processor_time() as noted:
        run([RAYDEBUG, "run", "--profile", "full", *more, "--", *COMMAND, *length], folder)
    found = json.loads(run([RAYDEBUG, "report", "--json"], folder))
    ends = [found["started"] + one["end_s"] for one in found["steps"][FIRST - 2 :]]
    first, last = (noted[bisect.bisect(noted, (end, 0.0))][1] for end in (ends[0], ends[-1]))
    times = [float(one["metrics"]["timing_s/step"]) for one in found["steps"][FIRST - 1 :]]
    return Cost(statistics.median(times), (last - first) / (len(ends) - 1))


@contextlib.contextmanager
def noting_processor_time() -> Iterator[list[tuple[float, float]]]:
    """Note, while the body runs, the time of day and the processor time of the machine since its start, in seconds."""
    noted: list[tuple[float, float]] = []
    ended = threading.Event()

    def note() -> None:
        while not ended.wait(APART_S):
            user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text(encoding="ascii").split()[1:8]
            ticks = sum(int(one) for one in (user, nice, system, *interrupts))
            noted.append((time.time(), ticks / os.sysconf("SC_CLK_TCK")))

    thread = threading.Thread(target=note)
    thread.start()
    try:
        yield noted
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main()
