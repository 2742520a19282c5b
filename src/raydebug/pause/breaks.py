"""Breakpoints from outside: what they name, asked in the cluster; and the gateway's list of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from raydebug.cluster.place import Place
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.pause.door import ask
from raydebug.pause.policy import read_break

Break = dict[str, Any]


def resolve_breaks(texts: list[str], *, place: Place, working_dir: Path) -> list[Break]:
    """Return what each breakpoint names and when it stops, for the processes of a job.

    Args:
        texts: `WHERE[,CONDITION...]` (pause/policy.py); WHERE is `file.py:LINE`, `file.py:function`,
            `package.module:function` or `package.module:Class.method`.
        place: where the cluster's Python is.
        working_dir: where the job runs, on this machine.

    Raises:
        RaydebugError: one of them cannot be read, or names nothing.
    """
    if not texts:
        return []
    read = [read_break(text) for text in texts]
    answer = place.run_python(["-m", "raydebug.worker.locate", *(where for where, _ in read)], working_dir)
    found: list[Break] = json.loads(answer.strip().splitlines()[-1])
    for one in found:
        if "cause" in one:
            raise RaydebugError(
                f"--break {one['where']} names nothing",
                cause=one["cause"],
                fix=one["fix"],
                code="break.nothing",
                exit_code=Exit.USAGE,
            )
    return [{**one, "policy": policy} for one, (_, policy) in zip(found, read, strict=True)]


def set_breaks(cluster: Cluster, breaks: list[Break], *, job: str | None = None) -> list[Break]:
    """Set breakpoints in every process of a job (of all jobs without one), and return them with their ids.

    Raises:
        RaydebugError: the gateway does not answer.
    """
    added: list[Break] = ask(cluster, "POST", "/breaks", {"breaks": breaks, "job": job})["breaks"] if breaks else []
    return added


def fetch_breaks(cluster: Cluster) -> list[Break]:
    """Return every breakpoint that was set from outside, with its state in each process."""
    breaks: list[Break] = ask(cluster, "GET", "/breaks")["breaks"]
    return breaks


def remove_break(cluster: Cluster, break_id: str) -> None:
    """Remove a breakpoint from the processes that have it and from those that start later.

    Raises:
        RaydebugError: there is no such breakpoint.
    """
    if not ask(cluster, "DELETE", f"/breaks/{quote(break_id, safe='')}")["removed"]:
        raise RaydebugError(
            f"there is no breakpoint '{break_id}'",
            cause="it was removed, or there never was one; those of a job go with it",
            fix="see `raydebug break list`",
            code="break.unknown",
            exit_code=Exit.USAGE,
        )


def forget_job(cluster: Cluster, job: str) -> None:
    """Remove the breakpoints of a job that has ended."""
    ask(cluster, "DELETE", f"/jobs/{quote(job, safe='')}")


def sum_up(one: Break) -> str:
    """Return how a breakpoint stands in the processes that it concerns, in a few words."""
    states = [p["state"] for p in one["processes"]]
    if not states:
        return "no process of a job is there yet"
    counts = {state: states.count(state) for state in ("set", "waiting", "told", "failed")}
    words = [_STATES[state].format(count) for state, count in counts.items() if count]
    notes = sorted(
        {p["message"] for p in one["processes"] if p["state"] == "failed" or (p["state"] == "set" and p["message"])}
    )
    return ", ".join(words) + "".join(f"; {note}" for note in notes)


_STATES = {
    "set": "set in {}",
    "waiting": "not loaded yet in {}",
    "told": "told to {}",
    "failed": "failed in {}",
}
