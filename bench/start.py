"""`python -m bench.start`: what the hook adds to the start of every Python below a cluster, and two whole commands.

`raydebug.pth` is read by each of them; RAYDEBUG_GATEWAY, set by the cluster, switches the hook on. Runs with and
without the variable take turns. The figure for stock is the same Python with the hook off. An empty program pays for
every module that the hook imports; one that imports what any Ray worker imports pays for the hook's own modules.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import measuring
from bench.doors import Side
from bench.figures import RAYDEBUG, STOCK, Samples

RUNS = 20  # of each kind in a repetition, whose value is their median
HOOK = "raydebug.worker.startup"
EMPTY = "pass"
COMMANDS = {"help": ("--help",), "check_env": ("check", "env", "--fresh")}
LIKE_RAY = "import asyncio, json"  # a Ray worker has imported these, and what they import, before it takes a task


async def measure(_sides: list[Side], repetitions: int) -> Samples:
    """Measure whole runs of two programs, and the import of the hook in the empty one."""
    samples = measuring.Collected()
    off = {k: v for k, v in os.environ.items() if not k.startswith("RAYDEBUG_")}
    on = {**off, "RAYDEBUG_GATEWAY": "127.0.0.1:9"}  # only dialled at a pause
    _run_ms(LIKE_RAY, on)
    for _ in range(repetitions):
        for key, program in (("start", EMPTY), ("start_ray", LIKE_RAY)):
            spans = [(_run_ms(program, on), _run_ms(program, off)) for _ in range(RUNS)]
            with_hook, without = (statistics.median(kind) for kind in zip(*spans, strict=True))
            samples.add(key, RAYDEBUG, with_hook)
            samples.add(key, STOCK, without)
            samples.add(f"{key}_extra", RAYDEBUG, statistics.median(one - other for one, other in spans))
        for key, command in COMMANDS.items():
            samples.add(key, RAYDEBUG, statistics.median(_command_s(command, off) for _ in range(RUNS)))
        whole, own = _import_ms(on)
        samples.add("start_import", RAYDEBUG, whole)
        samples.add("start_import_own", RAYDEBUG, own)
    return samples.samples


def _run_ms(program: str, environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    return (time.perf_counter() - start) * 1000


def _command_s(arguments: tuple[str, ...], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    argv = [str(Path(sys.executable).parent / "raydebug"), *arguments]
    subprocess.run(argv, env=environment, check=False, stdout=subprocess.DEVNULL)  # `check` exits 1 with findings
    return time.perf_counter() - start


def _import_ms(environment: dict[str, str]) -> tuple[float, float]:
    """Return how long the import of the hook took with all that it imports, and the part of raydebug's own modules."""
    argv = [sys.executable, "-X", "importtime", "-c", EMPTY]
    said = subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stderr
    # import time: self [us] | cumulative | imported package
    rows = [line.removeprefix("import time:").split("|") for line in said.splitlines() if line.count("|") == 2]
    spans = {name.strip(): (own, whole) for own, whole, name in rows}
    ours = sum(int(own) for name, (own, _) in spans.items() if name.partition(".")[0] == "raydebug")
    return int(spans[HOOK][1]) / 1000, ours / 1000


if __name__ == "__main__":
    measuring.run_alone(measure, needs_heads=False)
