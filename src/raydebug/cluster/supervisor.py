"""`python -m raydebug.cluster.supervisor NAME [PID]`: supervise one local cluster: Ray's head and the gateway.

With a PID the cluster ends when that process ends, for any reason.

It writes the cluster's state to status.json, and ends all its descendants on SIGTERM. As a child subreaper (Linux) it
also finds those whose parents have died, so that nothing is left and nothing else is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from raydebug import process
from raydebug.cluster import audit_log, ray_node, state
from raydebug.cluster.environment import cluster_environment, ray_command
from raydebug.cluster.find import load_cluster
from raydebug.cluster.port_owner import stranger_listening
from raydebug.errors import RaydebugError
from raydebug.process import SAFE_PATH
from raydebug.protocol import variables
from raydebug.settings.debugger import widened
from raydebug.settings.files import open_private
from raydebug.settings.flavours import flavour_variables

POLL_S = 0.15
REAP_PERIOD_S = 2.0
START_PROBE_TIMEOUT_S = 2.0
STOP_GRACE_S = 2.6  # Ray's own way out takes 2 s when idle; a running job would make it wait for up to 30 s
RESTARTS, RESTARTS_WINDOW_S = 5, 600.0  # of the gateway, and of the pool
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Restarts:
    """A limit on restarts within a sliding window of time.

    Args:
        limit: how many restarts are allowed within the window.
        window_s: length of the window, in seconds.
        clock: returns a monotonic time in seconds.
    """

    def __init__(self, limit: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._window_s, self._clock = limit, window_s, clock
        self._times: list[float] = []

    def take(self) -> bool:
        """Count a restart and return True; return False where the limit is reached."""
        now = self._clock()
        self._times = [t for t in self._times if now - t < self._window_s]
        if len(self._times) >= self._limit:
            return False
        self._times.append(now)
        return True

    def reset(self) -> None:
        """Forget the restarts so far."""
        self._times.clear()


class Supervisor:
    """Starts, watches and ends the processes of one cluster."""

    def __init__(self, cluster: state.Cluster, owner: int | None = None) -> None:
        self.cluster = cluster
        self.stopping = False
        self.gateway_wanted = False  # `up` requests a restart of a gateway that stays down
        self._owner = None if owner is None else _watch_process(owner)
        self._gateway_restarts = Restarts(RESTARTS, RESTARTS_WINDOW_S)
        self._pool_restarts = Restarts(RESTARTS, RESTARTS_WINDOW_S)
        self._status: dict[str, Any] = {"phase": "starting", "reason": None, "gateway": None, "ray": None}
        self._environment = cluster_environment(os.environ, cluster, flavour_variables(cluster.flavour))
        self._listening: list[socket.socket] = []
        self._gateway: subprocess.Popen[bytes]
        self._ray: subprocess.Popen[bytes]
        self._started: list[subprocess.Popen[bytes]] = []
        self._pool: subprocess.Popen[bytes] | None = None
        self._node: ray_node.RayNode | None = None

    def run(self) -> None:
        """Run the cluster until SIGTERM or the end of its owner, then end all of it."""
        try:
            self._keep()
        finally:
            self._end_all()

    def _keep(self) -> None:
        failure = self._not_private() or self._take_ports()
        if failure is None:
            self._say(phase="starting the gateway")
            self._gateway = self._start_gateway()
            self._say(phase="starting Ray")
            with open_private(self.cluster.folder / "ray.log", "wb") as log:
                self._ray = self._start(ray_command(self.cluster), log)
            failure = self._wait_until_up()
        if failure is None and not self._is_over():
            self._keep_pool()
            self._say(phase="up")
            failure = self._watch()
        if not self._is_over():
            self._say(phase="dead", reason=failure)
            self._end_all()
            while not self._is_over():  # `ps` still shows the reason; `down` ends us
                time.sleep(POLL_S)

    def _is_over(self) -> bool:
        return self.stopping or (self._owner is not None and self._owner())

    def _not_private(self) -> str | None:
        """Return why another user could access the cluster's folders; None if no other user can."""
        try:
            for folder in (self.cluster.folder, self.cluster.temp_dir):
                state.check_private(folder)
        except RaydebugError as failure:
            return f"{failure.what}: {failure.cause}"
        return None

    def _take_ports(self) -> str | None:
        """Listen on the gateway's ports for its whole life: between two of its lives no other user can take them.

        Returns:
            Why that is impossible; None if they are ours.
        """
        for purpose in ("gateway", "dial"):
            address = (self.cluster.host, self.cluster.ports[purpose])
            try:
                self._listening.append(socket.create_server(address))
            except OSError as error:
                return f"the gateway cannot listen on {address[0]}:{address[1]}: {os.strerror(error.errno or 0)}"
            self._listening[-1].setblocking(False)
        return None

    def _start_gateway(self) -> subprocess.Popen[bytes]:
        ports = self.cluster.ports
        argv = [sys.executable, SAFE_PATH, "-m", "raydebug.gateway", "--host", self.cluster.host, "--client-port"]
        argv += [str(ports["gateway"]), "--dial-host", self.cluster.host, "--dial-port", str(ports["dial"])]
        fds = [one.fileno() for one in self._listening]
        argv += ["--client-fd", str(fds[0]), "--dial-fd", str(fds[1])]
        path = self.cluster.folder / "gateway.log"
        argv += ["--numbers-file", str(self.cluster.numbers_file)]
        argv += ["--log-file", str(path), "--audit-file", str(audit_log.file_of(self.cluster.name))]
        with open_private(path) as log:  # for what Python itself prints
            return self._start(argv, log, fds=fds)

    def _start(
        self, argv: list[str], log: BinaryIO, env: dict[str, str] | None = None, fds: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        child = process.start(argv, env=env or self._environment, output=log, pass_fds=fds)
        self._started.append(child)
        return child

    def _keep_gateway(self) -> None:
        """Restart a gateway that has ended; at the limit it stays down until `up` requests it. Ray is not touched."""
        if self.gateway_wanted:
            self.gateway_wanted = False
            self._gateway_restarts.reset()
            self._say(gateway=None)
        if self._status["gateway"] is not None:
            self._turn_away()
            return
        if self._gateway.poll() is None:
            return
        if self._gateway_restarts.take():
            self._gateway = self._start_gateway()
            return
        # No line of its log: what a peer sends can be in there.
        self._say(
            gateway=f"it has ended {RESTARTS + 1} times within {RESTARTS_WINDOW_S / 60:.0f} minutes, the last time with"
            f" {_ending(self._gateway.returncode)} (its log: {self.cluster.folder / 'gateway.log'});"
            f" `raydebug up{state.name_option(self.cluster.name)}` starts it again, until then the job's pauses wait"
        )

    def _turn_away(self) -> None:
        """Close what connects to a gateway that stays down: nobody would answer it."""
        for one in self._listening:
            with contextlib.suppress(OSError):
                while True:
                    one.accept()[0].close()

    def _keep_pool(self) -> None:
        """Start the pre-forked processes, and restart them after their end; without them processes start as usual."""
        ended = self._pool is None or self._pool.poll() is not None
        if self.cluster.prefork and ended and (self._pool is None or self._pool_restarts.take()):
            # What `run` gives to a job: some of it is read when vLLM is imported.
            environment = {**self._environment, **widened(self._environment)}
            argv = [self.cluster.python, SAFE_PATH, "-m", "raydebug.prefork.server"]
            argv += [str(self.cluster.pool_socket), str(self.cluster.pool_status)]
            with open_private(self.cluster.folder / "pool.log") as log:
                self._pool = self._start(argv, log, environment)

    def _wait_until_up(self) -> str | None:
        startup = ray_node.Startup(self.cluster.ray_logs)
        while not self._is_over():
            if self._ray.poll() is not None:
                return f"Ray ended while it started (exit code {self._ray.returncode}): {self.last_words('ray.log')}"
            if self._gateway.poll() is not None:
                return f"the gateway ended while it started: {self.last_words('gateway.log')}"
            missing = self._first_missing()
            if missing is None:
                return None
            if over := startup.is_over():
                return f"{over} (waiting for {missing}): {self.last_words('ray.log')}"
            if line := startup.line(missing):
                self._say(phase=line)
            time.sleep(POLL_S)
        return None

    def _watch(self) -> str | None:
        self._node = ray_node.RayNode(self._ray.pid, self._health_pages())
        reaped = time.monotonic()
        while not self._is_over():
            time.sleep(POLL_S)
            if self._ray.poll() is not None:
                return f"Ray's head ended with exit code {self._ray.returncode}: {self.last_words('ray.log')}"
            self._keep_gateway()
            self._keep_pool()
            if time.monotonic() - reaped > REAP_PERIOD_S:
                reaped = time.monotonic()
                self._reap_adopted()
            found = self._node.look()
            if found.state == "dead":
                return f"{found.reason}; Ray's logs say more: {self.cluster.ray_logs}"
            if found.state == "hung" and self.cluster.end_when_hung:
                return f"hung: {found.reason}"
            self._note(found)
        return None

    def _note(self, found: ray_node.Condition) -> None:
        """Record in the status and the log that Ray is slow or hung, or answers again; nothing is ended."""
        was = self._status["ray"]
        if found.state == "up":
            if was is not None:
                _log(f"Ray answers again after {time.time() - was['since']:.0f} s")
                self._say(ray=None)
        elif was is None or was["state"] != found.state:
            _log(f"Ray is {found.state}: {found.reason}")
            self._say(ray={"state": found.state, "since": time.time() - found.silent_s, "reason": found.reason})

    def _health_pages(self) -> dict[str, str]:
        # `ray start --block` does not end when its raylet is gone, and late when its GCS is: both are watched.
        return {
            ray_node.RAYLET: self._url("agent", "/api/local_raylet_healthz"),
            ray_node.GCS: self._url("dashboard", "/api/gcs_healthz"),
        }

    def _first_missing(self) -> str | None:
        """Return the first part that does not answer yet; None if all do."""
        pages = {
            "the raylet's agent": self._url("agent", "/api/local_raylet_healthz"),
            "the gateway": self._url("gateway", "/health"),
            "Ray's dashboard": self._url("dashboard", "/api/v0/nodes?limit=1"),
        }
        # Only the dashboard's page wants the token (ray 2.60.0 dashboard/http_server_agent.py).
        if stranger_listening(self.cluster, (self.cluster.host, self.cluster.ports["dashboard"])) is not None:
            return "Ray's dashboard, whose port another user of this machine has taken"
        tokens = ("", "", self.cluster.token)
        answers = (ray_node.ask(url, t, START_PROBE_TIMEOUT_S) for url, t in zip(pages.values(), tokens, strict=True))
        return next((name for name, answer in zip(pages, answers, strict=True) if answer != "ok"), None)

    def _url(self, purpose: str, path: str) -> str:
        return f"http://{self.cluster.host}:{self.cluster.ports[purpose]}{path}"

    def last_words(self, log: str) -> str:
        """Return the last lines that a child wrote, on one line."""
        try:
            text = (self.cluster.folder / log).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no log)"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return " / ".join((errors or lines)[-2:]) or "(it printed nothing)"

    def _say(self, **changes: Any) -> None:
        self._status = {**self._status, **changes, "at": time.time()}
        state.write_status(self.cluster, self._status)

    def _reap_adopted(self) -> None:
        """Reap zombie descendants that were reparented to us."""
        import psutil

        own = {child.pid for child in self._started}  # Popen reaps these itself
        for one in psutil.Process().children():
            if one.pid not in own:
                with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                    if one.status() == psutil.STATUS_ZOMBIE:
                        os.waitpid(one.pid, os.WNOHANG)

    def _end_all(self) -> None:
        import psutil

        if self._node is not None:
            self._node.close()
        for child in self._started:
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        while time.monotonic() < deadline and any(child.poll() is None for child in self._started):
            time.sleep(0.02)
        for _ in range(20):  # a process that ends may still start another
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
        state.remove_private(self.cluster.temp_dir)


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)  # noqa: T201 - supervisor.log


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _watch_process(pid: int) -> Callable[[], bool]:
    """Return a function that tells whether a process has ended, by its descriptor: its pid may be reused."""
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
    supervisor = Supervisor(load_cluster(sys.argv[1]), *map(int, sys.argv[2:]))

    def stop(_number: int, _frame: object) -> None:
        supervisor.stopping = True

    def want_gateway(_number: int, _frame: object) -> None:
        supervisor.gateway_wanted = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, want_gateway)
    # Ctrl-C is `up`'s to answer, by SIGTERM. A handler, for SIG_IGN would be inherited by Ray's workers, and there
    # `ray.cancel` is a simulated SIGINT (ray 2.60.0 _raylet.pyx kill_main_task): it would do nothing.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the cluster outlives its terminal
    os.chdir(variables.CLUSTER_DIR)
    supervisor.run()


if __name__ == "__main__":
    main()
