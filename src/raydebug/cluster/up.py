"""The parts of `up` that all kinds of cluster share: its options and ports; wait, undo and Ctrl-C of a start.

Ports are chosen once, remembered, and never in the ranges that Ray or the kernel hands out.

Ctrl-C is noticed even if Python, or an import, drops its exception: a KeyboardInterrupt that hits a destructor or a
callback of the garbage collector is printed as ignored, and lost
(https://docs.python.org/3/reference/datamodel.html#object.__del__).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from raydebug import render
from raydebug.cluster import audit_log, state
from raydebug.cluster.find import find_cluster
from raydebug.cluster.locks import flock, only_one, open_lock
from raydebug.errors import Exit, RaydebugError, TakenError, UsageError

# Ray's default range for workers is 10002-19999, the kernel's for outgoing connections 32768-60999. Tests that run side
# by side have a part of it each (tests/conftest.py): between the choice of a port and its use another could choose it.
# The variable is read at each choice: pytest imports this before it sets it.
PART, WHOLE = "RAYDEBUG_TEST_PORTS", "20000-32000"
DEFAULTS = {"dashboard": 8265, "gateway": 5678}
PURPOSES = (
    *("dashboard", "gateway", "dial", "gcs", "client_server", "agent", "agent_grpc", "runtime_env", "metrics"),
    *("node_manager", "object_manager"),
)

_pressed = False


@dataclass(frozen=True)
class UpOptions:
    """The options of `up`, for a cluster of any kind; None leaves the choice to raydebug.

    Args:
        cpus, gpus: logical CPUs and GPUs of a node.
        dashboard_port, gateway_port: ports on this machine; 0 takes a free one.
        python: local: the interpreter whose environment Ray runs in; None for find_interpreter's.
        owner: local: pid of the `run` that the cluster is for; it ends with the last `run` that uses it.
        prefork: local: keep pre-forked processes with the heavy imports done.
        workers: compose: number of worker nodes.
        project: compose: folder of this machine that the containers have as /workspace.
        mounts: compose: SOURCE:TARGET[:ro] of further folders.
        hf_cache: compose: mount the user's Hugging Face cache.
        env_file: compose: file with KEY=VALUE lines for the nodes.
        yes: compose: merge the project's own compose file, whatever it asks for.
    """

    name: str = state.DEFAULT_NAME
    cpus: int | None = None
    gpus: int | None = None
    debugger: str = "breakpoint"
    dashboard_port: int | None = None
    gateway_port: int | None = None
    python: str | None = None
    owner: int | None = None
    prefork: bool = False
    flavour: str | None = None
    workers: int = 1
    project: Path = Path()
    mounts: list[str] = field(default_factory=list)
    hf_cache: bool = False
    env_file: Path | None = None
    yes: bool = False

    @property
    def ports(self) -> dict[str, int | None]:
        """The ports that the user named, by purpose."""
        return {"dashboard": self.dashboard_port, "gateway": self.gateway_port}


def is_free(port: int) -> bool:
    """Return whether a port is free on loopback and on the wildcard address, which another server may hold.

    Raises:
        RaydebugError: this user may not listen there, free or not.
    """
    for address in ("127.0.0.1", ""):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except PermissionError as error:
                raise UsageError(
                    f"port {port} is not for this user", cause="a port below 1024 needs root",
                    fix="choose one from 1024 on (0 takes a free one)", code="port.needs-root",
                ) from error  # fmt: skip
            except OSError:
                return False
    return True


def choose_ports(
    asked: dict[str, int | None],
    remembered: dict[str, int],
    taken: Collection[int],
    purposes: Collection[str] = PURPOSES,
    within: str | None = None,
) -> dict[str, int]:
    """Return a port for every purpose.

    Args:
        asked: ports that the user named, by purpose; no other port is taken for these. 0 takes any free port, and not
            the default one.
        remembered: ports of an earlier cluster of this name; taken again if free.
        taken: ports of other clusters, also of those that are starting.
        purposes: the purposes that need a port.
        within: `FIRST-END`, where any other port is taken from; None for WHOLE.

    Raises:
        RaydebugError: a port that the user named is taken, or not for this user.
    """
    chosen: dict[str, int] = {}
    for purpose in purposes:
        wanted = asked.get(purpose)
        if wanted:
            if not is_free(wanted):
                raise _taken(purpose, wanted, f"{owner_of(wanted)} listens there")
            if wanted in chosen.values():
                raise _taken(purpose, wanted, "another part of this cluster has it")
            if wanted in taken:
                raise _taken(purpose, wanted, "another cluster of yours has it, running or not (`raydebug ps`)")
            chosen[purpose] = wanted
            continue
        default = DEFAULTS.get(purpose) if wanted is None else None
        used = {*chosen.values(), *taken, *(port for port in asked.values() if port)}
        candidates = (remembered.get(purpose), default)
        port = next((p for p in candidates if p and p not in used and is_free(p)), None)
        chosen[purpose] = port or _any_free(used, within)
    return chosen


def refuse_no_number(name: str, value: str) -> None:
    """Refuse a variable that the gateway could not read as a number of seconds: it would end again and again.

    Raises:
        UsageError: it is none.
    """
    with contextlib.suppress(ValueError):
        if not value or (math.isfinite(float(value)) and float(value) >= 0):
            return
    raise UsageError(
        f"{name}={value} is not a number of seconds", cause="the shell has set it so",
        fix=f"unset it, or give seconds, such as {name}=3600; 0: never", code="up.no-number",
    )  # fmt: skip


def refuse_other_ports(options: UpOptions, running: state.Cluster) -> None:
    """Refuse a port that the user named where the running cluster has another one.

    Raises:
        RaydebugError: it has (exit 3).
    """
    for purpose, wanted in options.ports.items():
        is_here = not running.remote.through  # else another way leads there (tunnel.py)
        if wanted and is_here and running.ports.get(purpose, wanted) != wanted:
            name = state.name_option(running.name)
            raise TakenError(
                f"cluster '{running.name}' runs already, and its {purpose} has another port than {wanted}",
                cause=f"it has port {running.ports[purpose]}, chosen when it was started",
                fix=f"leave --{purpose}-port out, or `raydebug down{name}` first",
                code="port.other",
            )


@contextlib.contextmanager
def choosing_ports(name: str) -> Iterator[list[int]]:
    """Hold the lock under which ports are chosen, and yield the ports of all other clusters."""
    with open_lock("ports.lock") as file:
        flock(file, fcntl.LOCK_EX)
        taken: list[int] = []
        for other in state.known_names():
            try:
                record = state.read_record(other) if other != name else None
            except RaydebugError as failure:
                render.say(f"warning: {failure.what}, so its ports are not known; {failure.fix}")
            else:
                taken += record.ports.values() if record is not None else ()
        yield taken


def remembered_ports(folder: Path) -> dict[str, int]:
    """Return the ports of an earlier cluster in this folder."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        ports = json.loads((folder / "ports.json").read_text())
        return {purpose: int(port) for purpose, port in ports.items()}
    return {}


