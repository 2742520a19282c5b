"""The verbs of a cluster's life, for every kind (kinds.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from raydebug.cluster import state
from raydebug.cluster.dashboard import GCS_TIMEOUT_S, Dashboard, why_no_gcs
from raydebug.cluster.kinds import Node, kind_of, node_row, slow
from raydebug.cluster.runner import Runner
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError

LOST = ("session.process-gone", "session.gateway-gone")  # console/session.py


def take_down(cluster: Cluster) -> list[str]:
    """End all that `up` started for a cluster, and forget it; return what would not end.

    Raises:
        RaydebugError: raydebug did not start it.
    """
    return kind_of(cluster).take_down()


def is_alive(cluster: Cluster) -> bool:
    """Return whether a cluster runs."""
    return kind_of(cluster).is_alive()


def runner_of(cluster: Cluster) -> Runner:
    """Return where a cluster's programs and files are."""
    return kind_of(cluster).runner()


def gpus_of(cluster: Cluster) -> int | None:
    """Return how many logical GPUs all nodes have together; None if the cluster does not answer."""
    return kind_of(cluster).gpus()


def nodes_of(cluster: Cluster) -> list[Node]:
    """Return a cluster's nodes with their state, and the reason if one is not alive."""
    kind = kind_of(cluster)
    broken = kind.broken_nodes()
    if broken:
        return broken
    try:
        why = why_gone(cluster)
        rows = [] if why else Dashboard(cluster).nodes()
    except RaydebugError as failure:
        why = failure.cause
    except TimeoutError:
        return [node_row("head", cluster.host, *slow(max([GCS_TIMEOUT_S, *kind.silences_s().values()])))]
    if why:
        return [node_row("head", cluster.host, "unreachable", why)]
    silences_s = kind.silences_s()
    found = []
    for row in rows:
        condition, reason = "alive" if row["state"] == "ALIVE" else "dead", row.get("state_message") or None
        if condition == "alive" and row["node_ip"] in silences_s:
            condition, reason = slow(silences_s[row["node_ip"]])
        role = "head" if row.get("is_head_node") else "worker"
        found.append(node_row(role, row["node_ip"], condition, reason, row["node_id"]))
    return found


def gateway_of(cluster: Cluster) -> dict[str, Any]:
    """Return where a cluster's gateway is, whether it is up or down, and why it is down."""
    reason = kind_of(cluster).why_gateway_down()
    address = {"host": cluster.gateway_host, "port": cluster.gateway_port}
    return {**address, "state": "up" if reason is None else "down", "reason": reason}


def why_gone(cluster: Cluster) -> str | None:
    """Return why the head's GCS does not answer; None if it does.

    Raises:
        TimeoutError: it may be slow, or out of reach.
    """
    kind = kind_of(cluster)
    try:
        reason = why_no_gcs(cluster)
    except TimeoutError:  # on a busy machine a dashboard without its GCS says so only after some tries
        programs: list[str] = []
        with contextlib.suppress(RaydebugError, ValueError):
            programs = kind.head_programs()
        if not programs or any("/gcs_server" in program for program in programs):
            raise
        reason = "its gcs_server has ended"
    if reason is None:
        return None
    with contextlib.suppress(RaydebugError):  # the engine may be gone too
        return kind.why_head_ended() or reason
    return reason


@contextlib.contextmanager
def named_if_lost(cluster: Cluster) -> Iterator[None]:
    """Name the head's end as the reason of a lost debug session: the gateway sees only that a process ended.

    Raises:
        RaydebugError: what was raised within, or `session.head-gone`.
    """
    try:
        yield
    except RaydebugError as failure:
        why = None
        if failure.code in LOST:
            with contextlib.suppress(TimeoutError):
                why = why_gone(cluster)
        if why is None:
            raise
        suffix = state.name_option(cluster.name)
        raise RaydebugError(
            f"session lost: head of cluster '{cluster.name}' is gone",
            cause=f"{why}; {failure.cause}",
            fix=f"see `raydebug ps{suffix}`; `raydebug up{suffix}` brings it back, its jobs are lost",
            code="session.head-gone",
            exit_code=Exit.SESSION_LOST,
        ) from failure
