"""The way from this machine to the loopback of a cluster's head: a process that listens here, kept in the record.

It runs a command for each connection (connection.py). With `ssh` that command ends in the port itself; any other
command runs a Python of the cluster's at the far end, as the user that the command leads to.
"""

from __future__ import annotations

import contextlib
import errno
import getopt
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from raydebug import process
from raydebug.cluster import state, up
from raydebug.cluster.connection import ENDED, FAR_PORT
from raydebug.cluster.environment import without_slurm
from raydebug.cluster.local import supervisor_of
from raydebug.cluster.ray_node import below, last_words
from raydebug.cluster.state import Cluster
from raydebug.errors import RaydebugError, UsageError
from raydebug.process import SAFE_PATH, too_old
from raydebug.settings.files import open_private

STARTS_S, ENDS_S = 10.0, 2.0
TRIES, TAKEN = 3, os.strerror(errno.EADDRINUSE).lower()
LOG = "tunnel.log"
CONTAINER_PROGRAMS = {"kubectl", "oc", "docker", "podman", "nerdctl"}
# OpenSSH 9.9 ssh.c, the string of its getopt.
SSH_OPTIONS = "1246ab:c:e:fgi:kl:m:no:p:qstvxAB:CD:E:F:GI:J:KL:MNO:P:Q:R:S:TVw:W:XYy"
# A dashboard says which Python its cluster has, and a shell at the far end may read it.
_PLAIN_PATH = re.compile(r"/[\w./+@-]+|python3?", re.ASCII)


def command_of(through: str, python: str) -> list[str]:
    """Return the command whose stdin and stdout are a connection to FAR_PORT of the head's loopback. Pure.

    Raises:
        RaydebugError: it cannot be read, or the cluster's Python is no plain path.
    """
    try:
        words = shlex.split(through)
        if Path(words[0]).name == "ssh":
            host = getopt.getopt(words[1:], SSH_OPTIONS)[1]
            if not host:
                raise ValueError("it names no host")
            if not getopt.getopt(host[1:], SSH_OPTIONS)[1]:  # else it runs a program there, such as `docker exec -i`
                # Not the master of others (ControlMaster in ssh_config): they would end with it.
                return [words[0], "-o", "ControlMaster=no", "-W", f"127.0.0.1:{FAR_PORT}", *words[1:]]
    except (ValueError, IndexError, getopt.GetoptError) as error:
        raise UsageError(
            f"--through {through!r} is not a command that leads to the head",
            cause=str(error),
            fix="--through 'ssh HEAD', as you type it in a shell",
            code="joined.options",
        ) from error
    if not _PLAIN_PATH.fullmatch(python):
        raise RaydebugError(
            "the cluster's Python is not run through this command",
            cause=f"a shell at the far end may read it, and {python!r} is not a plain path",
            fix="--through 'ssh HEAD' needs none, or keep `ssh -N -L PORT:127.0.0.1:PORT HEAD` open (docs/12)",
            code="joined.python",
        )
    # srun, also after `ssh LOGIN` or `env`, passes on whole lines only, and messages of DAP end without one.
    at = next((number for number, word in enumerate(words) if Path(word).name == "srun"), len(words))
    if at < len(words) and not {"-u", "--unbuffered"} & set(words[at:]):
        words.insert(at + 1, "--unbuffered")
    return [*words, python, SAFE_PATH, "-m", "raydebug.cluster.connection", "there", FAR_PORT]


def far_python(through: str) -> str:
    """Return the Python at the far end of a command, where the cluster has not told it: as here, but in a container."""
    programs = {Path(word).name for word in through.split()}
    return "python3" if programs & CONTAINER_PROGRAMS else sys.executable


