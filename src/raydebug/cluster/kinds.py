"""What can be seen and done of a cluster, by its kind; those on other machines are in remote_kinds.py."""

from __future__ import annotations

import json
import time
from datetime import UTC
from typing import Any, ClassVar

from raydebug.cluster import state
from raydebug.cluster.kind import Kind, ListedNode, node_row, print_logs, slow
from raydebug.cluster.runner import ContainerRunner, Runner
from raydebug.cluster.state import Cluster
from raydebug.errors import UsageError

CONTAINER_ENDS_S = 1.5


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
        return print_logs(logs, service, lambda: not follow or not self.is_alive())


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


def kind_of(cluster: Cluster) -> Kind:
    """Return what can be seen and done of a cluster."""
    if cluster.is_of_nodes:
        from raydebug.cluster.remote_kinds import JoinedKind, NodesKind

        return NodesKind(cluster) if cluster.there.node_folder else JoinedKind(cluster)
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
