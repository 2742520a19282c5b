"""`python -m raydebug.cluster.supervisor NAME [PID]`: keeps one local cluster: Ray's head and the gateway.

With a PID the cluster is there for that process, and ends with it, however that ends.

It writes what it sees to status.json, and ends everything below it on SIGTERM. Being the reaper of its descendants
(Linux), it finds the ones whose parents have died too, so that nothing is left and nothing else is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import BinaryIO

from raydebug import process
from raydebug.cluster import state
from raydebug.cluster.environment import cluster_environment, ray_command, read_variables
from raydebug.settings.paths import environment_dir
from raydebug.settings.watchdogs import widened
from raydebug.worker import names

START_TIMEOUT_S = 90.0
POLL_S = 0.15
HEALTH_PERIOD_S = 2.0
HEALTH_FAILURES = 3
STOP_GRACE_S = 2.6  # Ray's own way out takes 2 s when idle; a running job would make it wait for up to 30 s
# `ray start --block` does not end when its raylet is gone, and late when its GCS is: ask both.
HEALTH = {
    "the raylet": ("agent", "/api/local_raylet_healthz"),
    "Ray's head (gcs_server)": ("dashboard", "/api/gcs_healthz"),
}
GATEWAY_RESTARTS = 5
POOL_RESTARTS = 5
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Supervisor:
    """Starts, watches and ends the processes of one cluster."""

    def __init__(self, cluster: state.Cluster, owner: int | None = None) -> None:
        self.cluster = cluster
        self.stopping = False
        self._owner = None if owner is None else _watch_process(owner)
        self._restarts = 0
        flavour_file = environment_dir() / "flavours" / f"{cluster.flavour}.env"
        flavour = read_variables(flavour_file) if flavour_file.is_file() else {}
        self._environment = cluster_environment(os.environ, cluster, flavour)
        self._gateway: subprocess.Popen[bytes]
        self._ray: subprocess.Popen[bytes]
        self._started: list[subprocess.Popen[bytes]] = []
        self._pool: subprocess.Popen[bytes] | None = None
        self._pool_starts = 0

    def run(self) -> None:
        """Keep the cluster until SIGTERM, or until its owner is gone; nothing of it is left then."""
        try:
            self._keep()
        finally:
            self._end_all()

    def _keep(self) -> None:
        self._say("starting the gateway")
        self._gateway = self._start_gateway()
        self._say("starting Ray")
        with (self.cluster.folder / "ray.log").open("wb") as log:
            self._ray = self._start(ray_command(self.cluster), log)
        failure = self._wait_until_up()
        if failure is None and not self._is_over():
            self._keep_pool()
            self._say("up")
            failure = self._watch()
        if not self._is_over():
            self._say("dead", failure)
            self._end_all()
            while not self._is_over():  # `ps` can still say why; `down` ends us
                time.sleep(POLL_S)

    def _is_over(self) -> bool:
        return self.stopping or (self._owner is not None and self._owner())

    def _start_gateway(self) -> subprocess.Popen[bytes]:
        ports = self.cluster.ports
        argv = [sys.executable, "-m", "raydebug.gateway", "--host", self.cluster.host, "--client-port"]
        argv += [str(ports["gateway"]), "--dial-host", self.cluster.host, "--dial-port", str(ports["dial"])]
        with (self.cluster.folder / "gateway.log").open("ab") as log:
            return self._start(argv, log)

    def _start(self, argv: list[str], log: BinaryIO, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        child = process.start(argv, env=env or self._environment, output=log)
        self._started.append(child)
        return child

    def _keep_pool(self) -> None:
        """Start a warm cluster's pool, and start it again where it has ended; without it processes start as ever."""
        ended = self._pool is None or self._pool.poll() is not None
        if self.cluster.warm and ended and self._pool_starts <= POOL_RESTARTS:
            self._pool_starts += 1
            # What `run` gives to a job: some of it is read when vLLM is imported.
            environment = {**self._environment, **widened(self._environment)}
            argv = [self.cluster.python, "-m", "raydebug.zygotes.keeper"]
            argv += [str(self.cluster.pool_socket), str(self.cluster.pool_status)]
            with (self.cluster.folder / "pool.log").open("ab") as log:
                self._pool = self._start(argv, log, environment)

    def _wait_until_up(self) -> str | None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and not self._is_over():
            if self._ray.poll() is not None:
                return f"Ray ended while it started (exit code {self._ray.returncode}): {self.last_words('ray.log')}"
            if self._gateway.poll() is not None:
                return f"the gateway ended while it started: {self.last_words('gateway.log')}"
            ready = self._answers("agent", "/api/local_raylet_healthz") and self._answers("gateway", "/health")
            if ready and self._answers("dashboard", "/api/v0/nodes?limit=1"):
                return None
            time.sleep(POLL_S)
        return f"Ray was not up after {START_TIMEOUT_S:.0f} s: {self.last_words('ray.log')}"

    def _watch(self) -> str | None:
        failures = dict.fromkeys(HEALTH, 0)
        checked = time.monotonic()
        while not self._is_over():
            time.sleep(POLL_S)
            if self._ray.poll() is not None:
                return f"Ray's head ended with exit code {self._ray.returncode}: {self.last_words('ray.log')}"
            if self._gateway.poll() is not None:
                if self._restarts >= GATEWAY_RESTARTS:
                    return f"the gateway ended {self._restarts} times: {self.last_words('gateway.log')}"
                self._restarts += 1
                self._gateway = self._start_gateway()
            self._keep_pool()
            if time.monotonic() - checked > HEALTH_PERIOD_S:
                checked = time.monotonic()
                self._reap_adopted()
                for part, (purpose, path) in HEALTH.items():
                    failures[part] = 0 if self._answers(purpose, path) else failures[part] + 1
                    if failures[part] >= HEALTH_FAILURES:
                        logs = self.cluster.temp_dir / "session_latest" / "logs"
                        return f"{part} does not answer any more; Ray's logs say more: {logs}"
        return None

    def _answers(self, purpose: str, path: str) -> bool:
        url = f"http://{self.cluster.host}:{self.cluster.ports[purpose]}{path}"
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.cluster.token}"})
        try:
            with _NO_PROXY.open(asked, timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError, ValueError):
            return False

    def last_words(self, log: str) -> str:
        """Return the last lines that a child wrote, on one line."""
        try:
            text = (self.cluster.folder / log).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no log)"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return " / ".join((errors or lines)[-2:]) or "(it printed nothing)"

    def _say(self, phase: str, reason: str | None = None) -> None:
        document = {"phase": phase, "reason": reason, "at": time.time()}
        state.write_json(self.cluster.folder / "status.json", document)

    def _reap_adopted(self) -> None:
        """Take leave of the dead whose own parents died before them; nobody else can, and each keeps a process id."""
        import psutil

        own = {child.pid for child in self._started}  # Popen waits for these itself
        for one in psutil.Process().children():
            if one.pid not in own:
                with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                    if one.status() == psutil.STATUS_ZOMBIE:
                        os.waitpid(one.pid, os.WNOHANG)

    def _end_all(self) -> None:
        import psutil

        for child in self._started:
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        while time.monotonic() < deadline and any(child.poll() is None for child in self._started):
            time.sleep(0.02)
        for _ in range(20):  # a dying process may still start another
            left = psutil.Process().children(recursive=True)
            if not left:
                break
            for one in left:
                try:
                    one.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=0.2)
            _reap()
        shutil.rmtree(self.cluster.temp_dir, ignore_errors=True)


_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _watch_process(pid: int) -> Callable[[], bool]:
    """Return what tells whether a process is gone; its number may be another's by then, the descriptor is its own."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return lambda: True
    except (OSError, AttributeError):  # a kernel before 5.3, or a Python built for one; `run` itself takes it down
        return lambda: False
    return lambda: bool(select.select([descriptor], [], [], 0)[0])


def main() -> None:
    """Supervise the cluster named on the command line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = Supervisor(state.load_cluster(sys.argv[1]), *map(int, sys.argv[2:]))

    def stop(_number: int, _frame: object) -> None:
        supervisor.stopping = True

    signal.signal(signal.SIGTERM, stop)
    # Ctrl-C is `up`'s to answer, by SIGTERM. A handler, for SIG_IGN would be inherited by Ray's workers, and there
    # `ray.cancel` is a simulated SIGINT (ray 2.60.0 _raylet.pyx kill_main_task): it would do nothing.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the cluster outlives its terminal
    os.chdir(names.CLUSTER_DIR)
    supervisor.run()


if __name__ == "__main__":
    main()