def open_way(cluster: Cluster, asked: Mapping[str, int | None]) -> Cluster:
    """Return the cluster, recorded, with the ports of this machine that lead to it (Remote.far).

    Args:
        cluster: with `through`, the command; without one its ports are here.
        asked: ports of this machine that the user named, by purpose; None or 0 for any.

    Raises:
        RaydebugError: nothing listens here in time, or a port that the user named is taken.
    """
    far = cluster.remote.far
    moved = [purpose for purpose, port in asked.items() if port and cluster.ports.get(purpose, port) != port]
    if moved and supervisor_of(cluster) is not None:
        with up.choosing_ports(cluster.name) as taken:  # refused before the way is closed
            up.choose_ports(dict(asked), {}, taken, moved)
        close_way(cluster)
    if not cluster.remote.through:
        cluster = replace(_at(cluster, far), supervisor_pid=0)
        state.save_cluster(cluster)
    elif supervisor_of(cluster) is None:
        for _ in range(TRIES):
            with up.choosing_ports(cluster.name) as taken, up.ignore_interrupts():  # what was started is recorded
                cluster = _start(_at(cluster, up.choose_ports(dict(asked), cluster.ports, taken, far)))
            with up.undone_unless_whole(partial(close_way, cluster)):  # who called has no record of this process yet
                if _listens(cluster):
                    return cluster
            close_way(cluster)  # it may only be slow
            if TAKEN not in last_said(cluster):  # else another program took a port that was free when it was chosen
                break
        raise RaydebugError(
            "the tunnel to the head has not started", cause=last_said(cluster) or "it printed nothing",
            fix=f"read {cluster.folder / LOG}", code="joined.no-way",
        )  # fmt: skip
    else:
        state.save_cluster(cluster)
    return cluster


def _start(cluster: Cluster) -> Cluster:
    """Start the process that listens on the cluster's ports, and return the cluster, recorded."""
    ways = [f"{cluster.ports[purpose]}={port}" for purpose, port in cluster.remote.far.items()]
    here = [sys.executable, SAFE_PATH, "-m", "raydebug.cluster.connection", "here", ",".join(ways)]
    argv = [*here, *command_of(cluster.remote.through, cluster.python)]
    with open_private(cluster.folder / LOG, "wb") as log:
        environ = without_slurm(os.environ) if cluster.remote.slurm_job else os.environ
        folder = Path(cluster.remote.called_in)
        cwd = folder if folder.is_absolute() and folder.is_dir() else None
        tunnel = process.start(argv, env=environ, output=log, cwd=cwd, new_session=True)
    cluster = replace(cluster, supervisor_pid=tunnel.pid, supervisor_birth=process.birth_of(tunnel.pid))
    state.save_cluster(cluster)
    return cluster


def _listens(cluster: Cluster) -> bool:
    """Wait until the cluster's process listens on all its ports, and return whether it does; another's may be there."""
    deadline = time.monotonic() + STARTS_S
    while (found := supervisor_of(cluster)) is not None and time.monotonic() < deadline:
        up.raise_if_interrupted()
        with contextlib.suppress(psutil.Error):
            open_ports = {at.laddr.port for at in found.net_connections("tcp") if at.status == psutil.CONN_LISTEN}
            if open_ports.issuperset(cluster.ports.values()):
                return True
        time.sleep(0.02)
    return False


def _at(cluster: Cluster, ports: dict[str, int]) -> Cluster:
    """Return the cluster with its ports of this machine."""
    forms = {"gateway": "127.0.0.1:{}", "dashboard": "http://127.0.0.1:{}"}
    addresses = {purpose: forms[purpose].format(port) for purpose, port in ports.items()}
    return replace(cluster.with_remote(**addresses), ports=ports)


def last_said(cluster: Cluster) -> str:
    """Return what the command said last; empty without one."""
    said = last_words(cluster.folder / LOG, 4) if cluster.remote.through else ""  # the last of them may be ENDED
    said = " / ".join(dict.fromkeys(said.split(" / ")))  # each try says the same
    return too_old(said) or ("" if said.startswith("(") else said)


def has_failed(cluster: Cluster) -> bool:
    """Return whether the command has ended by itself with an error: nothing is to be waited for."""
    return bool(cluster.remote.through) and ENDED in last_words(cluster.folder / LOG)


def close_way(cluster: Cluster) -> None:
    """End the process that listens here, and what it has started."""
    found = supervisor_of(cluster)
    if found is None:
        return
    family = [found, *below(found)]
    for program in family:
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's, as below sudo
            program.terminate()
    for program in psutil.wait_procs(family, timeout=ENDS_S)[1]:
        with contextlib.suppress(psutil.Error):
            program.kill()
