"""Facts about a Ray cluster, asked from inside of it: each node's environment and clock, ports between nodes, a sum.

Run as a job's driver. All tasks and actors ask for no CPU, so that they run beside whatever runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Any

from raydebug.check.probes import Facts
from raydebug.findings import in_a_line

PAIRS_OF_ALL_UP_TO = 16  # beyond, each node connects to the next one only: N x N connections would take minutes
NODE_LIMIT_S = 30.0
CONNECT_LIMIT_S = 5.0
SUM_LIMIT_S = 40.0
GREETING = b"raydebug-check"


def gather(request: Facts) -> Facts:
    """Return the facts of each node, the pairs of nodes that cannot connect, and the result of an all-reduce."""
    os.environ["RAY_DEDUP_LOGS"] = "0"
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    rows = ray.nodes()
    nodes = [{"id": row["NodeID"], "ip": row["NodeManagerAddress"], "alive": bool(row["Alive"]),
              "why": row.get("DeathReasonMessage") or "", "gpus": int(row.get("Resources", {}).get("GPU", 0))}
             for row in rows]  # fmt: skip
    living = [node for node in nodes if node["alive"]]
    _ask_each(ray, living)
    answering = [node for node in living if "facts" in node]
    return {
        "nodes": nodes,
        "unreachable": _find_unreachable(ray, answering) if len(answering) > 1 else [],
        "sum": _sum_over_all(ray, answering, str(request.get("backend", "gloo"))),
    }


def _on(ray: Any, node: Facts) -> Facts:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node["id"], soft=False)}


def _ask_each(ray: Any, nodes: list[Facts]) -> None:
    """Gather each node's facts; the time of request and answer bounds the offset of its clock."""
    look = ray.remote(_look)
    warm = {node["id"]: look.options(**_on(ray, node)).remote() for node in nodes}
    for node in nodes:
        try:
            node["facts"] = ray.get(warm[node["id"]], timeout=NODE_LIMIT_S)["facts"]
            asked = time.time()
            said = ray.get(look.options(**_on(ray, node)).remote(only_time=True), timeout=NODE_LIMIT_S)
            answered = time.time()
            node["clock_off_s"] = round(said["time"] - (asked + answered) / 2, 3)
            node["clock_known_to_s"] = round((answered - asked) / 2, 3)
        except Exception as failure:  # noqa: BLE001 - Ray's many errors of nodes and tasks
            node["silent"] = in_a_line(failure)


def _look(only_time: bool = False) -> Facts:
    if only_time:
        return {"time": time.time()}
    from raydebug.check.probes import env

    return {"facts": env.gather({})}


class _Listener:
    """A listener on a free port of its node, which greets each client and connects to other listeners."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_server((address, 0))  # of its node, as Ray's own: loopback stays loopback
        threading.Thread(target=self._greet, daemon=True).start()

    def port(self) -> int:
        """Return the port that it listens on."""
        return int(self._socket.getsockname()[1])

    def connect(self, address: str, port: int) -> str | None:
        """Return why another listener cannot be reached; None if it greets."""
        try:
            with socket.create_connection((address, port), timeout=CONNECT_LIMIT_S) as to:
                to.settimeout(CONNECT_LIMIT_S)
                said = to.recv(len(GREETING))
        except OSError as failure:
            return str(failure)
        return None if said == GREETING else "something else answered there"

    def _greet(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                caller, _ = self._socket.accept()
                with caller:
                    caller.sendall(GREETING)


def _find_unreachable(ray: Any, nodes: list[Facts]) -> list[Facts]:
    """Return the pairs of nodes of which one does not reach a free port of the other."""
    listeners = {node["id"]: ray.remote(_Listener).options(**_on(ray, node)).remote(node["ip"]) for node in nodes}
    try:
        found = ray.get([one.port.remote() for one in listeners.values()], timeout=NODE_LIMIT_S)
    except Exception as failure:  # noqa: BLE001 - as above
        return [{"from": "the driver", "to": "the nodes", "why": str(failure).partition("\n")[0][:200]}]
    ports = dict(zip(listeners, found, strict=True))
    around = [(a, nodes[(i + 1) % len(nodes)]) for i, a in enumerate(nodes)]
    pairs = [(a, b) for a in nodes for b in nodes if a is not b] if len(nodes) <= PAIRS_OF_ALL_UP_TO else around
    asked = [(a, b, listeners[a["id"]].connect.remote(b["ip"], ports[b["id"]])) for a, b in pairs]
    failed = []
    for a, b, answer in asked:
        try:
            why = ray.get(answer, timeout=NODE_LIMIT_S)
        except Exception as failure:  # noqa: BLE001 - as above
            why = str(failure).partition("\n")[0][:200]
        if why is not None:
            failed.append({"from": a["ip"], "to": b["ip"], "port": ports[b["id"]], "why": why})
    return failed


class _Rank:
    """One process of a group that sums a tensor."""

    def meet(self, address: str, port: int, rank: int, ranks: int, backend: str) -> Facts:
        """Join the group, sum one MiB over all ranks, and return the sum and the duration."""
        from datetime import timedelta

        import torch
        import torch.distributed as group

        device = "cuda" if backend == "nccl" else "cpu"
        limit = timedelta(seconds=SUM_LIMIT_S)
        started = time.monotonic()
        group.init_process_group(
            backend, init_method=f"tcp://{address}:{port}", rank=rank, world_size=ranks, timeout=limit
        )
        try:
            ours = torch.full((256 * 1024,), float(rank + 1), device=device)
            group.all_reduce(ours)
            total = float(ours[-1].item())
        finally:
            group.destroy_process_group()
        return {"total": total, "seconds": round(time.monotonic() - started, 3)}

    def free_port(self, address: str) -> int:
        """Return a port of its node that was free a moment ago."""
        with socket.create_server((address, 0)) as one:
            return int(one.getsockname()[1])


def _sum_over_all(ray: Any, nodes: list[Facts], backend: str) -> Facts:
    """Return how an all-reduce with one process on each node went, as a training's first collective would."""
    if not nodes or any("torch" not in node["facts"]["packages"] for node in nodes):
        return {"skipped": "torch is not installed on every node"}
    gpus = 1 if backend == "nccl" else 0
    nodes = [node for node in nodes if node["gpus"] >= gpus]  # a head without GPUs takes part in no training
    if not nodes:
        return {"skipped": "no node has a GPU"}
    ranks = [ray.remote(_Rank).options(**_on(ray, node), num_gpus=gpus).remote() for node in nodes]
    found: Facts = {"backend": backend, "ranks": len(ranks)}
    try:
        port = ray.get(ranks[0].free_port.remote(nodes[0]["ip"]), timeout=SUM_LIMIT_S)
        answers = [one.meet.remote(nodes[0]["ip"], port, rank, len(ranks), backend) for rank, one in enumerate(ranks)]
        said = ray.get(answers, timeout=2 * SUM_LIMIT_S)
    except Exception as failure:  # noqa: BLE001 - as above
        lines = [line for line in str(failure).splitlines() if line.strip()]
        return {**found, "failed": (lines[-1] if lines else type(failure).__name__).strip()[:300]}
    expected = float(sum(range(1, len(ranks) + 1)))
    return {**found, "right": all(one["total"] == expected for one in said), "seconds": max(o["seconds"] for o in said)}
