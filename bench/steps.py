"""`python -m bench.steps`: what a step of a training costs more with all that raydebug does by default.

Needs the flavour cpu in this environment. Runs with and without it take turns; each starts the training anew, which
takes most of the time: half an hour for ten runs each way. `without` is `--debugger off --no-spans`: the run is still
recorded from its log, as that is where the times of the steps come from.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from bench import measuring
from bench.containers import machine_line
from bench.starts import cluster_for
from bench.training import COMMAND, RAYDEBUG, place, run

WAYS = {"with": [], "without": ["--debugger", "off", "--no-spans"]}
FIRST = 3  # steps before it warm up


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: python -m bench.steps --runs 2 --steps 8")  # fmt: skip
    parser.add_argument("--runs", type=int, default=10, help="of each way")
    parser.add_argument("--steps", type=int, default=15, help="of each run")
    options = parser.parse_args()
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    before = measuring.machine()
    with place() as folder, cluster_for(folder):
        for number in range(options.runs):
            for way in sorted(WAYS, reverse=bool(number % 2)):
                took[way].append(step_s(folder, WAYS[way], options.steps))
                print(f"{way}: {took[way][-1]:.4f} s", file=sys.stderr, flush=True)
    about = {**before, "load_after": measuring.machine()["load"], "repetitions": options.runs}
    medians = {way: statistics.median(values) for way, values in took.items()}
    print(f"{machine_line(about)}\n\n| a step | median of {options.runs} runs | smallest and largest |\n|---|---|---|")
    for way, values in took.items():
        print(f"| {way} | {1e3 * medians[way]:.1f} ms | {1e3 * min(values):.1f} to {1e3 * max(values):.1f} ms |")
    pairs = [(one / other - 1) * 100 for one, other in zip(took["with"], took["without"], strict=True)]
    more = 100 * (medians["with"] / medians["without"] - 1)
    print(f"\nmore with it: {more:+.2f} %; of neighbouring runs the median is"
          f" {statistics.median(pairs):+.2f} %, from {min(pairs):+.2f} to {max(pairs):+.2f} %")  # fmt: skip


def step_s(folder: Path, more: list[str], steps: int) -> float:
    """Run the training, and return the median seconds of its steps as its own log has them."""
    length = ["trainer.total_epochs=100", f"trainer.total_training_steps={steps}"]
    run([RAYDEBUG, "run", "--profile", "full", *more, "--", *COMMAND, *length], folder)
    found = json.loads(run([RAYDEBUG, "report", "--json"], folder))["steps"]
    return statistics.median(float(one["metrics"]["timing_s/step"]) for one in found[FIRST - 1 :])


if __name__ == "__main__":
    main()
