"""`python -m raydebug.cluster.supervisor NAME`: supervise one local cluster: Ray's head and the gateway.

A cluster that a `run` owns ends when no `run` uses it any more, for any reason (locks.Use).

It writes the cluster's state to status.json, and ends all its descendants on SIGTERM. As a child subreaper (Linux) it
also finds those whose parents have died, so that nothing is left and nothing else is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from raydebug import process
from raydebug.cluster import audit_log, locks, private_folders, ray_node, state
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
TURNED_AWAY = 4096  # connections at one time: a peer that connects without end must not hold the supervisor
RESTARTS, RESTARTS_WINDOW_S = 5, 600.0  # of the gateway, and of the pool
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Restarts:
    """A limit on restarts within a sliding window of time; `clock` is a monotonic time in seconds."""

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

    def __init__(self, cluster: state.Cluster) -> None:
        self.cluster = cluster
        self.stopping = False
        self.gateway_wanted = False  # `up` requests a restart of a gateway that stays down
        self._use = locks.Use(cluster.name) if cluster.owner else None
        self._gateway_restarts = Restarts(RESTARTS, RESTARTS_WINDOW_S)
        self._pool_restarts = Restarts(RESTARTS, RESTARTS_WINDOW_S)
        self._status: dict[str, Any] = {"phase": "starting", "reason": None, "gateway": None, "ray": None}
        self._unsaid = False  # whether the status has changed since it was written
        self._environment = cluster_environment(os.environ, cluster, flavour_variables(cluster.flavour))
        self._listening: list[socket.socket] = []
        self._gateway: subprocess.Popen[bytes]
        self._ray: subprocess.Popen[bytes]
        self._started: list[subprocess.Popen[bytes]] = []
        self._pool: subprocess.Popen[bytes] | None = None
        self._node: ray_node.RayNode | None = None

    def run(self) -> None:
        """Run the cluster until SIGTERM or the end of those that it is for, then end all of it."""
        try:
            self._keep()
        finally:
            self._end_all()

    def _keep(self) -> None:
        failure = self._not_private() or self._take_ports()
        if failure is None:
            self._say(phase="starting the gateway")
            self._gateway = self._start_gateway()
            self._start_ray("starting Ray")
            failure = self._wait_until_up()
            if failure is None and not self._is_over():
                self._keep_pool()
                self._say(phase="up")
                failure = self._watch()
            failure = failure and f"{failure}; its logs: {state.keep_logs(self.cluster)}"
        if not self._is_over():
            self._say(phase="dead", reason=failure)
            self._end_all()
            while not self._is_over():  # `ps` still shows the reason; `down` ends us
                self._say_again()
                self._turn_away()
                time.sleep(POLL_S)

    def _is_over(self) -> bool:
        return self.stopping or self._is_unused()

    def _is_unused(self) -> bool:
        """Return whether the cluster is for a `run`, and none uses it; the lock stays ours then."""
        if self._use is None or not self._use.is_last():
            return False
        with contextlib.suppress(RaydebugError):
            found = state.read_record(self.cluster.name)
            if found is not None and found.id == self.cluster.id and not found.owner:  # `up` has taken it over
                self._use.give_up()
                self._use = None
                return False
        return True

    def _not_private(self) -> str | None:
        """Return why another user could access the cluster's folders; None if no other user can."""
        try:
            for folder in (self.cluster.folder, self.cluster.temp_dir):
                private_folders.check_private(folder)
        except RaydebugError as failure:
            return f"{failure.what}: {failure.cause}"
        return None

    def _take_ports(self) -> str | None:
        """Listen on the gateway's ports for its whole life: between two of its lives no other user can take them.

        Return why that is impossible; None if they are ours.
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
        fds = [listener.fileno() for listener in self._listening]
        argv += ["--client-fd", str(fds[0]), "--dial-fd", str(fds[1])]
        path = self.cluster.folder / "gateway.log"
        argv += ["--numbers-file", str(self.cluster.numbers_file)]
        argv += ["--log-file", str(path), "--audit-file", str(audit_log.file_of(self.cluster.name))]
        return self._start(argv, path, fds=fds)  # for what Python itself prints

    def _start_ray(self, phase: str) -> None:
        self._say(phase=phase)
        self._ray = self._start(ray_command(self.cluster), self.cluster.folder / "ray.log")
        self._ray_began = time.monotonic()

    def _start(
        self, argv: list[str], log: Path, env: dict[str, str] | None = None, fds: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        try:
            output = open_private(log, "ab")
        except OSError:  # a full disk: better without its log than without it
            output = open_private(Path(os.devnull), "ab")
        with output:
            child = process.start(argv, env=env or self._environment, output=output, pass_fds=fds)
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
        for listener in self._listening:
            with contextlib.suppress(OSError):
                for _ in range(TURNED_AWAY):
                    listener.accept()[0].close()

    def _keep_pool(self) -> None:
        """Start the pre-forked processes, and restart them after their end; without them processes start as usual."""
        ended = self._pool is None or self._pool.poll() is not None
        if self.cluster.prefork and ended and (self._pool is None or self._pool_restarts.take()):
            # What `run` gives to a job: some of it is read when vLLM is imported.
            environment = {**self._environment, **widened(self._environment)}
            argv = [self.cluster.python, SAFE_PATH, "-m", "raydebug.prefork.server"]
            argv += [str(self.cluster.pool_socket), str(self.cluster.pool_status)]
            self._pool = self._start(argv, self.cluster.folder / "pool.log", environment)

    def _wait_until_up(self) -> str | None:
        startup = ray_node.Startup(self.cluster.ray_logs)
        while not self._is_over():
            if self._ray.poll() is not None:
                ended = f"Ray ended while it started ({_ending(self._ray.returncode)}): {self._last_words('ray.log')}"
                tried_s = time.monotonic() - self._ray_began
                if tried_s < ray_node.RAY_GIVES_UP_S or startup.is_over():
                    return ended
                _log(ended)
                self._end_children(but=self._gateway.pid)
                self._start_ray(f"Ray gave up on its start after {tried_s:.0f} s; starting it again")
            if self._gateway.poll() is not None:
                return f"the gateway ended while it started: {self._last_words('gateway.log')}"
            missing = self._first_missing()
            if missing is None:
                return None
            if over := startup.is_over():
                return f"{over} (waiting for {missing}): {self._last_words('ray.log')}"
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
                return f"Ray's head ended with exit code {self._ray.returncode}: {self._last_words('ray.log')}"
            self._keep_gateway()
            self._keep_pool()
            if time.monotonic() - reaped > REAP_PERIOD_S:
                reaped = time.monotonic()
                self._reap_adopted()
                self._say_again()
            found = self._node.look()
            if found.state == "dead":
                return found.reason
            if found.state == "hung" and self.cluster.end_when_hung:
                return f"hung: {found.reason}"
            self._note(found)
        return None

    def _note(self, found: ray_node.NodeCondition) -> None:
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
        for name, url in pages.items():
            token = ""
            if name == "Ray's dashboard":  # the only page that wants one (ray 2.60.0 dashboard/http_server_agent.py)
                if stranger_listening(self.cluster, (self.cluster.host, self.cluster.ports["dashboard"])) is not None:
                    return "Ray's dashboard, whose port another user of this machine has taken"
                token = self.cluster.token
            if ray_node.ask(url, token, START_PROBE_TIMEOUT_S) != "ok":
                return name
        return None

    def _url(self, purpose: str, path: str) -> str:
        return f"http://{self.cluster.host}:{self.cluster.ports[purpose]}{path}"

    def _last_words(self, log: str) -> str:
        return ray_node.last_words(self.cluster.folder / log)

    def _say(self, **changes: Any) -> None:
        """Write the status; on a full disk it is written later, and the cluster goes on."""
        self._status = {**self._status, **changes, "at": time.time()}
        self._unsaid = True
        self._say_again()

    def _say_again(self) -> None:
        if self._unsaid:
            with contextlib.suppress(RaydebugError):
                state.write_status(self.cluster, self._status)
                self._unsaid = False

    def _reap_adopted(self) -> None:
        """Reap zombie descendants that were reparented to us."""
        own = {child.pid for child in self._started}  # Popen reaps these itself
        for one in psutil.Process().children():
            if one.pid not in own:
                with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                    if one.status() == psutil.STATUS_ZOMBIE:
                        os.waitpid(one.pid, os.WNOHANG)

    def _end_all(self) -> None:
        if self._node is not None:
            self._node.close()
        for child in self._started:
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        while time.monotonic() < deadline and any(child.poll() is None for child in self._started):
            time.sleep(0.02)
        self._end_children()
        private_folders.remove_private(self.cluster.temp_dir)

    def _end_children(self, but: int | None = None) -> None:
        """Kill all descendants, also those whose parents have ended, but for one child."""
        for _ in range(20):  # a process that ends may still start another
            left = [one for one in psutil.Process().children(recursive=True) if one.pid != but]
            if not left:
                break
            for one in left:
                try:
                    one.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=0.2)
            if but is None:
                _reap()
            else:
                self._reap_adopted()


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)  # noqa: T201 - supervisor.log


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    """Supervise the cluster named on the command line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = Supervisor(load_cluster(sys.argv[1]))

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
