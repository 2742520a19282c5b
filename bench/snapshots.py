"""`python -m bench.snapshots`: what a crash waits for its snapshot, and the size of the file.

Needs torch (flavour cpu). 20 frames, each with 17 locals, among them one tensor of 256 MiB and a transposed view of it.
With coredumpy installed its figures are beside; without it those of coredumpy 0.5.0 on the same program are quoted.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FRAMES, REPETITIONS, PROCESSES = 20, 20, 5
CRASHES, ROUNDS = 200, 5
QUOTED = "19.5 s, 267 MB (coredumpy 0.5.0, quiet machine of two cores)"
# Forks that crash at one moment, each as a rank of its own; prints what each of them has waited for.
AT_ONCE = """\
import gc, os, sys, time
from raydebug.worker import crashes, dial_in, snapshot
dial_in.proven_connection("control").close()  # as processes of Ray have done long before
gc.freeze()
def boom(number):
    rows = [{"loss": number}] * 10
    raise ValueError("boom")
read, write = os.pipe()
until = time.time() + 2
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.environ["RANK"] = str(number)
        time.sleep(max(0.0, until - time.time()))
        try:
            boom(number)
        except ValueError as error:
            began = time.monotonic()
            crashes.note_crash(error)
        os.write(write, b"%f\\n" % (time.monotonic() - began))
        time.sleep(5)
        os._exit(0)
os.close(write)
print(*open(read))
"""


class Config:
    """An object with attributes."""

    def __init__(self) -> None:
        self.rate, self.names, self.nested = 1e-6, ["a", "b"], {"clip": 0.2, "beta": 0.01}


def train(depth: int, tensor: Any) -> None:
    """Recurse to FRAMES frames and raise."""
    import torch

    view, small = tensor.t(), torch.full((4, 8), float("nan"), dtype=torch.bfloat16)
    layer, rows = torch.nn.Linear(16, 16), [{"step": number, "loss": number / 7} for number in range(1000)]
    table, config, text = {f"key{number}": number for number in range(200)}, Config(), "prompt " * 500
    one, two, three, four, five = 1, 2.5, "three", (4, 5), {6, 7}
    ids, mask, path = list(range(512)), torch.ones(8, 512), Path("/data/train.parquet")
    if depth:
        train(depth - 1, tensor)
    raise ValueError(f"bad batch {one} {two} {three} {four} {five} {view.shape} {small.shape} {layer} {len(rows)}"
                     f" {len(table)} {config} {len(text)} {len(ids)} {mask.shape} {path}")  # fmt: skip


def measure_here() -> dict[str, Any]:
    """Return the times of the first and of further snapshots in this process, in ms, and the size of the file."""
    import torch

    tensor = torch.randn(8192, 8192)
    try:
        train(FRAMES - 1, tensor)
    except ValueError as raised:
        error = raised
    times = []
    for _ in range(REPETITIONS + 1):
        began = time.perf_counter()
        from raydebug.worker import snapshot

        frames = snapshot.frames_of(error)
        summary = snapshot.summarize(error, frames, "crash")
        file = snapshot.write(error, frames, summary, "MainThread")
        times.append((time.perf_counter() - began) * 1000)
    found = {"first": times[0], "warm": statistics.median(times[1:]), "bytes": len(file)}
    if importlib.util.find_spec("coredumpy") is not None:
        found |= _measure_coredumpy(error)
    return found


def _measure_coredumpy(error: BaseException) -> dict[str, Any]:
    coredumpy = importlib.import_module("coredumpy")

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump"
        began = time.perf_counter()
        coredumpy.dump(frame=trace.tb_frame if trace is not None else None, path=str(path))
        return {"stock_s": time.perf_counter() - began, "stock_bytes": path.stat().st_size}


def measure_at_once() -> list[float]:
    """Return how long the slowest of many ranks that crash at once waits, in s, for each round."""
    from bench import hangs  # not at the top: what it imports would make the first snapshot of a process cheaper
    from raydebug.protocol import variables

    found = []
    for number in range(ROUNDS):
        with hangs.gateway() as (_, environment, _process):
            argv = [sys.executable, "-c", AT_ONCE, str(CRASHES)]
            said = subprocess.check_output(argv, env={**environment, variables.JOB: f"bench-{number}"})
        delays = [float(word) for word in said.split()]
        assert len(delays) == CRASHES, len(delays)
        found.append(max(delays))
    return found


def main() -> None:
    """Measure in processes of their own, and save the table."""
    if "--one" in sys.argv:
        print(json.dumps(measure_here()))
        return
    argv = [sys.executable, "-m", "bench.snapshots", "--one"]
    runs = [json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout) for _ in range(PROCESSES)]
    first, warm = (statistics.median(run[name] for run in runs) for name in ("first", "warm"))
    from bench import measuring  # not at the top: it would make the first snapshot cheaper

    at_once, stock = measure_at_once(), QUOTED
    if "stock_s" in runs[0]:
        stock = f"{statistics.median(run['stock_s'] for run in runs):.1f} s, {runs[0]['stock_bytes'] / 1e6:.0f} MB"
    at_once_s = f"{statistics.median(at_once):.2f} s, {max(at_once):.2f} s"
    rows = [
        ("first snapshot of a process, in the thread that crashed", f"{first:.1f} ms", "150 ms", stock),
        ("further ones", f"{warm:.1f} ms", "10 ms", ""),
        ("on disk", f"{runs[0]['bytes'] / 1000:.0f} kB", "300 kB", ""),
        (f"{CRASHES} ranks crash at once: the slowest one (median of {ROUNDS}, longest)", at_once_s, "1 s", ""),
    ]
    about = f"{FRAMES} frames with a tensor of 256 MiB; medians of {PROCESSES} processes."
    measuring.save_program("snapshots", "Snapshots", about, ("figure", "raydebug", "goal", "coredumpy"), rows)


if __name__ == "__main__":
    main()
