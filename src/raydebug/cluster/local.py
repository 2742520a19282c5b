"""Local clusters: Ray's head, its dashboard and the gateway on this machine, without Docker."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from raydebug import process, render
from raydebug.cluster import private_folders, state, up
from raydebug.cluster.environment import choose_gpus, cpus_for, start_environment
from raydebug.cluster.find import find_cluster
from raydebug.cluster.interpreter import Environment, find_interpreter, probe_environment
from raydebug.cluster.ray_node import START_LIMIT_S, ask, below, last_words, runs
from raydebug.cluster.state import Cluster, name_option
from raydebug.cluster.up import UpOptions
from raydebug.errors import RaydebugError
from raydebug.process import SAFE_PATH
from raydebug.protocol import variables
from raydebug.settings.files import open_private

UP_TIMEOUT_S = START_LIMIT_S + 20.0
DOWN_TIMEOUT_S = 4.8
TRIES = 3  # where another program takes a port between its choice and its use
GATEWAY_TIMEOUT_S = 30.0
# A unix socket's path has at most 107 bytes, and Ray 2.60 adds up to 71 to its temp dir
# (/session_2026-01-31_23-59-59_123456_4194304/sockets/dash_TaskEventsHead; dashboard/subprocesses/utils.py).
TEMP_PATH_BYTES = 107 - 71


def bring_up(options: UpOptions, *, on_phase: Callable[[str], None] = lambda phase: None) -> tuple[Cluster, bool]:
    """Start a local cluster; return it when it answers, and whether this call started it. A running one stays as it is.

    With an owner, another `up` or `run` of the name is waited for.

    Raises:
        RaydebugError: something is missing or taken; nothing is left behind then.
    """
    with up.starting(options, "local") as running:
        if running is not None and is_alive(running):
            status = state.read_status(running)
            if status["phase"] == "dead":
                raise RaydebugError(
                    f"cluster '{options.name}' is there, but dead",
                    cause=str(status["reason"]),
                    fix=f"clear it away with `raydebug down{name_option(options.name)}`, then `raydebug up` again",
                    code="cluster.dead",
                )
            up.refuse_other_ports(options, running)
            if status["phase"] != "up":  # the `up` that began it was cut off, or still waits
                _wait_for(running, on_phase)
            elif status.get("gateway") is not None:
                _start_gateway_again(running, on_phase)
            return running, False
        python = find_interpreter(options.python)
        environment = probe_environment(python)
        if running is not None:  # its supervisor was killed, and its children may still run
            take_down(running)
        private_folders.remove_private(state.kept_logs(options.name))
        tries = 0
        while True:
            tries += 1
            cluster: Cluster | None = None
            try:
                with up.undone_unless_whole(lambda: _undo(options.name)):
                    cluster = _plan(options, python, environment)
                    cluster = _start(cluster)
                    _wait_for(cluster, on_phase)
                return cluster, True
            except RaydebugError as error:
                if cluster is None or error.code != "cluster.not-up":
                    raise
                taken = [purpose for purpose, port in cluster.ports.items() if not up.is_free(port)]  # ours have ended
                if not taken or tries == TRIES or any(options.ports.get(purpose) for purpose in taken):
                    raise
                on_phase(f"another program has taken the port of the {taken[0]} meanwhile; starting with another port")


def take_down(cluster: Cluster) -> list[int]:
    """End everything that `up` started for a cluster, and forget it; return the pids that would not end.

    Takes under 5 s. Nothing else on the machine is touched: processes are identified by descent from the supervisor
    and by the cluster's id in their environment, never by name.
    """
    supervisor = supervisor_of(cluster)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    family: list[psutil.Process] = []
    if supervisor is not None:
        family = [supervisor, *below(supervisor)]
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor.send_signal(signal.SIGTERM)
        with contextlib.suppress(psutil.TimeoutExpired):
            supervisor.wait(timeout=DOWN_TIMEOUT_S - 0.8)
    left = kill_all(lambda: family + marked_processes(cluster), deadline)
    private_folders.remove_private(cluster.temp_dir)
    if not left:
        _name_left_memory(cluster)
        state.forget(cluster)
    return [program.pid for program in left]


def _name_left_memory(cluster: Cluster) -> None:
    """Say which shared memory of this user's is newer than the cluster and mapped by no process; it stays until a boot.

    A training that is killed leaves some: two of 420 MB by verl 0.9.1. Who made them is not known, so they are kept.
    Source of the name: Python 3.11 to 3.14 multiprocessing/shared_memory.py `_SHM_NAME_PREFIX`.
    """
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir("/dev/shm"):  # noqa: S108 - read only
            about = entry.stat(follow_symlinks=False)
            is_new = about.st_uid == os.geteuid() and about.st_ctime >= cluster.created
            if entry.name.startswith("psm_") and is_new:
                found[entry.path] = about.st_size
    for program in psutil.process_iter() if found else ():
        with contextlib.suppress(OSError):  # not psutil's memory_maps, which reads the size of each mapping: seconds
            maps = Path(f"/proc/{program.pid}/maps").read_text(encoding="utf-8", errors="replace")
            found = {path: size for path, size in found.items() if path not in maps}
    if found:
        size = f"{sum(found.values()) / 1e6:,.0f} MB"
        render.say(f"note: shared memory that no process uses ({size}) is left; if no other program has made it: rm "
                   + " ".join(sorted(found)))  # fmt: skip


def kill_all(find: Callable[[], list[psutil.Process]], deadline: float) -> list[psutil.Process]:
    """Kill processes until none is found, or until a monotonic time in seconds; return those that would not end."""
    while (left := [program for program in find() if runs(program)]) and time.monotonic() < deadline:
        for program in left:
            with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
                program.kill()
        psutil.wait_procs(left, timeout=0.1)
    return left


def is_alive(cluster: Cluster) -> bool:
    """Return whether the cluster's supervisor runs."""
    return supervisor_of(cluster) is not None


