"""The verbs of a cluster's life, whatever its kind."""

from __future__ import annotations

from typing import Any

from raydebug.cluster import head, state
from raydebug.cluster.place import ComposePlace, LocalPlace, Place
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError


def take_down(cluster: Cluster) -> list[str]:
    """End all that `up` started for a cluster, and forget it; return what would not end."""
    if cluster.kind == "compose":
        from raydebug.cluster import compose_life

        return compose_life.take_down(cluster)
    if cluster.kind == "joined":
        raise RaydebugError(
            "this cluster is not ended from inside of it",
            cause=f"{state.DASHBOARD_VARIABLE} names it: this is a container of its network",
            fix="end it on its host: `raydebug down`, or `docker compose down`",
            code="cluster.joined",
            exit_code=Exit.USAGE,
        )
    from raydebug.cluster import local

    return [f"pid {pid}" for pid in local.take_down(cluster)]


def is_alive(cluster: Cluster) -> bool:
    """Say whether a cluster is there."""
    if cluster.kind == "joined":
        return True
    if cluster.kind == "compose":
        from raydebug.cluster import compose

        return any(c.service == "head" and c.state == "running" for c in compose.containers(cluster))
    from raydebug.cluster import local

    return local.is_alive(cluster)


def place_of(cluster: Cluster) -> Place:
    """Return where a cluster's programs and files are."""
    if cluster.kind == "compose":
        return ComposePlace(cluster)
    return LocalPlace(cluster.python)


def nodes_of(cluster: Cluster) -> list[dict[str, Any]]:
    """Return a cluster's nodes with their state, and the reason where one is not alive."""
    from raydebug.cluster.dashboard import Dashboard

    trouble = _trouble(cluster)
    if trouble:
        return trouble
    try:
        why = head.why_gone(cluster)
        rows = [] if why else Dashboard(cluster).nodes()
    except RaydebugError as failure:
        why = failure.cause
    except TimeoutError as error:
        why = str(error)
    if why:
        return [_node("head", cluster.host, "unreachable", why)]
    return [
        {
            "node_id": row["node_id"],
            "ip": row["node_ip"],
            "role": "head" if row.get("is_head_node") else "worker",
            "state": "alive" if row["state"] == "ALIVE" else "dead",
            "reason": row.get("state_message") or None,
        }
        for row in rows
    ]


def _trouble(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the nodes of a cluster whose head cannot be asked."""
    if cluster.kind == "joined":
        return []
    if cluster.kind == "compose":
        from raydebug.cluster import compose

        found = compose.containers(cluster)
        heads = [c for c in found if c.service == "head"]
        if heads and heads[0].state == "running":
            return []
        return [_node(c.service, c.address, c.state, compose.explain(c)) for c in found] or [
            _node("head", cluster.host, "dead", "its containers are gone")
        ]
    from raydebug.cluster import local

    if not local.is_alive(cluster):
        return [_node("head", cluster.host, "dead", "its supervisor is gone (killed, or the machine was restarted)")]
    status = state.read_status(cluster)
    if status["phase"] == "up":
        return []
    condition = "dead" if status["phase"] == "dead" else "starting"
    return [_node("head", cluster.host, condition, status["reason"] or status["phase"])]


def _node(role: str, ip: str, condition: str, reason: str | None) -> dict[str, Any]:
    return {"node_id": None, "ip": ip, "role": role, "state": condition, "reason": reason}
