"""Join a cluster of `raydebug node` by its folder, which has the head's address and ports, and the token.

Whoever has started the nodes ends them (deploy/ has examples). Nothing is asked of the nodes: their processes have the
gateway and the token from their start.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from raydebug.cluster import rendezvous, slurm, state
from raydebug.cluster.joined import earlier_join, undo_way
from raydebug.cluster.locks import only_one
from raydebug.cluster.private_folders import check_private
from raydebug.cluster.ray_node import START_LIMIT_S
from raydebug.cluster.rendezvous import ENDED, FAILED, UP, Head, NodeState
from raydebug.cluster.state import Cluster, Remote
from raydebug.cluster.tunnel import close_way, open_way
from raydebug.cluster.up import UpOptions, raise_if_interrupted, undone_unless_whole
from raydebug.errors import RaydebugError, UsageError

STARTS_S = START_LIMIT_S + 60.0  # all nodes
POLL_S = 0.3
NAMED = 4  # nodes in a line of progress


def folder_at(address: str) -> Path | None:
    """Return the folder that `up --join` names; None where it names a dashboard.

    >>> folder_at("http://head:8265"), folder_at("head:8265"), folder_at("/shared/train")
    (None, None, PosixPath('/shared/train'))
    """
    path = Path(address).expanduser()
    is_path = "://" not in address and (("/" in address and ":" not in address) or path.is_dir())
    return path.absolute() if is_path else None


def join_folder(
    options: UpOptions, folder: Path, through: str | None, *, on_phase: Callable[[str], None]
) -> tuple[Cluster, list[NodeState], bool]:
    """Wait until the nodes of a folder are up, and open the way to their head.

    Args:
        options: name, ports on this machine.
        folder: of the nodes.
        through: a command that runs a program on the head; None for that of the earlier join, or `srun` where the head
            is in a job of Slurm.
        on_phase: called with what it does.

    Returns:
        The cluster, its nodes as they say, and whether it was joined already.

    Raises:
        RaydebugError: no head comes up in this folder, or nothing leads to it.
    """
    with only_one(options.name):
        earlier = earlier_join(options.name, str(folder))
        head, nodes = _wait_until_up(folder, on_phase)
        rendezvous.check(folder)
        cluster = _record(options, folder, head, earlier, _way(head, folder, through, earlier))
        on_phase("opening the way to its head")
        there = cluster.remote
        with undone_unless_whole(lambda: undo_way(cluster, earlier)):
            if earlier is not None and (earlier.remote.through, earlier.remote.far) != (there.through, there.far):
                close_way(earlier)
            return open_way(cluster, options.ports), nodes, earlier is not None


def _way(head: Head, folder: Path, through: str | None, earlier: Cluster | None) -> str:
    """Return the command that leads to the head; empty where it is this machine."""
    if through is not None:
        return through.strip()
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    if head["ip"] in own:
        return ""
    if earlier is not None and earlier.remote.through and not earlier.remote.slurm_job:
        return earlier.remote.through
    if slurm.job_of(head):
        return slurm.way_to(head)
    raise UsageError(
        f"the head of this cluster is another machine, {head['host']}", cause=f"{head['ip']} is no address of this one",
        fix=f"name a command that runs a program there: raydebug up --join {folder} --through 'ssh {head['host']}'",
        code="joined.options",
    )  # fmt: skip


def _record(options: UpOptions, folder: Path, head: Head, earlier: Cluster | None, way: str) -> Cluster:
    own, job = state.make_folder(options.name), slurm.job_of(head)
    nowhere = "127.0.0.1:1"  # until the way is open
    before = earlier.remote if earlier is not None else Remote(dashboard=f"http://{nowhere}", gateway=nowhere)
    remote = replace(
        before, token_file=str(folder / "token"), head=head["ip"], gcs=head["gcs"], client_port=head["client_port"],
        logs=f"{head['temp_dir']}/r/session_latest/logs", head_dashboard=f"http://127.0.0.1:{head['dashboard_port']}",
        through=way, called_in=str(Path.cwd()), node_folder=str(folder), slurm_job=job,
        job_ends=time.time() + left if job and (left := slurm.left_s(job)) != float("inf") else 0.0,
    )  # fmt: skip
    cluster = earlier or Cluster(
        name=options.name, id=uuid.uuid4().hex, kind="joined", folder=own, temp_dir=own, python="",
        created=time.time(), remote=remote,
    )  # fmt: skip
    return replace(
        cluster, id=head["id"], python=head["python"], ray=head["ray"], flavour=head["flavour"], gpus=head["gpus"],
        debugger=head["debugger"], remote=remote,
    )  # fmt: skip


def _wait_until_up(folder: Path, on_phase: Callable[[str], None]) -> tuple[Head, list[NodeState]]:
    """Return the head and all nodes, once each is up or has failed, or is late and the head is up.

    A folder without states of nodes is a copy, made on this machine once all of them were up.
    """
    deadline, said = time.monotonic() + STARTS_S, ""
    while True:
        raise_if_interrupted()
        problem, head = f"no head has written {folder / rendezvous.HEAD_FILE}", None
        nodes = rendezvous.list_nodes(folder)
        try:
            if folder.exists():
                check_private(folder)
            head = rendezvous.find_head(folder)
        except RaydebugError as error:  # a file system that is away for a while
            problem = error.cause
        settled = sum(node["phase"] in (UP, FAILED, ENDED) for node in nodes)
        is_late = time.monotonic() > deadline
        if head is not None and (settled >= head["nodes"] or not nodes or is_late):
            return head, nodes
        ended = [node for node in nodes if node["role"] == "head" and node["phase"] in (FAILED, ENDED)]
        if head is None and (ended or is_late):
            reasons = [f"{node['host']}: {node['reason'] or node['phase']}" for node in ended]
            starts = "start `raydebug node` on each host (docs/12); where its job is pending, join when it runs"
            raise RaydebugError(
                f"no cluster is up in {folder}", cause="; ".join(reasons or [problem]),
                fix=f"read the logs in {folder}, and start its nodes again" if ended else starts,
                code="joined.no-head",
            )  # fmt: skip
        waiting = [f"{node['host']}: {node['phase']}" for node in nodes if node["phase"] != UP]
        more = [f"and {len(waiting) - NAMED} more"] if len(waiting) > NAMED else []
        now = "; ".join([f"{len(nodes) - len(waiting)} nodes are up", *waiting[:NAMED], *more]) if nodes else problem
        if now != said:
            said = now
            on_phase(now)
        time.sleep(POLL_S)