def supervisor_of(cluster: Cluster) -> psutil.Process | None:
    """Return the cluster's supervisor process, or None; its birth tells it from a later process with its pid."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(cluster.supervisor_pid) if cluster.supervisor_pid else None
        if found is not None and process.birth_of(found.pid) == cluster.supervisor_birth and runs(found):
            return found
    return None


def environ_of(cluster: Cluster) -> dict[str, str]:
    """Return the variables that a local cluster's processes began with; none where they cannot be read."""
    try:
        return psutil.Process(cluster.supervisor_pid).environ()
    except (psutil.Error, OSError):
        return {}


def marked_processes(cluster: Cluster) -> list[psutil.Process]:
    """Return the processes whose environment has the cluster's id, with their descendants."""
    found: dict[int, psutil.Process] = {}
    for program in psutil.process_iter():
        try:
            if program.pid != os.getpid() and program.environ().get(variables.CLUSTER_ID) == cluster.id:
                found.update({relative.pid: relative for relative in [program, *below(program)]})
        except (psutil.Error, OSError):
            continue
    return list(found.values())


def programs(cluster: Cluster) -> list[str]:
    """Return the command lines of the cluster's processes."""
    lines = []
    for program in marked_processes(cluster):
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(program.cmdline()))
    return lines


def _plan(options: UpOptions, python: str, environment: Environment) -> Cluster:
    up.refuse_no_number("PAUSE_LIMIT_S", os.environ.get("PAUSE_LIMIT_S", ""))
    folder, gpus = state.make_folder(options.name), choose_gpus(options.gpus, os.environ)
    state.make_token(folder)
    with up.choosing_ports(options.name) as taken:
        cluster = Cluster(
            name=options.name,
            id=uuid.uuid4().hex,
            kind="local",
            folder=folder,
            temp_dir=private_folders.make_temporary(TEMP_PATH_BYTES - len("/r")),
            python=python,
            ports=up.choose_ports(options.ports, up.remembered_ports(folder), taken),
            cpus=options.cpus or cpus_for(gpus),
            gpus=gpus,
            debugger=options.debugger,
            owner=options.owner or 0,
            flavour=environment.flavour,
            prefork=options.prefork,
            created=time.time(),
            ray=environment.ray,
        )
        open_private(cluster.numbers_file, "wb").close()  # a gateway that finds no file takes it for lost
        state.save_cluster(cluster)
    return cluster


def _start(cluster: Cluster) -> Cluster:
    argv = [sys.executable, SAFE_PATH, "-m", "raydebug.cluster.supervisor", cluster.name]
    with open_private(cluster.folder / "supervisor.log", "wb") as log:
        environment = {**start_environment(os.environ, cluster.gpus), variables.CLUSTER_ID: cluster.id}
        supervisor = process.start(argv, env=environment, output=log, new_session=True)
    birth = process.birth_of(supervisor.pid)
    cluster = replace(cluster, supervisor_pid=supervisor.pid, supervisor_birth=birth)
    state.save_cluster(cluster)
    return cluster


def _wait_for(cluster: Cluster, on_phase: Callable[[str], None]) -> None:
    up.wait_until_up(
        cluster.name, lambda: _phase_of(cluster), on_phase, lambda: state.keep_logs(cluster),
        limit_s=UP_TIMEOUT_S, every_s=0.05,
    )  # fmt: skip


def _undo(name: str) -> None:
    begun = find_cluster(name)
    if begun is not None:
        take_down(begun)


def _phase_of(cluster: Cluster) -> tuple[str, bool]:
    """Return the phase in the supervisor's status, and whether the cluster is up."""
    status = state.read_status(cluster)
    phase = status["phase"]
    if phase == "dead" or (phase != "up" and not is_alive(cluster)):
        reason = status["reason"] or last_words(cluster.folder / "supervisor.log")
        by_hand = f"{cluster.python} {SAFE_PATH} -m ray.scripts.scripts start --head --block"
        raise RaydebugError(
            f"cluster '{cluster.name}' did not come up",
            cause=str(reason),
            fix=f"read the logs in {state.kept_logs(cluster.name)}; by hand: `{by_hand}`",
            code="cluster.not-up",
        )
    return phase, phase == "up"


def _start_gateway_again(cluster: Cluster, on_phase: Callable[[str], None]) -> None:
    """Ask the supervisor to restart a gateway that stays down, and wait until it answers."""
    on_phase("starting its gateway again")
    os.kill(cluster.supervisor_pid, signal.SIGUSR1)
    url = f"http://{cluster.gateway_host}:{cluster.gateway_port}/health"
    why = None
    deadline = time.monotonic() + GATEWAY_TIMEOUT_S
    while time.monotonic() < deadline:  # that a connection opens says nothing: the supervisor itself listens there
        up.raise_if_interrupted()
        why = state.read_status(cluster)["gateway"]
        if why is None and ask(url, timeout_s=1.0) == "ok":
            return
        time.sleep(0.1)
    raise RaydebugError(
        f"the gateway of cluster '{cluster.name}' has not started within {GATEWAY_TIMEOUT_S:.0f} s",
        cause=why or f"{url} does not answer",
        fix=f"read {cluster.folder / 'gateway.log'}",
        code="gateway.not-up",
    )
