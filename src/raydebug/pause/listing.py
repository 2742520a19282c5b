"""Asks a cluster's gateway for its pauses, and words them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from raydebug.cluster.state import STOCK, Cluster
from raydebug.pause.door import ask

Pause = dict[str, Any]


def fetch_pauses(cluster: Cluster) -> list[Pause]:
    """Return the cluster's pauses, oldest first, as `raydebug paused --json` shows them.

    Raises:
        RaydebugError: the gateway (without one, the dashboard) does not answer, or refuses the token.
    """
    if cluster.kind == STOCK:
        from raydebug.pause.stock import fetch_stock_pauses

        return fetch_stock_pauses(cluster)
    pauses: list[Pause] = ask(cluster, "GET", "/pauses")["pauses"]
    return pauses


def fetch_processes(cluster: Cluster) -> list[Pause]:
    """Return the processes of the cluster's jobs that can be paused while they work.

    Raises:
        RaydebugError: the gateway does not answer, or refuses the token.
    """
    processes: list[Pause] = ask(cluster, "GET", "/processes")["processes"]
    return processes


def name_process(process: Pause) -> str:
    """Return what a process is, in a few words: rank, and actor, driver or its title."""
    rank = "" if process.get("rank") is None else f"rank {process['rank']} "
    title = process.get("title") or process.get("argv") or ""
    return f"{rank}{process.get('actor') or ('driver: ' if process.get('is_driver') else '') + title}"


def name_owner(pause: Pause) -> str:
    """Return who paused, in a few words: rank, actor or task, attempt from the second on, pid."""
    rank = "" if pause.get("rank") is None else f"rank {pause['rank']} "
    if pause.get("child_of"):
        return f"{rank}pid {pause.get('pid')}, child of {pause.get('actor') or 'worker'} pid {pause['child_of']}"
    who = pause.get("actor") or pause.get("task") or ("driver" if pause.get("job_id") else "process")
    attempt = f" attempt {pause['attempt']}" if (pause.get("attempt") or 1) > 1 else ""
    return f"{rank}{who}{attempt} pid {pause.get('pid')}"


def name_place(pause: Pause) -> str:
    """Return where it stands: file:line function; an installed package's file without the way to it; ? for unknown."""
    if pause.get("file") is None:
        return "?"
    file = str(pause.get("file")).rpartition("/site-packages/")[2]
    with contextlib.suppress(ValueError):
        file = str(Path(file).relative_to(Path.cwd()))
    return f"{file}:{pause.get('line')} {pause.get('function') or ''}".rstrip()


def age(seconds: float | None) -> str:
    """Return a time span as people say it; ? for an unknown one."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
