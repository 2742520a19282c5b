"""Keep Ray and the gateway of one host: start them, watch them, restart the gateway, and end all processes below.

A local cluster's supervisor (supervisor.py) and the node program (node.py) are made of this. As a child subreaper
(Linux) it also finds those whose parents have died, so that nothing is left and nothing else is touched.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from raydebug import process
from raydebug.cluster import private_folders, ray_node, state
from raydebug.cluster.environment import ray_command
from raydebug.cluster.port_owner import stranger_listening
from raydebug.errors import RaydebugError
from raydebug.process import SAFE_PATH
from raydebug.settings.files import open_private

DASHBOARD = "Ray's dashboard"
POLL_S = 0.15
REAP_PERIOD_S = 2.0
START_PROBE_TIMEOUT_S = 2.0
STOP_GRACE_S = 2.6  # Ray's own way out takes 2 s when idle; a running job would make it wait for up to 30 s
TURNED_AWAY = 4096  # connections at one time: a peer that connects without end must not hold up the rest
RESTARTS, RESTARTS_WINDOW_S = 5, 600.0  # of the gateway, and of the pool
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


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


class Keeper:
    """Keeps one Ray node, and the gateway where it has one, until it is asked to end or one of them cannot go on.

    Args:
        cluster: what to start; its `folder` gets the logs, its `temp_dir` is removed at the end.
        environment: of everything that is started.
        ip: the node's own address, where its agent answers; all else that is asked is on `cluster.host`.
        gateway_at: addresses of the gateway's ports by purpose, `gateway` for clients, `dial` for processes; empty for
            a node without one.
    """

    starts_gateway = ""  # what starts a gateway again that stays down
    join: str | None = None  # address of the head's GCS; None for the head

    def __init__(
        self, cluster: state.Cluster, environment: Mapping[str, str], ip: str, gateway_at: Mapping[str, str]
    ) -> None:
        self.cluster, self.ip = cluster, ip
        self.stopping = False
        self.gateway_wanted = False  # `up` requests a restart of a gateway that stays down
        self._gateway_restarts = Restarts(RESTARTS, RESTARTS_WINDOW_S)
        self._status: dict[str, Any] = {"phase": "starting", "reason": None, "gateway": None, "ray": None}
        self._unsaid = False  # whether the status has changed since it was written
        self._environment = dict(environment)
        self._gateway_at = gateway_at
        self._listening: list[socket.socket] = []
        self._gateway: subprocess.Popen[bytes] | None = None
        self._ray: subprocess.Popen[bytes]
        self._started: list[subprocess.Popen[bytes]] = []
        self._node: ray_node.RayNode | None = None

    def _start_and_watch(self) -> str | None:
        """Start all parts and watch them until one cannot go on; return why, None if it was asked to end."""
        if self._gateway_at:
            self._say(phase="starting the gateway")
            self._gateway = self._start_gateway()
        self._start_ray("starting Ray")
        failure = self._wait_until_up()
        if failure is None and not self._is_over():
            self._note_up()
            failure = self._watch()
        return failure

    def _is_over(self) -> bool:
        """Return whether it is to end."""
        return self.stopping

    def _note_up(self) -> None:
        """Say that all parts answer."""
        self._say(phase="up")

    def _keep_others(self) -> None:
        """Look after what is kept besides Ray and the gateway."""

    def _log_of(self, part: str) -> Path:
        """Return the log file of `ray` or `gateway`."""
        return self.cluster.folder / f"{part}.log"

    def _gateway_options(self) -> list[str]:
        """Return further options of the gateway."""
        return []

    def _write_status(self) -> None:
        state.write_status(self.cluster, self._status)

    def _take_ports(self) -> str | None:
        """Listen on the gateway's ports for its whole life: between two of its lives no other user can take them.

        Return why that is impossible; None if they are ours.
        """
        for purpose, host in self._gateway_at.items():
            address = (host, self.cluster.ports[purpose])
            try:
                self._listening.append(socket.create_server(address))
            except OSError as error:
                return f"the gateway cannot listen on {address[0]}:{address[1]}: {os.strerror(error.errno or 0)}"
            self._listening[-1].setblocking(False)
        return None

    def _start_gateway(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, SAFE_PATH, "-m", "raydebug.gateway", "--numbers-file", str(self.cluster.numbers_file)]
        options = {
            "gateway": ("--host", "--client-port", "--client-fd"),
            "dial": ("--dial-host", "--dial-port", "--dial-fd"),
        }
        fds = [listener.fileno() for listener in self._listening]
        for (purpose, host), fd in zip(self._gateway_at.items(), fds, strict=True):
            for option, value in zip(options[purpose], (host, self.cluster.ports[purpose], fd), strict=True):
                argv += [option, str(value)]
        path = self._log_of("gateway")
        return self._start([*argv, "--log-file", str(path), *self._gateway_options()], path, fds=fds)

    def _start_ray(self, phase: str) -> None:
        self._say(phase=phase)
        self._ray = self._start(ray_command(self.cluster, self.ip, self.join), self._log_of("ray"))
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
        if self._gateway is None or self._gateway.poll() is None:
            return
        if self._gateway_restarts.take():
            self._gateway = self._start_gateway()
            return
        # No line of its log: what a peer sends can be in there.
        self._say(
            gateway=f"it has ended {RESTARTS + 1} times within {RESTARTS_WINDOW_S / 60:.0f} minutes, the last time with"
            f" {_ending(self._gateway.returncode)} (its log: {self._log_of('gateway')});"
            f" {self.starts_gateway}, until then the job's pauses wait"
        )

    def _turn_away(self) -> None:
        """Close what connects to a gateway that stays down: nobody would answer it."""
        for listener in self._listening:
            with contextlib.suppress(OSError):
                for _ in range(TURNED_AWAY):
                    listener.accept()[0].close()

    def _wait_until_up(self) -> str | None:
        startup = ray_node.Startup(self.cluster.ray_logs)
        while not self._is_over():
            if self._ray.poll() is not None:
                ended = f"Ray ended while it started ({_ending(self._ray.returncode)}): {self._last_words('ray')}"
                tried_s = time.monotonic() - self._ray_began
                if tried_s < ray_node.RAY_GIVES_UP_S or startup.is_over():
                    return ended
                log(ended)
                end_descendants(self._gateway.pid if self._gateway else None, self._reap_adopted)
                self._start_ray(f"Ray gave up on its start after {tried_s:.0f} s; starting it again")
            if self._gateway and self._gateway.poll() is not None:
                return f"the gateway ended while it started: {self._last_words('gateway')}"
            missing = self._first_missing()
            if missing is None:
                return None
            if missing == DASHBOARD and not ray_node.has_dashboard(self._ray.pid):
                return f"Ray goes on without its dashboard: {self._last_words('ray')}"
            if over := startup.is_over():
                return f"{over} (waiting for {missing}): {self._last_words('ray')}"
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
                what = "Ray" if self.join else "Ray's head"
                return f"{what} ended with exit code {self._ray.returncode}: {self._last_words('ray')}"
            self._keep_gateway()
            self._keep_others()
            if time.monotonic() - reaped > REAP_PERIOD_S:
                reaped = time.monotonic()
                self._reap_adopted()
                self._say_again()
            found = self._node.look()
            if found.state == "dead":
                return found.reason
            self._note(found)
        return None

    def _note(self, found: ray_node.NodeCondition) -> None:
        """Record in the status and the log that Ray is slow or hung, or answers again; nothing is ended."""
        was = self._status["ray"]
        if found.state == "up":
            if was is not None:
                log(f"Ray answers again after {time.time() - was['since']:.0f} s")
                self._say(ray=None)
        elif was is None or was["state"] != found.state:
            log(f"Ray is {found.state}: {found.reason}")
            self._say(ray={"state": found.state, "since": time.time() - found.silent_s, "reason": found.reason})

    def _health_pages(self) -> dict[str, str]:
        # `ray start --block` does not end when its raylet is gone, and late when its GCS is: both are watched.
        raylet = {ray_node.RAYLET: self._url("agent", "/api/local_raylet_healthz")}
        return raylet if self.join else {**raylet, ray_node.GCS: self._url("dashboard", "/api/gcs_healthz")}

    def _first_missing(self) -> str | None:
        """Return the first part that does not answer yet; None if all do."""
        pages = {"the raylet's agent": self._url("agent", "/api/local_raylet_healthz")}
        if self.join is None:
            pages["the gateway"] = self._url("gateway", "/health")
            pages[DASHBOARD] = self._url("dashboard", "/api/v0/nodes?limit=1")
        for name, url in pages.items():
            token = ""
            if name == DASHBOARD:  # the only page that wants one (ray 2.60.0 dashboard/http_server_agent.py)
                if stranger_listening(self.cluster, (self.cluster.host, self.cluster.ports["dashboard"])) is not None:
                    return "Ray's dashboard, whose port another user of this machine has taken"
                token = self.cluster.token
            if ray_node.ask(url, token, START_PROBE_TIMEOUT_S) != "ok":
                return name
        return None

    def _url(self, purpose: str, path: str) -> str:
        host = self.ip if purpose == "agent" else self.cluster.host
        return f"http://{host}:{self.cluster.ports[purpose]}{path}"

    def _last_words(self, part: str) -> str:
        return ray_node.last_words(self._log_of(part))

    def _say(self, **changes: Any) -> None:
        """Write the status; on a full disk it is written later, and the cluster goes on."""
        self._status = {**self._status, **changes, "at": time.time()}
        self._unsaid = True
        self._say_again()

    def _say_again(self) -> None:
        if self._unsaid:
            with contextlib.suppress(RaydebugError):
                self._write_status()
                self._unsaid = False

    def _reap_adopted(self) -> None:
        """Reap zombie descendants that were reparented to us."""
        own = {child.pid for child in self._started}  # Popen reaps these itself
        for child in psutil.Process().children():
            if child.pid not in own:
                with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                    if child.status() == psutil.STATUS_ZOMBIE:
                        os.waitpid(child.pid, os.WNOHANG)

    def _end_all(self) -> None:
        if self._node is not None:
            self._node.close()
        for child in self._started:
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        while time.monotonic() < deadline and any(child.poll() is None for child in self._started):
            time.sleep(0.02)
        end_descendants()
        private_folders.remove_private(self.cluster.temp_dir)


def log(text: str) -> None:
    """Print a line with the time."""
    with contextlib.suppress(OSError):  # a full disk
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)  # noqa: T201 - the log of this program


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def end_descendants(but: int | None = None, reap: Callable[[], None] = _reap) -> None:
    """Kill all processes below this one, adopted ones too, but for one child; `reap` collects what has ended."""
    for _ in range(20):  # a process that ends may still start another
        left = [program for program in psutil.Process().children(recursive=True) if program.pid != but]
        if not left:
            break
        for program in left:
            with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
                program.kill()
        psutil.wait_procs(left, timeout=0.2)
        reap()


def adopt_orphans() -> None:
    """Become the parent of all processes below whose own parents end (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Get SIGTERM when the parent ends (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
