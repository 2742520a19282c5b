"""`python -m bench.steps`: what a step of a training costs more with all that raydebug does by default.

Needs the flavour cpu in this environment; takes about 20 minutes. Runs of one training differ by several per cent, so
both ways are measured in one: raydebug's own programs, `raydebug run` and the gateway, are stopped for every second
block of steps, and with them all that they ask the training's processes. Each block is compared with its neighbours.
Its first step is left out, as stopped programs catch up in it. What goes on meanwhile is the recording of spans in the
processes: their number is printed, and `python -m bench.spans` has what one costs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from bench import measuring
from bench.containers import machine_line
from bench.starts import cluster_for
from bench.training import COMMAND, RAYDEBUG, place
from raydebug.cluster.find import load_cluster

BLOCK = 4  # steps: about ten seconds, less than what ends a connection
FIRST_BLOCKS = 2  # which warm up
LEAST_STEPS = 10 * BLOCK
LOOK_S = 0.02
GATEWAY = "raydebug.gateway"  # the module that it runs
# In the log of the driver, as it is before raydebug reads it.
STEP = re.compile(r"step:(\d+) - .*?timing_s/step:(?:np\.float64\()?([\d.]+)")


class Step(NamedTuple):
    """One step of the training."""

    number: int
    took_s: float
    is_alone: bool  # raydebug's programs were stopped
    used_s: float  # their processor time until its end
    at_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: python -m bench.steps --steps 80")  # fmt: skip
    parser.add_argument("--steps", type=int, default=320)
    options = parser.parse_args()
    if options.steps < LEAST_STEPS:
        parser.error(f"--steps is at least {LEAST_STEPS}: fewer leave no two blocks to compare")
    before = measuring.machine()
    with place() as folder, cluster_for(folder):
        steps = list(measured(folder, options.steps))
        spans = sum(
            len(json.loads(line).get("rows", ()))
            for path in Path(os.environ["XDG_STATE_HOME"]).rglob("spans.jsonl")
            for line in path.open()
        )
    print(machine_line({**before, "load_after": measuring.machine()["load"], "repetitions": 1}))
    print(f"\n{table(steps)}; {spans / options.steps:.0f} spans a step")


def table(steps: list[Step]) -> str:
    """Return both ways in Markdown, and what the blocks cost more than their neighbours."""
    blocks: dict[int, list[Step]] = {}
    for step in steps:
        blocks.setdefault((step.number - 1) // BLOCK, []).append(step)
    means = {
        number: statistics.mean(step.took_s for step in block[1:])
        for number, block in blocks.items()
        if number >= FIRST_BLOCKS and len(block) == BLOCK
    }
    lines = ["| a step | median | mean | spread |", "|---|---|---|---|"]
    for name, is_alone in (("with raydebug's programs", False), ("while they are stopped", True)):
        times = [1e3 * step.took_s for number in means for step in blocks[number][1:] if step.is_alone == is_alone]
        median, mean, spread = statistics.median(times), statistics.mean(times), statistics.stdev(times)
        lines.append(f"| {name} | {median:.0f} ms | {mean:.0f} ms | ± {spread:.0f} ms, {len(times)} steps |")
    alone = {number: mean for number, mean in means.items() if blocks[number][0].is_alone}
    more = [
        100 * (2 * mean / (alone[number - 1] + alone[number + 1]) - 1)
        for number, mean in means.items()
        if number not in alone and {number - 1, number + 1} <= alone.keys()
    ]
    mean, median, error = statistics.mean(more), statistics.median(more), statistics.stdev(more) / len(more) ** 0.5
    lines += ["", f"of {len(more)} blocks beside their neighbours: {mean:+.2f} % ± {error:.2f}, median {median:+.2f} %"]
    while_at_work = 2 * (steps[-1].used_s - steps[0].used_s) / (steps[-1].at_s - steps[0].at_s)
    return "\n".join([*lines, f"raydebug's programs take {100 * while_at_work:.1f} % of a core"])


def measured(folder: Path, count: int) -> Iterator[Step]:
    """Run the training, stop raydebug's programs for every second block, and yield the steps as they end."""
    length = ["trainer.total_epochs=100000", f"trainer.total_training_steps={count}"]
    argv = [RAYDEBUG, "run", "--profile", "full", "--", *COMMAND, *length]
    with (folder / "run.log").open("wb") as said:
        run = subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    programs = [psutil.Process(run.pid), *gateways(folder)]
    is_alone = False
    try:
        for number, took_s in ends_of_steps(run):
            used_s = sum(sum(program.cpu_times()[:2]) for program in programs)
            yield Step(number, took_s, is_alone, used_s, time.monotonic())
            if number % BLOCK == 0:
                is_alone = not is_alone and number + BLOCK < count
                for program in programs:
                    program.send_signal(signal.SIGSTOP if is_alone else signal.SIGCONT)
    finally:
        for program in programs:
            with contextlib.suppress(psutil.NoSuchProcess):
                program.send_signal(signal.SIGCONT)
        if run.wait() != 0:
            raise SystemExit(f"{argv} failed:\n{(folder / 'run.log').read_text()}")


def gateways(folder: Path) -> list[psutil.Process]:
    """Return the gateway of the cluster whose state is in a folder."""
    everywhere = [process for process in psutil.process_iter(["cmdline"]) if GATEWAY in (process.info["cmdline"] or ())]
    return [process for process in everywhere if process.environ().get("XDG_STATE_HOME", "").startswith(str(folder))]


def ends_of_steps(run: subprocess.Popen[bytes]) -> Iterator[tuple[int, float]]:
    """Yield number and seconds of each step as the driver logs it, until the run ends."""
    logs = load_cluster().ray_logs
    log: IO[str] | None = None
    line = ""
    while run.poll() is None:
        if log is None:
            log = next((path.open() for path in logs.glob("job-driver-*.log")), None)
        while log is not None and (piece := log.readline()):
            line += piece
            if piece.endswith("\n"):
                if found := STEP.search(line):
                    yield int(found[1]), float(found[2])
                line = ""
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
