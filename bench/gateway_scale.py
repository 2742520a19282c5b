"""One gateway, N simulated processes and M pauses: memory, CPU time, how long lists and stacks take.

    python bench/gateway_scale.py [--pauses 200] [--older] 1000 5000

It needs raydebug's Python and two file descriptors for each process. CPU seconds are the gateway's own: they hold on a
busy machine, wall times do not. With --older the processes answer as workers that know no digests.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from raydebug.client.gateway_client import fetch_pauses, fetch_processes, fetch_stacks
from raydebug.errors import RaydebugError
from raydebug.protocol import variables

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
from simulated_processes import PROCESSES, during_stacks


def main() -> None:
    """Measure each number of processes with a gateway of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument("--pauses", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--older", action="store_true", help="processes that know no digests")
    options = parser.parse_args()
    for count in options.counts:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), count, options)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process in seconds."""
    return float(sum(process.cpu_times()[:2]))


def measure(folder: Path, count: int, options: argparse.Namespace) -> None:
    """Print the figures of one gateway with a number of processes."""
    token = secrets.token_hex(32)
    (folder / "token").write_text(token)
    client, dial = free_port(), free_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RAYDEBUG_", "RAY_"))}
    env |= {variables.TOKEN_PATH: f"{folder}/token", variables.GATEWAY: f"127.0.0.1:{dial}"}
    argv = [sys.executable, "-m", "raydebug.gateway", "--client-port", str(client), "--dial-port", str(dial)]
    gateway = subprocess.Popen([*argv, "--log-file", f"{folder}/log"], env=env)
    seen = psutil.Process(gateway.pid)
    cluster: Any = SimpleNamespace(
        name="x",
        repair="",
        is_joined=False,
        remote=None,
        has_gateway=True,
        gateway_host="127.0.0.1",
        gateway_port=client,
        token=token,
        token_file=folder,
    )
    answers_yet(cluster)
    empty, before_s = seen.memory_info().rss, cpu_s(seen)
    argv = [sys.executable, "-c", PROCESSES, str(count), str(options.pauses), "older" if options.older else "now"]
    played = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
    try:
        assert played.stdout is not None
        assert played.stdout.readline(), "the processes ended"
        each_ms = 1e3 * (cpu_s(seen) - before_s) / (count + options.pauses)
        while len(fetch_pauses(cluster)) < options.pauses:
            time.sleep(0.2)
        rss = seen.memory_info().rss
        print(
            f"\n{count} processes, {options.pauses} pauses: {rss / 2**20:.0f} MiB"
            f" ({(rss - empty) / (count + options.pauses) / 1e3:.1f} kB each), {each_ms:.2f} ms of CPU a dial-in,"
            f" load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
        compare(cluster, seen, options.repetitions)
        worst = during_stacks(cluster)
        rss = seen.memory_info().rss
        print(f"  second client's `paused` during `stacks`: worst {worst:.2f} s; memory after {rss / 2**20:.0f} MiB")
    finally:
        played.kill()
        gateway.kill()
        played.wait()
        gateway.wait()


def answers_yet(cluster: Any) -> None:
    """Wait until the gateway answers."""
    while True:
        try:
            fetch_pauses(cluster)
            return
        except RaydebugError:
            time.sleep(0.1)


def compare(cluster: Any, seen: psutil.Process, repetitions: int) -> None:
    """Print how long each list takes, and what it costs the gateway."""
    asks: dict[str, Callable[[], list[Any]]] = {
        "paused": lambda: list(fetch_pauses(cluster)),
        "ps --processes": lambda: list(fetch_processes(cluster)),
        "stacks, limit 0.3 s": lambda: list(fetch_stacks(cluster, timeout_s=0.3)),
        "stacks, limit 10 s": lambda: list(fetch_stacks(cluster, timeout_s=10.0)),
    }
    for title, ask in asks.items():
        walls, cpus, found, note = [], [], [], ""
        for _ in range(repetitions):
            used, began = cpu_s(seen), time.monotonic()
            try:
                found = ask()
            except RaydebugError as error:
                note = f"FAILED: {error.cause}"
            walls.append(time.monotonic() - began)
            cpus.append(cpu_s(seen) - used)
            time.sleep(1.1)  # so that descriptions are asked for again
        if title.startswith("stacks"):
            answered = sum(process["state"] == "answered" for process in found)
            note += f"answered {answered}, {len(json.dumps(found)) / 1e6:.0f} MB"
        wall = f"{statistics.median(walls):5.2f} s (max {max(walls):.2f})"
        print(f"  {title:20} {wall}, gateway CPU {statistics.median(cpus):.2f} s, {len(found)} rows {note}", flush=True)


if __name__ == "__main__":
    main()
