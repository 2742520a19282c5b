"""A kind of cluster: what can be seen and done of one. Each kind is made of this (kinds.py)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from datetime import tzinfo
from pathlib import Path
from typing import Any, TypedDict

from raydebug import render
from raydebug.cluster.dashboard import GCS_TIMEOUT_S, Dashboard, why_no_gcs
from raydebug.cluster.runner import LocalRunner, Runner
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError, UsageError

FOLLOW_EVERY_S = 0.5
ENDED = ("dead", "exited")  # a node, a container


class ListedNode(TypedDict):
    """A node in `raydebug ps --json`; `node_id` is Ray's, None where it is not known."""

    node_id: str | None
    ip: str
    role: str
    state: str
    reason: str | None


class Kind:
    """A cluster that raydebug did not start: nothing is known but what its dashboard and gateway answer."""

    next_step = "raydebug run -- python your_program.py"
    services: tuple[str, ...] = ()  # those with logs that `raydebug logs` shows
    zone: tzinfo | None = None  # of the time stamps in Ray's logs; None for this machine's

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def take_down(self) -> list[str]:
        """End what `up` started and forget it; return what would not end."""
        raise UsageError(
            "this cluster is not ended from inside of it",
            cause="RAYDEBUG_DASHBOARD names it: this is a container of its network",
            fix="end it on its host: `raydebug down`, or `docker compose down`",
            code="cluster.joined",
        )

    def is_alive(self) -> bool:
        """Return whether the cluster runs."""
        return True

    def runners(self) -> list[tuple[str, Runner]]:
        """Return where programs can run, by the node's name, head first; the last one is a worker if there is one."""
        return [("this machine", self.runner())]

    def runner(self) -> Runner:
        """Return where the cluster's Python and the user's files are."""
        return LocalRunner(self.cluster.python)

    def runner_at(self, ip: str | None) -> Runner | None:
        """Return where programs run on the node of this address (None: on any node); None if there is no way."""
        return None

    def gpus(self) -> int | None:
        """Return the logical GPUs of all nodes together; None if the cluster does not answer."""
        try:
            nodes = Dashboard(self.cluster).nodes()
        except RaydebugError:
            return None
        return int(sum(node["resources_total"].get("GPU", 0) for node in nodes if node["state"] == "ALIVE"))

    def nodes(self) -> list[ListedNode]:
        """Return the nodes with their state, and the reason if one is not alive."""
        if broken := self.broken_nodes():
            return broken
        host = self.cluster.host
        try:
            why = self.why_gone()
            rows = [] if why else Dashboard(self.cluster).nodes()
        except RaydebugError as failure:
            why = failure.cause
        except TimeoutError:
            return [node_row("head", host, *slow(max([GCS_TIMEOUT_S, *self.silences_s().values()])))]
        if why:
            return [node_row("head", host, "unreachable", why)]
        silences_s = self.silences_s()
        found = []
        for row in rows:
            condition, reason = "alive" if row["state"] == "ALIVE" else "dead", row.get("state_message") or None
            if condition == "alive" and row["node_ip"] in silences_s:
                condition, reason = slow(silences_s[row["node_ip"]])
            role = "head" if row.get("is_head_node") else "worker"
            found.append(node_row(role, row["node_ip"], condition, reason, row["node_id"]))
        return found

    def gateway(self) -> dict[str, object]:
        """Return where the gateway is, whether it is up or down, and why it is down."""
        reason = self.why_gateway_down()
        address = {"host": self.cluster.gateway_host, "port": self.cluster.gateway_port}
        return {**address, "state": "up" if reason is None else "down", "reason": reason}

    def why_gone(self) -> str | None:
        """Return why the head's GCS does not answer; None if it does.

        Raises:
            TimeoutError: it may be slow, or out of reach.
        """
        try:
            reason = why_no_gcs(self.cluster)
        except TimeoutError:  # on a busy machine a dashboard without its GCS says so only after some tries
            programs: list[str] = []
            with contextlib.suppress(RaydebugError, ValueError):
                programs = self.head_programs()
            if not programs or any("/gcs_server" in program for program in programs):
                raise
            reason = "its gcs_server has ended"
        if reason is None:
            return None
        with contextlib.suppress(RaydebugError):  # the engine may be gone too
            return self.why_head_ended() or reason
        return reason

    def why_ended(self) -> str | None:
        """Return why the cluster has ended, by who keeps it; None where it runs, or nobody here can tell.

        Raises:
            RaydebugError: who keeps it cannot be asked.
        """
        heads = [node for node in self.broken_nodes() if node["role"] == "head"]
        return next((node["reason"] or "its head is dead" for node in heads if node["state"] in ENDED), None)

    def head_programs(self) -> list[str]:
        """Return the command lines of the head's processes; empty if they cannot be seen."""
        return []

    def why_head_ended(self) -> str | None:
        """Ask the supervisor or the container why the head ended; None if it has not, or cannot be asked."""
        return None

    def broken_nodes(self) -> list[ListedNode]:
        """Return the nodes of a cluster whose head cannot be asked; empty if it can."""
        return []

    def silences_s(self) -> dict[str, float]:
        """Return the nodes that run and do not answer: seconds since the last answer, by address."""
        return {}

    def why_gateway_down(self) -> str | None:
        """Return why the gateway is down; None while it is up."""
        return None

    def prefork_pool(self) -> dict[str, Any] | None:
        """Return the pre-forked processes; None for a cluster that keeps none."""
        return None

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Print the logs of a service, or of all; `follow` goes on until the user or the cluster ends it."""
        raise UsageError(
            "the logs of this cluster's programs are not here",
            cause="RAYDEBUG_DASHBOARD names it: this is a container of its network",
            fix="on its host: `raydebug logs`, or `docker compose logs`",
            code="cluster.joined",
        )

    def keep_audit_lines(self) -> None:
        """Copy audit lines that would end with the cluster to the user's state folder."""


def print_logs(logs: Mapping[str, Path], service: str | None, is_last: Callable[[], bool]) -> int:
    """Print log files, or that of one service, until they are read for the last time."""
    from raydebug.cluster.growing_log import GrowingLog

    growing = [(part, GrowingLog(path)) for part, path in logs.items() if service in (None, part)]
    while True:
        to_end = is_last()
        for part, log in growing:
            for line in log.read(to_end=to_end):
                render.out(f"{part} | {render.visible(line)}")
        if to_end:
            return Exit.OK
        time.sleep(FOLLOW_EVERY_S)


def slow(silent_s: float) -> tuple[str, str]:
    """Return the state and the reason of a node that does not answer."""
    return "slow", f"slow: no answer for {silent_s:.0f} s"


def node_row(role: str, ip: str, condition: str, reason: str | None, node_id: str | None = None) -> ListedNode:
    """Return a node as `raydebug ps --json` shows it."""
    return {"node_id": node_id, "ip": ip, "role": role, "state": condition, "reason": reason}
