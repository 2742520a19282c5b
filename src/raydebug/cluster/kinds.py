"""What can be seen and done of a cluster, by its kind."""

from __future__ import annotations

import abc
import contextlib
import functools
import json
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from raydebug import render
from raydebug.cluster import rendezvous, state
from raydebug.cluster.dashboard import GCS_TIMEOUT_S, Dashboard, why_no_gcs
from raydebug.cluster.growing_log import GrowingLog
from raydebug.cluster.rendezvous import NodeState
from raydebug.cluster.runner import ContainerRunner, LocalRunner, NodeRunner, Runner
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError, UsageError

CONTAINER_ENDS_S = 1.5
FOLLOW_EVERY_S, ASK_SLURM_S = 0.5, 10.0


class ListedNode(TypedDict):
    """A node in `raydebug ps --json`; `node_id` is Ray's, None where it is not known."""

    node_id: str | None
    ip: str
    role: str
    state: str
    reason: str | None


class Kind:
    """A cluster that raydebug did not start: nothing is known but what its dashboard and gateway answer."""

    next_step = "raydebug run{name} -- python your_program.py"
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


class LocalKind(Kind):
    """A cluster of processes on this machine, kept by its supervisor."""

    LOGS: ClassVar = {"head": "ray.log", "gateway": "gateway.log"}
    services = tuple(LOGS)

    def take_down(self) -> list[str]:
        """End the supervisor and all processes of the cluster."""
        from raydebug.cluster import local

        return [f"pid {pid}" for pid in local.take_down(self.cluster)]

    def is_alive(self) -> bool:
        """Return whether the supervisor runs."""
        from raydebug.cluster import local

        return local.is_alive(self.cluster)

    def runner_at(self, ip: str | None) -> Runner | None:
        """Return this machine."""
        return self.runner()

    def gpus(self) -> int | None:
        """Return the logical GPUs that `up` has given it."""
        return self.cluster.gpus

    def head_programs(self) -> list[str]:
        """Return the command lines of the cluster's processes."""
        from raydebug.cluster import local

        return local.programs(self.cluster)

    def why_head_ended(self) -> str | None:
        """Return the reason in the supervisor's status."""
        if not self.is_alive():
            return "its supervisor is gone (killed, or the machine was restarted)"
        return state.read_status(self.cluster).get("reason")

    def broken_nodes(self) -> list[ListedNode]:
        """Return the head as the supervisor sees it, unless it is up and answers."""
        host = self.cluster.host
        if not self.is_alive():
            return [node_row("head", host, "dead", "its supervisor is gone (killed, or the machine was restarted)")]
        status = state.read_status(self.cluster)
        if status["phase"] != "up":
            condition = "dead" if status["phase"] == "dead" else "starting"
            return [node_row("head", host, condition, status["reason"] or status["phase"])]
        ray = status.get("ray")
        if not ray:
            return []
        if ray["state"] == "hung":
            return [node_row("head", host, "hung", f"hung: {ray['reason']}")]
        return [node_row("head", host, *slow(time.time() - ray["since"]))]

    def why_gateway_down(self) -> str | None:
        """Return the reason in the supervisor's status."""
        status = state.read_status(self.cluster)
        if not self.is_alive() or status["phase"] == "dead":
            return "it ended with the cluster"
        return status.get("gateway")

    def prefork_pool(self) -> dict[str, Any] | None:
        """Return the pool's own document, with the memory in MiB of each process.

        Own memory is what a process alone holds; shared memory is held by its forks too, and counts once.
        """
        if not self.cluster.prefork:
            return None
        try:
            pool: dict[str, Any] = json.loads(self.cluster.pool_status.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"pid": None, "zygotes": [], "cold": 0, "last_cold": []}
        for zygote in pool["zygotes"]:
            zygote["own_mib"], zygote["shared_mib"] = _memory_mib(zygote["pid"])
        return pool

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Print Ray's and the gateway's log files; the end of the cluster ends `follow`."""
        logs = {part: self.cluster.folder / name for part, name in self.LOGS.items()}
        return _print_logs(logs, service, lambda: not follow or not self.is_alive())


class ComposeKind(Kind):
    """A cluster of containers that `up` started."""

    services = ("head", "worker", "gateway")
    zone = UTC

    def take_down(self) -> list[str]:
        """Remove containers and networks."""
        from raydebug.cluster.compose.lifecycle import take_down

        return take_down(self.cluster)

    def is_alive(self) -> bool:
        """Return whether the head's container runs."""
        return any(c.service == "head" and c.state == "running" for c in self._containers())

    def runner(self) -> Runner:
        """Return the head's container."""
        return ContainerRunner(self.cluster)

    def runners(self) -> list[tuple[str, Runner]]:
        """Return the running containers of nodes."""
        nodes = [c for c in self._containers() if c.service in ("head", "worker") and c.state == "running"]
        found: list[tuple[str, Runner]] = [(c.name, ContainerRunner(self.cluster, c.name)) for c in nodes]
        return found or [("head", self.runner())]

    def runner_at(self, ip: str | None) -> Runner | None:
        """Return the running container with this address."""
        found = [c for c in self._containers() if c.state == "running" and ip in (None, c.address)]
        return ContainerRunner(self.cluster, found[0].name) if found else None

    def head_programs(self) -> list[str]:
        """Return the command lines of the processes in the head's container."""
        from raydebug.cluster.compose.project import programs_of_head

        return programs_of_head(self.cluster)

    def why_head_ended(self) -> str | None:
        """Return why the head's container is not ready, waiting CONTAINER_ENDS_S for its end to be listed."""
        deadline = time.monotonic() + CONTAINER_ENDS_S
        while True:  # for a moment the engine lists a container that ends as running
            why = self._why_down("head", "its containers are gone")
            if why is not None or time.monotonic() > deadline:
                return why
            time.sleep(0.1)

    def broken_nodes(self) -> list[ListedNode]:
        """Return all containers, unless the head's runs."""
        from raydebug.cluster.compose.project import explain

        found = self._containers()
        heads = [c for c in found if c.service == "head"]
        if heads and heads[0].state == "running":
            return []
        nodes = [node_row(c.service, c.address, c.state, explain(c)) for c in found]
        return nodes or [node_row("head", self.cluster.host, "dead", "its containers are gone")]

    def silences_s(self) -> dict[str, float]:
        """Return for how long health checks of nodes have failed."""
        return {c.address: c.silent_s for c in self._containers() if c.service != "gateway" and c.silent_s}

    def why_gateway_down(self) -> str | None:
        """Return what is wrong with the gateway's container."""
        return self._why_down("gateway", "its container is gone")

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Run `docker compose logs`."""
        from raydebug.cluster.compose.project import show_logs

        return show_logs(self.cluster, service, follow=follow)

    def keep_audit_lines(self) -> None:
        """Copy the gateway's audit lines from Docker's log."""
        from raydebug.cluster.compose.project import keep_audit_lines

        keep_audit_lines(self.cluster)

    def _why_down(self, service: str, gone: str) -> str | None:
        from raydebug.cluster.compose.project import explain

        found = [c for c in self._containers() if c.service == service]
        return explain(found[0]) if found else gone

    def _containers(self) -> list[Any]:
        from raydebug.cluster.compose.project import containers

        return containers(self.cluster)


class ByHandKind(Kind):
    """A cluster of containers that docker compose started without raydebug."""

    next_step = "docker compose run --rm job python your_program.py"
    services = ("head", "worker", "gateway")
    zone = UTC

    def take_down(self) -> list[str]:
        """Refuse."""
        name = self.cluster.name
        raise UsageError(
            f"cluster '{name}' was not started by raydebug",
            cause=f"docker compose started it, as project '{name}'",
            fix=f"docker compose --project-name {name} down --remove-orphans",
            code="cluster.by-hand",
        )

    def runner(self) -> Runner:
        """Return the head's container."""
        return ContainerRunner(self.cluster)

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Run `docker compose logs`."""
        from raydebug.cluster.compose.project import show_logs_by_hand

        return show_logs_by_hand(self.cluster.name, service, follow=follow)


class JoinedKind(Kind):
    """A Ray cluster that runs already, and `up --join` has joined: the gateway is a job there."""

    services: tuple[str, ...] = ("gateway",)

    def take_down(self) -> list[str]:
        """Stop the gateway and remove the token's files; the cluster stays."""
        from raydebug.cluster.joined import leave

        return leave(self.cluster)

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
        from raydebug.cluster.joined import why_gateway_down

        try:
            return why_gateway_down(self.cluster)
        except RaydebugError as error:  # with its nodes the cluster itself does not answer
            return error.cause if error.code != "auth.wrong-token" else f"{error.cause}; {error.fix}"

    def log_of(self, service: str) -> str:
        """Return the log of the gateway's job."""
        return Dashboard(self.cluster).job_logs(self.cluster.there.job)

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Print the logs; the gateway's end ends `follow`."""
        shown = {part: 0 for part in self.services if service in (None, part)}
        while True:
            is_over = not follow or self.why_gateway_down() is not None
            for part, before in shown.items():
                lines = self.log_of(part).splitlines()
                for line in lines[before:]:
                    render.out(f"{part} | {render.visible(line)}")
                shown[part] = len(lines)
            if is_over:
                return Exit.OK
            time.sleep(FOLLOW_EVERY_S)

    def keep_audit_lines(self) -> None:
        """Copy the gateway's audit lines from its log, which ends with it."""
        from raydebug.cluster import audit_log

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
        for one in self.node_states():
            row = next((row for row in rows if row["ip"] == one["ip"]), None)
            if row is None:
                rows.append(_row_of(one))
            elif row["state"] == "dead":
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
        from raydebug.cluster import slurm

        self.keep_audit_lines()
        return slurm.take_down(self.cluster)

    def _why_not_running(self) -> str | None:
        """Return what Slurm has said within the last ASK_SLURM_S: one controller serves the whole site."""
        from raydebug.cluster import slurm

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
        from raydebug.cluster import slurm

        folder = Path(self.cluster.there.folder)
        heads = [one["host"] for one in self.node_states() if one["role"] == "head"]
        logs = {"head": folder / rendezvous.NODES / f"{(heads or ['head'])[0]}.log"}
        return logs | {"gateway": folder / "gateway.log", "nodes": folder / slurm.LOG}

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Print the logs; the end of the job ends `follow`."""
        return _print_logs(self._logs(), service, lambda: not follow or not self.is_alive())

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
        from raydebug.cluster import hosts

        self.keep_audit_lines()
        return hosts.take_down(self.cluster)

    @functools.cached_property
    def _states(self) -> list[NodeState]:
        from raydebug.cluster import hosts

        return hosts.node_states(self.cluster)

    def node_states(self) -> list[NodeState]:
        """Ask all hosts, once: one that is lost answers after 10 s."""
        return self._states

    def why_gateway_down(self) -> str | None:
        """Ask the head alone."""
        from raydebug.cluster import hosts

        (head,) = hosts.node_states(self.cluster, hosts.hosts_of(self.cluster)[:1])
        return head["gateway"] if head["phase"] == rendezvous.UP else head["reason"] or f"its head is {head['phase']}"

    def log_of(self, service: str) -> str:
        """Return the end of a log on the head."""
        from raydebug.cluster import hosts

        return hosts.read_log(self.cluster, service)


_KINDS: dict[str, type[Kind]] = {
    "local": LocalKind,
    "compose": ComposeKind,
    "by-hand": ByHandKind,
    "slurm": SlurmKind,
    "ssh": SshKind,
}


def kind_of(cluster: Cluster) -> Kind:
    """Return what can be seen and done of a cluster."""
    if cluster.is_joined:  # the one around a container's terminal is `joined` too, and has no record
        return JoinedKind(cluster)
    return _KINDS.get(cluster.kind, Kind)(cluster)


def find_running(name: str) -> Cluster | None:
    """Return the cluster of this name if it is alive."""
    from raydebug.cluster.find import find_cluster

    found = find_cluster(name)
    return found if found is not None and kind_of(found).is_alive() else None


def _row_of(node: NodeState) -> ListedNode:
    known = {rendezvous.UP: "alive", rendezvous.UNREACHABLE: "unreachable"}
    known |= dict.fromkeys((rendezvous.FAILED, rendezvous.ENDED), "dead")
    condition = known.get(node["phase"], "starting")
    return node_row(node["role"], node["ip"], condition, node["reason"] or node["phase"])


def _print_logs(logs: Mapping[str, Path], service: str | None, is_last: Callable[[], bool]) -> int:
    """Print log files, or that of one service, until they are read for the last time."""
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


def _memory_mib(pid: int) -> tuple[int, int]:
    import psutil

    try:
        memory = psutil.Process(pid).memory_full_info()
    except psutil.Error:
        return 0, 0
    return memory.uss >> 20, (memory.rss - memory.uss) >> 20
