"""What can be seen and done of a cluster that `up --join` has joined: by its dashboard, or by its nodes' folder."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from raydebug import render
from raydebug.cluster import audit_log, joined, rendezvous
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.kind import FOLLOW_EVERY_S, Kind, ListedNode, node_row, print_logs
from raydebug.cluster.node_cluster import leave_folder
from raydebug.cluster.rendezvous import NodeState
from raydebug.cluster.runner import NodeRunner, Runner
from raydebug.errors import Exit, RaydebugError, UsageError

REMEMBERED = 4096  # characters by which the place in a log is found again


class JoinedKind(Kind):
    """A Ray cluster that runs already, and `up --join` has joined: the gateway is a job there."""

    services: tuple[str, ...] = ("gateway",)

    def take_down(self) -> list[str]:
        """Stop the gateway and remove the token's files; the cluster stays."""
        return joined.leave(self.cluster)

    def runner(self) -> Runner:
        """Return the head."""
        return NodeRunner(self.cluster, self.cluster.there.head)

    def runners(self) -> list[tuple[str, Runner]]:
        """Return the nodes that are alive."""
        alive = Dashboard(self.cluster).living_nodes()
        return [(node["node_ip"], NodeRunner(self.cluster, node["node_ip"])) for node in alive]

    def runner_at(self, ip: str | None) -> Runner | None:
        """Return the node."""
        return NodeRunner(self.cluster, ip or self.cluster.there.head)

    def why_gateway_down(self) -> str | None:
        """Return what became of the gateway's job."""
        try:
            return joined.why_gateway_down(self.cluster)
        except RaydebugError as error:  # with its nodes the cluster itself does not answer
            return error.cause if error.code != "auth.wrong-token" else f"{error.cause}; {error.fix}"

    def log_of(self, service: str) -> str:
        """Return the log of the gateway's job."""
        return Dashboard(self.cluster).job_logs(self.cluster.there.job)

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Print the logs; the gateway's end ends `follow`."""
        shown = {part: "" for part in self.services if service in (None, part)}  # the end of what was printed
        while True:
            is_over = not follow or self.why_gateway_down() is not None
            for part, before in shown.items():
                log = self.log_of(part)
                if not is_over:
                    log = log[: log.rfind("\n") + 1]
                # A host sends the end of a log only: it may begin later than the one before.
                fresh = log.rpartition(before)[2] if before else log
                for line in fresh.splitlines():
                    render.out(f"{part} | {render.visible(line)}")
                shown[part] = (before + fresh)[-REMEMBERED:]
            if is_over:
                return Exit.OK
            time.sleep(max(FOLLOW_EVERY_S, self.cluster.least_poll_s))

    def keep_audit_lines(self) -> None:
        """Copy the gateway's audit lines from its log, which ends with it."""
        with contextlib.suppress(RaydebugError):
            audit_log.keep(self.cluster.name, self.log_of("gateway").splitlines())


class NodesKind(JoinedKind):
    """A cluster of `raydebug node` that `up --join` has joined: each node says in the folder how it is.

    A folder that was copied to this machine has no such states: then Ray's own table alone is known.
    """

    services = ("head", "gateway")

    @property
    def _folder(self) -> Path:
        return Path(self.cluster.there.node_folder)

    def take_down(self) -> list[str]:
        """Forget it; its nodes run on."""
        self.keep_audit_lines()
        leave_folder(self.cluster)
        return []

    def is_alive(self) -> bool:
        """Return whether its head has not ended."""
        head = rendezvous.find_head(self._folder)
        return head is not None and head["id"] == self.cluster.id

    def node_states(self) -> list[NodeState]:
        """Return how each node is, by its own words."""
        return rendezvous.list_nodes(self._folder)

    def why_gone(self) -> str | None:
        """Return None where the head's node program watches the GCS: it has said so (`broken_nodes`)."""
        return None if self.node_states() else super().why_gone()

    def broken_nodes(self) -> list[ListedNode]:
        """Return the nodes as they say, unless the head is up."""
        states = self.node_states()
        is_up = any(node["role"] == "head" and node["phase"] == rendezvous.UP for node in states)
        return [] if is_up else [_row_of(node) for node in states]

    def nodes(self) -> list[ListedNode]:
        """Return the nodes of Ray's table, and those that are not in it (yet); a dead one has its own reason."""
        rows = super().nodes()
        unmatched = [*rows]  # each is one node's: several may have no address yet, "?"
        for node in self.node_states():
            row = next((row for row in unmatched if row["ip"] == node["ip"]), None)
            if row is None:
                rows.append(_row_of(node))
                continue
            unmatched.remove(row)
            if row["state"] == "dead":
                row["reason"] = node["reason"] or row["reason"]
        return rows

    def why_gateway_down(self) -> str | None:
        """Return what the head says."""
        states = self.node_states()
        head = next((node for node in states if node["role"] == "head"), None)
        if not states:
            return None
        if head is None or head["phase"] != rendezvous.UP:
            return f"its head is not up{': ' + head['phase'] if head else ''}"
        return head["gateway"]

    def _logs(self) -> dict[str, Path]:
        heads = [node["host"] for node in self.node_states() if node["role"] == "head"]
        if not heads:
            return {}
        return {
            "head": self._folder / rendezvous.NODES / f"{heads[0]}.log", "gateway": self._folder / "gateway.log"
        }  # fmt: skip

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Print the logs in the folder; the end of the head ends `follow`."""
        if not (logs := self._logs()):
            raise UsageError(
                "the logs of this cluster are not here", cause=f"{self._folder} is a copy of a folder on its head",
                fix="read gateway.log and nodes/*.log in the folder of `raydebug node --head` there",
                code="cluster.joined",
            )  # fmt: skip
        return print_logs(logs, service, lambda: not follow or not self.is_alive())

    def log_of(self, service: str) -> str:
        """Return a log; empty where it cannot be read."""
        with contextlib.suppress(OSError, KeyError):
            return self._logs()[service].read_text(encoding="utf-8", errors="replace")
        return ""


def _row_of(node: NodeState) -> ListedNode:
    conditions = {rendezvous.UP: "alive", rendezvous.FAILED: "dead", rendezvous.ENDED: "dead"}
    condition = conditions.get(node["phase"], "starting")
    return node_row(node["role"], node["ip"], condition, node["reason"] or node["phase"])