def _any_free(used: Collection[int], within: str | None) -> int:
    first, end = map(int, (within or os.environ.get(PART, WHOLE)).split("-"))
    for _ in range(200):
        port = random.randrange(first, end)  # noqa: S311 - no secret, only to keep out of each other's way
        if port not in used and is_free(port):
            return port
    raise TakenError(
        "no free port was found",
        cause=f"200 ports tried in {first}-{end - 1}, all taken",
        fix="end what listens there (`ss -ltnp` lists it)",
        code="port.none-free",
    )


def _taken(purpose: str, port: int, why: str) -> RaydebugError:
    return TakenError(
        f"port {port} for the {purpose.replace('_', ' ')} is taken",
        cause=why,
        fix=f"end it, or choose another port with --{purpose.replace('_', '-')}-port (0 takes a free one)",
        code="port.taken",
    )


def owner_of(port: int) -> str:
    """Return the program that listens on a port, in words."""
    import psutil

    try:
        for found in psutil.net_connections("tcp"):
            if found.laddr and found.laddr.port == port and found.status == psutil.CONN_LISTEN and found.pid:
                process = psutil.Process(found.pid)
                return f"{process.name()} (pid {found.pid}, user {process.username()})"
    except (psutil.Error, PermissionError):
        pass
    return "another program"


