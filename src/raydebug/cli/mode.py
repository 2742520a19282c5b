"""`raydebug mode`: which debugger is live, in the cluster and in each of its jobs, and where that came from."""

from __future__ import annotations

from typing import Any

from raydebug import render
from raydebug.cli.options import Json, Name


def mode(name: Name = "default", as_json: Json = False) -> None:
    """Show which debugger is live in the cluster and in each running job, and where that came from.

    Example: raydebug mode --json
    """
    from raydebug.cluster import state
    from raydebug.cluster.dashboard import ENDED, Dashboard
    from raydebug.settings.debugger import mode_variables

    cluster = state.load_cluster(name)
    live = [_line("cluster", mode_variables(cluster.debugger), "raydebug up")]
    for job in Dashboard(cluster).jobs():
        if job["status"] in ENDED or not job.get("submission_id"):
            continue
        own = (job.get("runtime_env") or {}).get("env_vars") or {}
        variables = {**mode_variables(cluster.debugger), **{k: v for k, v in own.items() if k.startswith("RAY_DEBUG")}}
        origin = "raydebug run --debugger" if any(k.startswith("RAY_DEBUG") for k in own) else "the cluster"
        live.append(_line(job["submission_id"], variables, origin))
    if as_json:
        render.out_json({"version": 1, "modes": live})
        return
    rows = [
        [one["for"], one["debugger"], " ".join(f"{k}={v}" for k, v in one["variables"].items()), one["from"]]
        for one in live
    ]
    render.table(None, ["for", "debugger", "variables", "from"], rows)


def _line(what: str, variables: dict[str, str], origin: str) -> dict[str, Any]:
    from raydebug.settings.debugger import mode_of

    return {"for": what, "debugger": mode_of(variables), "variables": variables, "from": origin}
