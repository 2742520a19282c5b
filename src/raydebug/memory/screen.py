"""What `raydebug memory` shows, from a look and the record of the run. Pure."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from raydebug.memory.growth import Growth, size
from raydebug.memory.look import Look
from raydebug.protocol.messages import ANSWERED
from raydebug.protocol.names import name_process

if TYPE_CHECKING:
    from raydebug.protocol.listings import ListedProcess
    from raydebug.protocol.questions import Holder
    from raydebug.runs.record import Run

COLUMNS = ["process", "pid", "now", "per step", "peak", "shared", "GPU torch", "GPU other", "holds most"]
HERE = "this node"
NAME_CHARS = 50  # of a driver the begin of its command
_SAID = ("rss", "pss", "shared", "peak", "peak_phase", "forked", "gpus")


def per_step(run: Run | None) -> dict[tuple[str, str], float]:
    """Return the change of memory from step to step in bytes, by class and node: the median, of a run's record.

    The record has the workers of one class on a node together (jobs/memory_samples.py).
    """
    found: dict[tuple[str, str], float] = defaultdict(float)
    for process in run.memory if run is not None else ():
        if run is None or " of " in process.process:  # the whole node, or children of a worker
            continue
        before = [bisect_right(process.samples, step["end_s"], key=lambda one: one[0]) for step in run.steps]
        known = [process.samples[count - 1][1] for count in before if count][1:]  # the first step still loads
        if len(known) > 1:
            name = process.process.rpartition(".")[2]  # Ray names `make.<locals>.Worker` with what is around it
            found[name, process.node] += 2**20 * median(v - u for u, v in itertools.pairwise(known))
    return found


def document(look: Look, changes: Mapping[tuple[str, str], float], grown: Sequence[Growth]) -> dict[str, Any]:
    """Return the JSON document: nodes, GPUs, processes with the largest memory first, and what grows."""
    nodes: dict[str, dict[str, Any]] = {}
    gpus: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    processes: list[dict[str, Any]] = []
    alike = Counter(
        (_title(answer["process"]), answer["process"]["ip"] or HERE) for answer in (*look.processes, *look.others)
    )
    for listed in look.processes:
        process: Any = listed["process"]
        answer: dict[str, Any] = {**(listed["answer"] or {})}
        ip = process["ip"] or HERE
        nodes.setdefault(ip, {"node": ip}).update(answer.get("node", {}))
        for gpu in answer.get("gpus", ()):
            gpus[ip, gpu.get("gpu", "?")].append(gpu)
        counted = look.census.get(listed["instance"], {})
        named = _title(process), ip
        processes.append({
            "name": name_process(process), "pid": process["pid"], "node": ip,
            "state": listed["state"], **{key: answer[key] for key in _SAID if key in answer},
            "per_step": changes[named] / alike[named] if named in changes else None,
            "holders": counted.get("holders", [])[:20], "cut": counted.get("cut", False),
        })  # fmt: skip
    processes.sort(key=lambda one: -(one.get("pss") or one.get("rss") or 0))
    return {
        "version": 1, "step": look.step, "nodes": [*nodes.values()],
        "gpus": [{"node": ip, "gpu": name, **_joined(those)} for (ip, name), those in gpus.items()],
        "processes": processes, "grows": [{**vars(growth), "text": growth.text()} for growth in grown],
    }  # fmt: skip


def _title(process: ListedProcess) -> str:
    """Return the name of a process in the record of its run (jobs/recorder.py), which has actors; else nothing."""
    if process.get("child_of"):
        return ""
    kind = (process["actor"] or "").partition(" ")[0]  # behind it is the name of the actor
    return name_process({"actor": kind, "rank": process["rank"]}) if kind else ""


def _joined(gpus: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Join what processes say of one GPU; `rest` is of no allocator: contexts, NCCL, other people's processes."""
    used, total = (max(gpu.get(key, 0) for gpu in gpus) for key in ("used", "total"))
    torch, pool, asleep = (sum(gpu.get(key, 0) for gpu in gpus) for key in ("reserved", "pool", "asleep"))
    known = sum(map(_on_gpu, gpus))
    return {"used": used, "total": total, "torch": torch, "pool": pool, "asleep": asleep, "rest": max(0, used - known)}


def _on_gpu(gpu: Mapping[str, Any]) -> int:
    return int(gpu.get("reserved", 0) + gpu.get("pool", 0) - gpu.get("asleep", 0))


def node_line(node: Mapping[str, Any]) -> str:
    """Return the memory of a node in one line."""
    if not {"total", "available", "cached"} <= node.keys():
        return f"node {node['node']}"
    inside = f"{size(node['used'])} of {size(node['limit'])}" if "limit" in node and "used" in node else "no limit"
    return (
        f"node {node['node']}   {size(node['total'] - node['available'])} of {size(node['total'])} in use"
        f"   /dev/shm {size(node.get('shm', 0))}   page cache {size(node['cached'])}   container {inside}"
    )


def gpu_line(gpu: Mapping[str, Any]) -> str:
    """Return the memory of a GPU in one line."""
    asleep = f" ({size(gpu['asleep'])} of it sleeps, not on the GPU)" if gpu["asleep"] else ""
    return (
        f"  {gpu['gpu']}   {size(gpu['used'])} of {size(gpu['total'])} in use   torch {size(gpu['torch'])}"
        f"   vLLM's sleep pool {size(gpu['pool'])}{asleep}   the rest {size(gpu['rest'])}"
    )


def process_row(process: Mapping[str, Any]) -> list[str]:
    """Return the cells of a process, for COLUMNS."""
    name = process["name"]
    begin = [name if len(name) <= NAME_CHARS else f"{name[:NAME_CHARS]}...", str(process["pid"])]
    if process["state"] != ANSWERED:
        return [*begin, process["state"], *[""] * (len(COLUMNS) - 3)]
    torch = sum(gpu.get("reserved", 0) for gpu in process.get("gpus", ()))
    other = sum(max(gpu.get("own", 0), _on_gpu(gpu)) - gpu.get("reserved", 0) for gpu in process.get("gpus", ()))
    change = process["per_step"]
    return [
        *begin,
        size(process.get("pss") or process.get("rss", 0)),
        "" if change is None else f"{'-' if change < 0 else '+'}{size(abs(change))}",
        size(process.get("peak", 0)) + (f" in {process['peak_phase']}" if process.get("peak_phase") else ""),
        size(process.get("shared", 0)),
        size(torch) if torch else "",
        size(other) if other else "",
        holder_text(process["holders"][0]) if process["holders"] else "",
    ]


def holder_text(holder: Holder) -> str:
    """Return what is held under a name."""
    what = f" {holder['what']}" if holder["kind"] not in ("objects", "graph") else ""
    return f"{holder['holder']}: {holder['count']} {holder['kind']}{what}, {size(holder['bytes'])}"
