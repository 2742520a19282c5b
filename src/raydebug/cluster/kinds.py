"""What can be seen and done of a cluster, by its kind."""

from __future__ import annotations

import contextlib
import json
import time
from datetime import UTC
from pathlib import Path
from typing import Any, ClassVar

from raydebug import render
from raydebug.cluster import audit_log, rendezvous, state
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.kind import FOLLOW_EVERY_S, Kind, ListedNode, node_row, print_logs, slow
from raydebug.cluster.rendezvous import NodeState
from raydebug.cluster.runner import ContainerRunner, NodeRunner, Runner
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError, UsageError

CONTAINER_ENDS_S = 1.5
REMEMBERED = 4096  # characters by which the place in a log is found again


class LocalKind(Kind):
    """A cluster of processes on this machine, kept by its supervisor."""

    LOGS: ClassVar = {"head": "ray.log", "gateway": "gateway.log"}
    services = tuple(LOGS)

    def take_down(self) -> list[str]:
        from raydebug.cluster import local

        return [f"pid {pid}" for pid in local.take_down(self.cluster)]

    def is_alive(self) -> bool:
        from raydebug.cluster import local

        return local.is_alive(self.cluster)

    def runner_at(self, ip: str | None) -> Runner | None:
        return self.runner()

    def gpus(self) -> int | None:
        return self.cluster.gpus

    def head_programs(self) -> list[str]:
        from raydebug.cluster import local

        return local.programs(self.cluster)

    def why_head_ended(self) -> str | None:
        if not self.is_alive():
            return "its supervisor is gone (killed, or the machine was restarted)"
        return state.read_status(self.cluster).get("reason")

    def broken_nodes(self) -> list[ListedNode]:
        """Return the head as the supervisor sees it, unless it is up and answers."""
        host = self.cluster.host
        if not self.is_alive():
            return [node_row("head", host, "dead", self.why_head_ended())]
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
        logs = {part: self.cluster.folder / name for part, name in self.LOGS.items()}
        return print_logs(logs, service, lambda: not follow or not self.is_alive())


class ByHandKind(Kind):
    """A cluster of containers that docker compose started without raydebug."""

    next_step = "docker compose run --rm job python your_program.py"
    services = ("head", "worker", "gateway")
    zone = UTC

    @property
    def _compose(self) -> Any:
        """What knows containers; verbs for other clusters start without it."""
        from raydebug.cluster.compose import project

        return project

    def take_down(self) -> list[str]:
        name = self.cluster.name
        raise UsageError(
            f"cluster '{name}' was not started by raydebug",
            cause=f"docker compose started it, as project '{name}'",
            fix=f"docker compose --project-name {name} down --remove-orphans",
            code="cluster.by-hand",
        )

    def runner(self) -> Runner:
        return ContainerRunner(self.cluster)

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        code: int = self._compose.show_logs(self.cluster, service, follow=follow)
        return code


class ComposeKind(ByHandKind):
    """A cluster of containers that `up` started."""

    next_step = Kind.next_step

    def take_down(self) -> list[str]:
        from raydebug.cluster.compose.lifecycle import take_down

        return take_down(self.cluster)

    def is_alive(self) -> bool:
        return any(c.service == "head" and c.state == "running" for c in self._containers())

    def runners(self) -> list[tuple[str, Runner]]:
        nodes = [c for c in self._containers() if c.service in ("head", "worker") and c.state == "running"]
        found: list[tuple[str, Runner]] = [(c.name, ContainerRunner(self.cluster, c.name)) for c in nodes]
        return found or [("head", self.runner())]

    def runner_at(self, ip: str | None) -> Runner | None:
        """Return the running container with this address."""
        found = [c for c in self._containers() if c.state == "running" and ip in (None, c.address)]
        return ContainerRunner(self.cluster, found[0].name) if found else None

    def head_programs(self) -> list[str]:
        programs: list[str] = self._compose.programs_of_head(self.cluster)
        return programs

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
        found = self._containers()
        heads = [c for c in found if c.service == "head"]
        if heads and heads[0].state == "running":
            return []
        nodes = [node_row(c.service, c.address, c.state, self._compose.explain(c)) for c in found]
        return nodes or [node_row("head", self.cluster.host, "dead", "its containers are gone")]

    def silences_s(self) -> dict[str, float]:
        """Return for how long health checks of nodes have failed."""
        return {c.address: c.silent_s for c in self._containers() if c.service != "gateway" and c.silent_s}

    def why_gateway_down(self) -> str | None:
        return self._why_down("gateway", "its container is gone")

    def keep_audit_lines(self) -> None:
        self._compose.keep_audit_lines(self.cluster)

    def _why_down(self, service: str, gone: str) -> str | None:
        found = [c for c in self._containers() if c.service == service]
        return self._compose.explain(found[0]) if found else gone

    def _containers(self) -> list[Any]:
        found: list[Any] = self._compose.containers(self.cluster)
        return found


