"""A plain `ray start --head` of our own, without a token and without raydebug's hook, and programs on it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from raydebug.cluster.environment import ray_command
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import choose_ports

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "tests" / "jobs"
OWN_JOBS = Path(__file__).parent / "jobs.py"
MARK = "RAY_STOCK_FAULTS"  # finds what the head leaves behind: debugpy's adapters have no parent
START_S, END_S = 90.0, 6.0
PAUSED = (
    "/api/v0/workers?detail=1&limit=1000&filter_keys=num_paused_threads&filter_predicates=%21%3D&filter_values=0"
    "&filter_keys=is_alive&filter_predicates=%3D&filter_values=True"
)
RUNNING = "/api/v0/tasks?detail=1&limit=1000&filter_keys=state&filter_predicates=%3D&filter_values=RUNNING"
# On another host the answer has to be fetched there.
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"

Row = dict[str, Any]
RunOn = Callable[..., list[str]]


def here(*argv: str) -> list[str]:
    """Return the argv that runs a program on this machine: itself."""
    return list(argv)


@dataclass
class Program:
    """A driver and what it has printed so far."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ended(self, within_s: float) -> bool:
        """Say whether it ends in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        return self.process.poll() is not None


@dataclass
class Head:
    """A running head.

    Args:
        dashboard: its URL.
        gcs: Ray's address of it.
        environment: of its processes, and of the programs.
        folder: for the programs' logs.
        run_on: makes the argv that runs something on its host.
    """

    dashboard: str
    gcs: str
    environment: dict[str, str]
    folder: Path
    run_on: RunOn = here
    programs: list[Program] = field(default_factory=list)

    def start(self, file: str | Path, *arguments: object, **variables: str) -> Program:
        """Start a driver: a file of tests/jobs by its name, or any by its path."""
        log = self.folder / f"program{len(self.programs)}.log"
        argv = self.run_on(sys.executable, str(JOBS / file), *map(str, arguments))
        environment = {**self.environment, "RAY_ADDRESS": self.gcs, "PYTHONUNBUFFERED": "1", **variables}
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, env=environment, cwd=JOBS, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.programs.append(Program(process, log))
        return self.programs[-1]

    def paused(self) -> list[Row]:
        """Return the live workers that Ray's table has as paused."""
        return self.ask(PAUSED)

    def ask(self, path: str) -> list[Row]:
        """Return the rows of one answer of the state API."""
        url = self.dashboard + path
        if self.run_on is here:
            with urllib.request.urlopen(url, timeout=10) as answer:
                text = answer.read()
        else:
            argv = self.run_on(sys.executable, "-S", "-c", FETCH, url)
            text = subprocess.run(argv, capture_output=True, timeout=30, check=True).stdout
        return list(json.loads(text)["data"]["result"]["result"])

    def wait_paused(self, count: int = 1, within_s: float = 60.0) -> list[Row]:
        """Wait until so many workers are paused; return those that are, when that is."""
        deadline = time.monotonic() + within_s
        while len(rows := self.paused()) < count and time.monotonic() < deadline:
            time.sleep(0.1)
        return rows

    def adapters(self) -> list[psutil.Process]:
        """Return debugpy's adapters below this head."""
        return [p for p in self.processes() if any("debugpy/adapter" in word for word in p.cmdline())]

    def processes(self) -> list[psutil.Process]:
        """Return every process below this head."""
        return [process for process in psutil.process_iter() if _is_marked(process, self.environment[MARK])]

    def end_programs(self) -> None:
        """End the drivers that run still, and wait until nothing is paused any more."""
        for program in self.programs:
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()
        deadline = time.monotonic() + 20
        while self.paused() and time.monotonic() < deadline:
            time.sleep(0.2)


def clean_environment(mark: str) -> dict[str, str]:
    """Return this process's environment with nothing of Ray's, debugpy's or raydebug's but what a stock head needs."""
    foreign = ("RAY_", "RAYDEBUG_", "DEBUGPY_", "PYDEVD_", "PYTHONBREAKPOINT")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    # Loopback, as raydebug's own local clusters: else debugpy would listen on this machine's outer address.
    return {**clean, "RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0", MARK: mark}  # fmt: skip


@contextlib.contextmanager
def stock_head(address: str = "127.0.0.1", run_on: RunOn = here, **variables: str) -> Iterator[Head]:
    """Run a head; end it, and all that it left, with the block.

    Args:
        address: of its node; its dashboard is on loopback.
        run_on: makes the argv that runs a program on its host.
        variables: further ones of its environment.
    """
    temp_dir = Path(tempfile.mkdtemp(prefix="rsf-", dir="/tmp"))
    ports = choose_ports(dict.fromkeys(("dashboard", "gateway"), 0), {}, ())
    cluster = Cluster("stock", "", "local", temp_dir, temp_dir, sys.executable, ports, 16, 0, "breakpoint", "core", 0.0)
    environment = {**clean_environment(secrets.token_hex(8)), **variables}
    argv = [
        word.replace("--node-ip-address=127.0.0.1", f"--node-ip-address={address}") for word in ray_command(cluster)
    ]
    head = Head(cluster.dashboard, f"{address}:{ports['gcs']}", environment, temp_dir, run_on)
    with (temp_dir / "head.log").open("wb") as log:
        process = subprocess.Popen(
            run_on(*argv), env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,  # Ctrl-C is for us; we end it ourselves
        )  # fmt: skip
    try:
        _wait_until_up(head, process, temp_dir / "head.log")
        yield head
    finally:
        for program in head.programs:
            program.process.kill()
            program.process.wait()
        _end(head, process)
        shutil.rmtree(temp_dir, ignore_errors=True)


def _wait_until_up(head: Head, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            if head.ask("/api/v0/nodes"):
                return
        time.sleep(0.3)
    raise RuntimeError(f"the stock head did not come up: {log.read_text(errors='replace')[-800:]}")


def _end(head: Head, process: subprocess.Popen[bytes]) -> None:
    """End the head with SIGTERM, and what it leaves by pid."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=END_S)
    left = head.processes()
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(left, timeout=3)
    process.wait()


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False
