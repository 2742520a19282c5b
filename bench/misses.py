"""`python -m bench.misses`: what a breakpoint costs each time that it does not stop.

A loop with it, less the same loop without it; of a few rounds the quickest, as anything else on the machine only adds.
Below a cluster (RAYDEBUG_GATEWAY is set) unless the figure says otherwise; a gateway is dialled only at a stop. Stock
Ray has no conditions; what stands for it is the plain way to write one: `if CONDITION: breakpoint()`, a count by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import measuring
from bench.doors import Side
from bench.figures import RAYDEBUG, STOCK, Samples

PROGRAM = """\
import time
import raydebug

def empty(n, x):
    for i in range(n):
        pass

def code(n, x):
    for i in range(n):
        raydebug.breakpoint()

def code_when(n, x):
    for i in range(n):
        raydebug.breakpoint(when=x > 3)

def code_every(n, x):
    for i in range(n):
        raydebug.breakpoint(every=1000000000)

def outside(n, x):
    for i in range(n):
        pass

def plain_when(n, x):
    for i in range(n):
        if x > 3:
            breakpoint()

def plain_every(n, x):
    count = 0
    for i in range(n):
        count += 1
        if count % 1000000000 == 0:
            breakpoint()

def best_ns(function, n=200000, rounds=7):
    spans = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        function(n, 1)
        spans.append((time.perf_counter_ns() - start) / n)
    return min(spans)

import json, sys
print(json.dumps({name: best_ns(globals()[name]) - best_ns(empty) for name in sys.argv[1:]}))
"""
BREAK_LINE = PROGRAM[: PROGRAM.index("def outside")].count("\n") + 3  # the `pass` of outside()


async def measure(_sides: list[Side], repetitions: int) -> Samples:
    """Measure every way of not stopping."""
    samples = measuring.Collected()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "loops.py"
        program.write_text(PROGRAM, encoding="utf-8")
        for _ in range(repetitions):
            off, on = _loops(program, None, "code"), _loops(program, {}, "code_when", "code_every")
            samples.add("miss_disarmed", RAYDEBUG, off["code"])
            samples.add("miss_when", RAYDEBUG, on["code_when"])
            samples.add("miss_every", RAYDEBUG, on["code_every"])
            samples.add("miss_break_if", RAYDEBUG, _loops(program, {"if": "x > 3"}, "outside")["outside"])
            samples.add("miss_break_every", RAYDEBUG, _loops(program, {"every": 10**9}, "outside")["outside"])
            plain = _loops(program, None, "plain_when", "plain_every")
            for key, name in (("miss_when", "plain_when"), ("miss_break_if", "plain_when")):
                samples.add(key, STOCK, plain[name])
            for key, name in (("miss_every", "plain_every"), ("miss_break_every", "plain_every")):
                samples.add(key, STOCK, plain[name])
    return samples.samples


def _loops(program: Path, policy: dict[str, object] | None, *names: str) -> dict[str, float]:
    """Run the loops of the program; with a policy below a cluster, and a breakpoint from outside in `outside`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAYDEBUG_", "RAY_DEBUG"))}
    if policy is not None:
        definition = {"id": "b1", "where": "loops.py", "file": str(program), "line": BREAK_LINE, "policy": policy}
        environment["RAYDEBUG_GATEWAY"] = "127.0.0.1:9"
        if policy:
            environment["RAYDEBUG_BREAKS"] = json.dumps([definition])
    done = subprocess.run(
        [sys.executable, str(program), *names], env=environment, check=True, capture_output=True, text=True
    )
    spans: dict[str, float] = json.loads(done.stdout)
    return spans


if __name__ == "__main__":
    measuring.run_alone(measure, needs_heads=False)