@contextlib.contextmanager
def notice_interrupts() -> Iterator[None]:
    """Record a Ctrl-C in addition to raising it; after one that leaves this block, further ones are ignored."""
    global _pressed
    _pressed = False
    before = _answer_by(_note)
    try:
        yield
    except KeyboardInterrupt:
        before = signal.SIG_IGN  # Python would die of a second one on its way out
        raise
    finally:
        _pressed = False
        _answer_by(before)


@contextlib.contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, so that cleaning up is cut off neither by a second one nor by the first one."""
    global _pressed
    before, was_pressed = _answer_by(signal.SIG_IGN), _pressed
    _pressed = False  # for `raise_if_interrupted` of what is called in this block
    try:
        yield
    finally:
        _pressed = was_pressed
        _answer_by(before)


def _answer_by(handler: Any) -> Any:
    """Set the SIGINT handler and return the earlier one; None if it is not Python's, or outside the main thread."""
    if handler is None or threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGINT, handler)


def raise_if_interrupted() -> None:
    """Raise the KeyboardInterrupt that was lost.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed since `notice_interrupts` began.
    """
    if _pressed:
        raise KeyboardInterrupt


@contextlib.contextmanager
def starting(options: UpOptions, kind: str) -> Iterator[state.Cluster | None]:
    """Hold the lock of a name while a cluster of this kind is started, and yield the one that is recorded.

    Raises:
        RaydebugError: one of another kind has the name, or another `up` of it is at work (exit 3). With an owner that
            one is waited for.
    """
    audit_log.prune()
    with only_one(options.name, wait=options.owner is not None):
        running = find_cluster(options.name)
        if running is not None and running.kind != kind:
            name = state.name_option(running.name)
            raise TakenError(
                f"cluster '{running.name}' is there, of the kind {running.kind}",
                cause="what `up` has started and its record are kept until `raydebug down`",
                fix=f"`raydebug up{name}` starts it again, `raydebug down{name}` removes it; or another name with"
                " --name",
                code="cluster.other-kind",
            )
        yield running


@contextlib.contextmanager
def undone_unless_whole(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the start of a cluster in this block fails, or is interrupted; Ctrl-C does not cut it off."""
    try:
        raise_if_interrupted()
        yield
        raise_if_interrupted()
    except BaseException:
        with ignore_interrupts():
            undo()
        raise


def wait_until_up(
    name: str,
    look: Callable[[], tuple[str, bool]],
    on_phase: Callable[[str], None],
    keep_logs: Callable[[], object],
    *,
    limit_s: float,
    every_s: float,
) -> None:
    """Wait until a cluster is up, and say each new phase.

    Args:
        name: the cluster's.
        look: returns the phase, and whether the cluster is up; it raises where the start has failed.
        on_phase: called with each new phase.
        keep_logs: called where it fails: keeps in `state.kept_logs` what is removed then.
        limit_s: how long to wait, in seconds.
        every_s: how long between two looks, in seconds.

    Raises:
        RaydebugError: it was not up in time (exit 124), or what `look` raises.
    """
    deadline, phase = time.monotonic() + limit_s, ""
    try:
        while time.monotonic() < deadline:
            raise_if_interrupted()
            now, is_up = look()
            if now != phase:
                phase = now
                on_phase(phase)
            if is_up:
                return
            time.sleep(every_s)
        raise RaydebugError(
            f"cluster '{name}' was not up after {limit_s:.0f} s",
            cause=f"it was still at: {phase}",
            fix=f"read the logs in {state.kept_logs(name)}, and try again on a quieter machine",
            code="cluster.timeout",
            exit_code=Exit.TIMEOUT,
        )
    except RaydebugError:
        keep_logs()
        raise


def _note(_number: int, _frame: FrameType | None) -> None:
    global _pressed
    _pressed = True
    raise KeyboardInterrupt
