"""What can be seen and done of a cluster on other machines, by its kind: joined, of Slurm, or started by ssh."""

from __future__ import annotations

import abc
import contextlib
import functools
import math
import time
from pathlib import Path

from raydebug import render
from raydebug.cluster import audit_log, hosts, joined, rendezvous, slurm
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.kind import FOLLOW_EVERY_S, Kind, ListedNode, node_row, print_logs
from raydebug.cluster.on_host import LOG
from raydebug.cluster.rendezvous import NodeState
from raydebug.cluster.runner import NodeRunner, Runner
from raydebug.errors import Exit, RaydebugError

ASK_SLURM_S = 10.0
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


class NodesKind(JoinedKind, abc.ABC):
    """A cluster of node programs (node.py), each of which says how it is."""

    @abc.abstractmethod
    def node_states(self) -> list[NodeState]:
        """Return how each node is, by its own words."""

    def why_gone(self) -> str | None:
        """Return None: the head's node program watches the GCS, and has said so (`broken_nodes`)."""
        return None

    def broken_nodes(self) -> list[ListedNode]:
        """Return the nodes as they say, unless the head is up."""
        found = self.node_states()
        if any(one["role"] == "head" and one["phase"] == rendezvous.UP for one in found):
            return []
        return [_row_of(one) for one in found] or [node_row("head", "", "starting", "it has not begun")]

    def nodes(self) -> list[ListedNode]:
        """Return the nodes of Ray's table, and those that are not in it (yet); a dead one has its own reason."""
        rows = super().nodes()
        unmatched = [*rows]  # each is one node's: several may have no address yet, "?"
        for one in self.node_states():
            row = next((row for row in unmatched if row["ip"] == one["ip"]), None)
            if row is None:
                rows.append(_row_of(one))
                continue
            unmatched.remove(row)
            if row["state"] == "dead":
                row["reason"] = one["reason"] or row["reason"]
        return rows

    def why_gateway_down(self) -> str | None:
        """Return what the head says."""
        head = next((one for one in self.node_states() if one["role"] == "head"), None)
        if head is None or head["phase"] != rendezvous.UP:
            return f"its head is not up{': ' + head['phase'] if head else ''}"
        return head["gateway"]


class SlurmKind(NodesKind):
    """A cluster that is a job of Slurm, or in one."""

    services = ("head", "gateway", "nodes")
    _said: tuple[float, str | None] = (-math.inf, None)

    def take_down(self) -> list[str]:
        """Cancel the job; one of the user's own runs on."""
        self.keep_audit_lines()
        return slurm.take_down(self.cluster)

    def _why_not_running(self) -> str | None:
        """Return what Slurm has said within the last ASK_SLURM_S: one controller serves the whole site."""
        if time.monotonic() > self._said[0] + ASK_SLURM_S:
            self._said = time.monotonic(), slurm.why_not_running(self.cluster)
        return self._said[1]

    def is_alive(self) -> bool:
        """Return whether its job runs, and its head has been up."""
        return bool(self.cluster.there.head) and self._why_not_running() is None

    def node_states(self) -> list[NodeState]:
        """Return what is in the shared folder."""
        return rendezvous.list_nodes(Path(self.cluster.there.folder))

    def broken_nodes(self) -> list[ListedNode]:
        """Return why the job does not run, of each node; the nodes unless the head is up."""
        why, head = self._why_not_running(), self.cluster.there.head
        if why is None:
            return super().broken_nodes()
        nodes = [(one["role"], one["ip"]) for one in self.node_states()] or [("head", head)]
        return [node_row(role, ip, "dead" if head else "pending", why) for role, ip in nodes]

    def why_gateway_down(self) -> str | None:
        """Return why the job does not run, or what the head says."""
        return self._why_not_running() or super().why_gateway_down()

    def _logs(self) -> dict[str, Path]:
        """Return what Ray's head, the gateway and all nodes write to the shared folder."""
        folder = Path(self.cluster.there.folder)
        heads = [one["host"] for one in self.node_states() if one["role"] == "head"]
        logs = {"head": folder / rendezvous.NODES / f"{(heads or ['head'])[0]}.log"}
        return logs | {"gateway": folder / "gateway.log", "nodes": folder / slurm.LOG}

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Print the logs; the end of the job ends `follow`."""
        return print_logs(self._logs(), service, lambda: not follow or not self.is_alive())

    def log_of(self, service: str) -> str:
        """Return a log; empty where it cannot be read."""
        with contextlib.suppress(OSError):
            return self._logs()[service].read_text(encoding="utf-8", errors="replace")
        return ""


class SshKind(NodesKind):
    """A cluster that `up` has started by ssh on the hosts of a file."""

    services = ("head", "gateway")

    def take_down(self) -> list[str]:
        """End it on all hosts."""
        self.keep_audit_lines()
        return hosts.take_down(self.cluster)

    def node_states(self) -> list[NodeState]:
        """Ask all hosts, once: one that is lost answers after 10 s."""
        return self._states

    @functools.cached_property
    def _states(self) -> list[NodeState]:
        return self._ask(None)

    def _ask(self, names: list[str] | None) -> list[NodeState]:
        """Return how nodes are, by their hosts' words, the head first; a host may be out of reach."""
        found, ips = [], dict(enumerate(self.cluster.there.launched.get("ips", "").split()))
        for number, (host, answer) in enumerate(hosts.ask_hosts(self.cluster, "read", names).items()):
            node, problem = answer.get("node", {}), answer.get("problem")
            phase, reason = node.get("phase", "starting"), node.get("reason")
            if problem:
                is_gone = bool(node) or "gone" in answer
                phase, reason = rendezvous.FAILED if is_gone else rendezvous.UNREACHABLE, f"{host}: {problem}"
            ip, gateway = node.get("ip") or ips.get(number, host), node.get("gateway")
            found.append(rendezvous.state_of(host, ip, phase, is_head=number == 0, reason=reason, gateway=gateway))
        return found

    def why_gateway_down(self) -> str | None:
        """Ask the head alone."""
        (head,) = self._ask(hosts.hosts_of(self.cluster)[:1])
        return head["gateway"] if head["phase"] == rendezvous.UP else head["reason"] or f"its head is {head['phase']}"

    def log_of(self, service: str) -> str:
        """Return the end of a log on the head; empty where it cannot be read."""
        head = hosts.hosts_of(self.cluster)[0]
        file = "gateway.log" if service == "gateway" else self.cluster.there.launched.get("log", LOG)
        return hosts.ask_hosts(self.cluster, "log", [head], file=file)[head].get("log", "")


def _row_of(node: NodeState) -> ListedNode:
    known = {rendezvous.UP: "alive", rendezvous.UNREACHABLE: "unreachable"}
    known |= dict.fromkeys((rendezvous.FAILED, rendezvous.ENDED), "dead")
    condition = known.get(node["phase"], "starting")
    return node_row(node["role"], node["ip"], condition, node["reason"] or node["phase"])