class JoinedKind(Kind):
    """A Ray cluster that runs already, and `up --join` has joined: the gateway is a job there."""

    services: tuple[str, ...] = ("gateway",)

    def take_down(self) -> list[str]:
        """Stop the gateway and remove the token's files; the cluster stays."""
        from raydebug.cluster import joined

        return joined.leave(self.cluster)

    def runner(self) -> Runner:
        return NodeRunner(self.cluster, self.cluster.remote.head)

    def runners(self) -> list[tuple[str, Runner]]:
        alive = Dashboard(self.cluster).living_nodes()
        return [(node["node_ip"], NodeRunner(self.cluster, node["node_ip"])) for node in alive]

    def runner_at(self, ip: str | None) -> Runner | None:
        return NodeRunner(self.cluster, ip or self.cluster.remote.head)

    def why_gateway_down(self) -> str | None:
        from raydebug.cluster import joined

        try:
            return joined.why_gateway_down(self.cluster)
        except RaydebugError as error:  # with its nodes the cluster itself does not answer
            return error.cause if error.code != "auth.wrong-token" else f"{error.cause}; {error.fix}"

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Print the log of the gateway's job; its end ends `follow`."""
        shown = ""  # the log that was printed
        while True:
            is_over = not follow or self.why_gateway_down() is not None
            log = Dashboard(self.cluster).job_logs(self.cluster.remote.job)
            if not is_over:
                log = log[: log.rfind("\n") + 1]
            # Of a long log only the end is sent, which may begin later than the one before. Lines may repeat: better
            # some of them twice than one that is not shown.
            place = shown if log.startswith(shown) else shown[-REMEMBERED:]
            fresh = log.partition(place)[2] if place and place in log else log
            for line in fresh.removesuffix("\n").split("\n") if fresh else ():
                render.out(f"gateway | {render.visible(line)}")
            shown = log
            if is_over:
                return Exit.OK
            time.sleep(max(FOLLOW_EVERY_S, self.cluster.least_poll_s))

    def keep_audit_lines(self) -> None:
        from raydebug.cluster import joined

        joined.keep_audit_lines(self.cluster)


class NodesKind(JoinedKind):
    """A cluster of `raydebug node` that `up --join` has joined: each node says in the folder how it is.

    A folder that was copied to this machine has no such states: then Ray's own table alone is known.
    """

    services = ("head", "gateway")

    @property
    def _folder(self) -> Path:
        return Path(self.cluster.remote.node_folder)

    def take_down(self) -> list[str]:
        """Forget it; its nodes run on."""
        from raydebug.cluster.tunnel import close_way

        self.keep_audit_lines()
        close_way(self.cluster)
        state.forget(self.cluster)
        return []

    def is_alive(self) -> bool:
        head = rendezvous.find_head(self._folder)
        return head is not None and head["id"] == self.cluster.id

    def node_states(self) -> list[NodeState]:
        return rendezvous.list_nodes(self._folder)

    def why_gone(self) -> str | None:
        """Return None where the head's node program watches the GCS: it has said so (`broken_nodes`)."""
        return None if self.node_states() else super().why_gone()

    def why_ended(self) -> str | None:
        return super().why_ended() or (None if self.is_alive() else f"no head is in {self._folder} any more")

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
        states = self.node_states()
        if not states:
            return None
        head = next((node for node in states if node["role"] == "head"), None)
        if head is None or head["phase"] != rendezvous.UP:
            return f"its head is not up{': ' + head['phase'] if head else ''}"
        return head["gateway"]

    def show_logs(self, service: str | None, *, follow: bool) -> int:
        """Print the logs in the folder; the end of the head ends `follow`."""
        head = next((node["host"] for node in self.node_states() if node["role"] == "head"), None)
        if head is None:
            raise UsageError(
                "the logs of this cluster are not here", cause=f"{self._folder} is a copy of a folder on its head",
                fix="read gateway.log and nodes/*.log in the folder of `raydebug node --head` there",
                code="cluster.joined",
            )  # fmt: skip
        logs = {"head": self._folder / rendezvous.NODES / f"{head}.log", "gateway": self._folder / "gateway.log"}
        return print_logs(logs, service, lambda: not follow or not self.is_alive())

    def keep_audit_lines(self) -> None:
        with contextlib.suppress(OSError):
            log = (self._folder / "gateway.log").read_text(encoding="utf-8", errors="replace")
            audit_log.keep(self.cluster.name, log.splitlines())


def kind_of(cluster: Cluster) -> Kind:
    """Return what can be seen and done of a cluster."""
    if cluster.is_of_nodes:
        return NodesKind(cluster) if cluster.remote.node_folder else JoinedKind(cluster)
    here: dict[str, type[Kind]] = {"local": LocalKind, "compose": ComposeKind, "by-hand": ByHandKind}
    return here.get(cluster.kind, Kind)(cluster)


def find_running(name: str) -> Cluster | None:
    """Return the cluster of this name if it is alive."""
    from raydebug.cluster.find import find_cluster

    found = find_cluster(name)
    return found if found is not None and kind_of(found).is_alive() else None


def _memory_mib(pid: int) -> tuple[int, int]:
    import psutil

    try:
        memory = psutil.Process(pid).memory_full_info()
    except psutil.Error:
        return 0, 0
    return memory.uss >> 20, (memory.rss - memory.uss) >> 20


def _row_of(node: NodeState) -> ListedNode:
    conditions = {rendezvous.UP: "alive", rendezvous.FAILED: "dead", rendezvous.ENDED: "dead"}
    condition = conditions.get(node["phase"], "starting")
    return node_row(node["role"], node["ip"], condition, node["reason"] or node["phase"])
