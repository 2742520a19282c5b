"""The record of a long run: its size, its memory, the processor time of a write, and its report.

Usage: python bench/run_record.py [HOURS], with raydebug installed. Default: 24 hours of 64 workers and 64 GPUs on eight
nodes, with a step of 27 metrics every 30 s. The clock is simulated; the samples are those of the dashboard's /nodes/ID.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEP_S = 30


def statistics_of(node: int, at: int) -> dict[str, Any]:
    """Return what the agent of a node says: eight workers and eight GPUs, whose memory and load change."""
    workers = [{"pid": pid, "memoryInfo": {"rss": (20 << 30) + (at * 7919 + pid) % (4 << 30)}} for pid in pids_of(node)]
    gpus = [
        {"index": index, "name": "NVIDIA H100", "memoryTotal": 81559, "memoryUsed": 70_000 + (at * 31 + index) % 9_000,
         "utilizationGpu": (at * 13 + index) % 100}
        for index in range(8)
    ]  # fmt: skip
    return {"mem": [0, 0, 0, 50 << 30], "workers": workers, "gpus": gpus}


def pids_of(node: int) -> range:
    """Return the pids of the workers of a node."""
    return range(1000 * node, 1000 * node + 8)


def main() -> None:
    """Record, write a hundred times, and make the page."""
    hours = float(sys.argv[1]) if len(sys.argv) > 1 else 24.0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        from raydebug.cluster.state import Cluster
        from raydebug.jobs.memory_samples import SAMPLE_EVERY_S
        from raydebug.jobs.recorder import Recorder
        from raydebug.report.write import write_report
        from raydebug.runs.folder import load_run
        from raydebug.trainers.verl.trainer import VERL

        place = Path(folder)
        cluster = Cluster("bench", "", "compose", place, place, "", {}, 1, 0, "breakpoint", "core", 0.0)
        about: Any = {"submission_id": "bench", "start_time": 1000}
        recorder: Any = Recorder(cluster, about, ["python", "train.py"])
        metrics = {name: 1 / (3 + len(name)) for name in sorted(VERL.log.metrics)}
        titles = [
            {pid: f"WorkerDict rank {8 * node + rank}" for rank, pid in enumerate(pids_of(node))} for node in range(8)
        ]
        samples = int(hours * 3600 / SAMPLE_EVERY_S)
        largest, slowest, memory = 0, 0.0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for at in range(samples):
            at_s = at * SAMPLE_EVERY_S + 0.7
            for node in range(8):
                recorder._memory.take(f"10.0.0.{node}", statistics_of(node, at), at_s, titles[node])
            if at_s % STEP_S < SAMPLE_EVERY_S:
                recorder._phases._take_step(int(at_s / STEP_S) + 1, metrics, STEP_S - 0.1, at_s)
            if at % max(1, samples // 100) == 0 or at == samples - 1:
                recorder._write(None)  # what has changed since the last write is encoded
                began = time.process_time()
                recorder._write(None)
                slowest = max(slowest, time.process_time() - began)
                largest = max(largest, (recorder.folder / "run.json").stat().st_size)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
        began = time.process_time()
        page = write_report(load_run("bench"))
        took = time.process_time() - began
        print(f"{hours:g} h: run.json at most {largest / 2**20:.1f} MiB, {memory / 1024:.0f} MiB more memory")
        print(f"a write at most {1000 * slowest:.0f} ms of processor time")
        print(f"its report {took:.1f} s of processor time, {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
