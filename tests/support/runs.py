"""`raydebug run`, `attach` and the others, in processes of their own, as a user runs them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from forked import Forked
from raydebug.client.gateway_client import fetch_pauses
from raydebug.cluster import local
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import UpOptions

JOBS = Path(__file__).resolve().parents[1] / "jobs"
RAYDEBUG = Path(sys.executable).parent / "raydebug"
# Other tests run beside those of a pytest-xdist worker; as with pytest's limits, the factor measures nothing.
WAIT_S = 60.0 * (3 if "PYTEST_XDIST_WORKER" in os.environ else 1)
# With this Ray says in the log of each job, every ten seconds, that its disk is almost full.
ALMOST_FULL = {"RAY_local_fs_capacity_threshold": "0.01"}


@contextlib.contextmanager
def private_state() -> Iterator[Path]:
    """Separate the clusters of these tests from the user's; at the end the environment is as before."""
    folder, before = Path(tempfile.mkdtemp(prefix="rdt-")), dict(os.environ)
    os.environ["XDG_STATE_HOME"] = str(folder)
    try:
        yield folder
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def local_cluster(name: str, **options: Any) -> Iterator[Cluster]:
    """Start a local cluster with its own ports; it is taken down in any case, and nothing of it may be left."""
    found, _ = local.bring_up(UpOptions(name=name, python=sys.executable, dashboard_port=0, gateway_port=0, **options))
    try:
        yield found
    finally:
        assert local.take_down(found) == []


class Run:
    """A `raydebug run` at work in a process of its own."""

    def __init__(self, cluster: Cluster, arguments: list[str], cwd: Path = JOBS, env: dict[str, str] | None = None):
        self.cluster = cluster
        handle, path = tempfile.mkstemp(suffix=".log")
        self.log = Path(path)
        argv = [str(RAYDEBUG), "run", "--name", cluster.name, *arguments]
        self.process = subprocess.Popen(
            argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=handle, stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        os.close(handle)

    @property
    def text(self) -> str:
        """All that it printed so far."""
        return self.log.read_text(errors="replace")

    def pauses(self, count: int, timeout_s: float = WAIT_S) -> list[dict[str, Any]]:
        """Wait until this many pauses wait for a debugger, and return them."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            nonlocal found
            found = [p for p in fetch_pauses(self.cluster) if p["state"] == "waiting"]
            return len(found) >= count or self.process.poll() is not None

        wait_for(enough, f"{count} pauses", timeout_s, self)
        assert len(found) == count, f"{len(found)} pauses instead of {count}\n{self.text}"
        return found

    def listed(self) -> list[dict[str, Any]]:
        """Return the cluster's pauses as they are now."""
        return fetch_pauses(self.cluster)

    def attach(self, pause_id: str, *commands: str) -> str:
        """Run debugger commands at a pause and return what they printed."""
        return attach(self.cluster, pause_id, *commands).stdout

    def end(self, code: int = 0, timeout_s: float = WAIT_S) -> str:
        """Wait for the end of the job, check its exit code, and return all that it printed."""
        try:
            returned = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {timeout_s} s\n{self.text}") from None
        assert returned == code, f"exit code {returned} instead of {code}\n{self.text}"
        return self.text


@contextlib.contextmanager
def starting_runs(cluster: Cluster, cwd: Path = JOBS) -> Iterator[Callable[..., Run]]:
    """Give the function that starts jobs; whatever still runs of them at the end is stopped."""
    runs: list[Run] = []

    def start(*arguments: str, **options: Any) -> Run:
        runs.append(Run(cluster, list(arguments), **{"cwd": cwd, **options}))
        return runs[-1]

    try:
        yield start
    finally:
        for one in runs:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(25)
            if one.process.poll() is None:
                one.process.kill()
            one.log.unlink(missing_ok=True)


def attach(cluster: Cluster, pause_id: str, *commands: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `raydebug attach ID -x ...` and check its exit code."""
    options = [option for command in commands for option in ("-x", command)]
    done = raydebug("attach", pause_id, "--name", cluster.name, *options)
    assert done.returncode == code, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    return done


def raydebug(*arguments: str, timeout: float = WAIT_S, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, a forked one where that makes no difference."""
    argv = [str(RAYDEBUG), *arguments]
    own = {name: value for name, value in (options.get("env") or {}).items() if os.environ.get(name) != value}
    if not options.keys() <= {"cwd", "env"} or any(name.startswith(("PYTHON", "LANG", "LC_")) for name in own):
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False, **options
        )
    pipes = [os.pipe(), os.pipe()]
    process = Forked("raydebug", argv, *(end for _, end in pipes), **options)
    for _, end in pipes:
        os.close(end)
    with ThreadPoolExecutor(2) as readers:
        texts = [readers.submit(_read, begin) for begin, _ in pipes]
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(argv, code, *(text.result() for text in texts))


def _read(descriptor: int) -> str:
    with open(descriptor, encoding="utf-8") as file:
        return file.read()


def three_lines(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Check an exit code and that the error is three lines without a traceback; return its first line."""
    assert done.returncode == code, done.stdout + done.stderr
    last = done.stderr.strip().splitlines()[-3:]
    assert [line.split(":")[0] for line in last] == ["error", "cause", "fix"], done.stderr
    assert "Traceback" not in done.stderr
    return last[0]


def up_in_containers(name: str, project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `raydebug up` for containers from a project's folder."""
    return raydebug("up", "--cluster", "compose", "--flavour", "core", "--name", name, "--dashboard-port", "0",
                    "--gateway-port", "0", *options, cwd=project, timeout=200)  # fmt: skip


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S, run: Run | None = None) -> None:
    """Wait for a condition, with a limit that says what it waited for, and at most 5 s after the end of a run."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if run is not None and run.process.poll() is not None:
            deadline = min(deadline, time.monotonic() + 5)
        assert time.monotonic() < deadline, f"waited up to {timeout_s} s for {what}\n{run.text if run else ''}"
        time.sleep(0.05)
