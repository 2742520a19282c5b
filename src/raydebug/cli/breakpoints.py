"""`raydebug break`: breakpoints set, listed and removed while jobs run."""

from __future__ import annotations

from typing import Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json, Name

app = typer.Typer(help="Set, list and remove breakpoints while jobs run.")


@app.command()
def add(
    where: Annotated[
        str, typer.Argument(metavar="WHERE", help="As --break takes it: file.py:LINE or module:function, conditions.")
    ],
    job: Annotated[str | None, typer.Option(help="Only in this job. Default: in every one.", metavar="ID")] = None,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Set a breakpoint in the processes of running jobs, and in those that start later.

    Example: raydebug break add 'my/reward.py:42,rank=0,if=score > 1,once'
    """
    from raydebug.client.gateway_client import add_break, describe_break_states
    from raydebug.cluster.find import load_cluster
    from raydebug.jobs.submit import find_break

    cluster = load_cluster(name)
    added = add_break(cluster, find_break(cluster, where, job), job=job)
    if as_json:
        render.out_json({"version": 1, "break": added})
        return
    render.out(render.visible(f"{added['id']}  {where}  ({describe_break_states(added)})", keep=""))


@app.command("list")
def list_breaks(name: Name = "default", as_json: Json = False) -> None:
    """List the breakpoints that were set from outside, with --break or `break add`, and their states.

    Example: raydebug break list --json
    """
    from raydebug.client.breakpoint_specs import describe
    from raydebug.client.gateway_client import describe_break_states, fetch_breaks
    from raydebug.cluster.find import load_cluster

    breaks = fetch_breaks(load_cluster(name))
    if as_json:
        render.out_json({"version": 1, "breaks": breaks})
        return
    if not breaks:
        render.say("no breakpoints were set from outside; next: raydebug break add WHERE")
        return
    rows = [
        [b["id"], b["where"], describe(b["policy"] or {}), b["job"] or "all jobs", describe_break_states(b)]
        for b in breaks
    ]
    render.table(["id", "where", "only if", "job", "processes"], rows)


@app.command()
def rm(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids as `break list` shows them, or `all`.")],
    name: Name = "default",
) -> None:
    """Remove breakpoints; a task that is paused at one stays paused.

    Example: raydebug break rm b1 b2
    """
    from raydebug.client.gateway_client import fetch_breaks, remove_break
    from raydebug.cluster.find import load_cluster

    cluster = load_cluster(name)
    for break_id in [b["id"] for b in fetch_breaks(cluster)] if ids == ["all"] else ids:
        remove_break(cluster, break_id)
        render.out(f"removed {render.visible(break_id, keep='')}")
