"""`raydebug ps` and `logs`: the state of a cluster."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydebug import render
from raydebug.cli.options import Json, Name
from raydebug.errors import Exit, RaydebugError, UsageError

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster


def show_cluster(cluster: Cluster, nodes: Sequence[Mapping[str, Any]] = (), *, usable: bool = True) -> None:
    """Print a cluster's addresses, what the nodes have of one that was joined, and the next command if it is usable."""
    from raydebug.cluster.kinds import kind_of

    render.out(f"cluster    {cluster.name} ({cluster.kind}, {cluster.flavour}, debugger: {cluster.debugger})")
    render.out(f"dashboard  {cluster.dashboard}")
    render.out(f"gateway    {cluster.gateway_host}:{cluster.gateway_port}")
    render.out(f"token      {cluster.token_file}")
    if cluster.is_local:
        render.out(f"python     {cluster.python}")
    kinds = Counter(f"Python {node['python']}, raydebug {node['raydebug']}" for node in nodes if "problem" not in node)
    for kind, count in kinds.items():
        render.out(render.visible(f"nodes      {count} with Ray {cluster.ray}, {kind}", keep=""))
    if cluster.owner:
        render.say("it ends with the last `raydebug run` that uses it; `raydebug up` keeps it")
    if usable:
        render.say(f"next: {kind_of(cluster).next_step}")


def show_variables(variables: Mapping[str, str]) -> None:
    """Print how a job that is started without `raydebug run` gets its variables."""
    from raydebug.protocol.variables import GATEWAY, TOKEN_PATH

    two = {name: variables[name] for name in (GATEWAY, TOKEN_PATH)}
    env = json.dumps({"env_vars": two})
    render.say("a job that you start yourself needs two variables, in its driver and in its workers:")
    render.say(f"  ray job submit --runtime-env-json {shlex.quote(env)} -- python train.py")
    exports = {**two, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"env_vars": two}})}
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in exports.items())
    render.say(f"  {words} python train.py")


def warn_without_token(cluster: Cluster) -> None:
    """Warn that the dashboard of a Ray before 2.52 runs code for every user who can connect to it."""
    from raydebug.settings.flavours import has_token_mode

    if cluster.ray and not has_token_mode(cluster.ray):
        render.say(
            f"warning: Ray {cluster.ray} has no token (2.52 and later have one): any user of this machine can run code "
            f"as you through {cluster.dashboard}"
        )


def describe(cluster: Cluster) -> dict[str, Any]:
    """Return the JSON document of `raydebug ps --json`."""
    from raydebug.client.gateway_client import fetch_status
    from raydebug.cluster.kinds import kind_of

    gateway = kind_of(cluster).gateway()
    is_up = gateway["state"] == "up"
    gateway |= fetch_status(cluster) if is_up else {"tasks": [], "problem": None}
    return {
        "version": 1,
        "name": cluster.name,
        "kind": cluster.kind,
        "address": cluster.address,
        "dashboard": cluster.dashboard,
        "gateway": gateway,
        "token_file": str(cluster.token_file),
        "python": cluster.python if cluster.is_local else None,
        "nodes": kind_of(cluster).nodes(),
        "pool": kind_of(cluster).prefork_pool(),
        "modes": _live_modes(cluster) if is_up else [],
    }


def _live_modes(cluster: Cluster) -> list[dict[str, Any]]:
    """Return which debugger is live in the cluster and in each running job, and where that came from.

    A cluster that does not answer, and a job with a variable that Ray does not know, have no row.
    """
    from raydebug.cluster.dashboard import ENDED, Dashboard
    from raydebug.settings.debugger import mode_of, mode_variables

    def add(what: str, variables: dict[str, str], origin: str) -> None:
        with contextlib.suppress(RaydebugError):
            live.append({"for": what, "debugger": mode_of(variables), "variables": variables, "from": origin})

    live: list[dict[str, Any]] = []
    of_cluster = mode_variables(cluster.debugger)
    add("cluster", of_cluster, "raydebug up")
    with contextlib.suppress(RaydebugError):
        for job in Dashboard(cluster).jobs():
            if job["status"] in ENDED or not job.get("submission_id"):
                continue
            given = (job.get("runtime_env") or {}).get("env_vars") or {}
            own = {name: value for name, value in given.items() if name.startswith("RAY_DEBUG")}
            if cluster.is_joined:  # `run` gives each job the mode of a cluster that was joined
                own = {name: value for name, value in own.items() if of_cluster.get(name) != value}
            add(str(job["submission_id"]), of_cluster | own, "raydebug run --debugger" if own else "the cluster")
    return live


def ps(
    name: Name = "default",
    as_json: Json = False,
    processes: Annotated[
        bool, typer.Option("--processes", help="Show instead the processes that `attach --pid` can stop.")
    ] = False,
) -> None:
    """Show a cluster and its nodes, and why a node is dead.

    Example: raydebug ps --json
    """
    from raydebug.client.gateway_client import describe_failed_tasks
    from raydebug.cluster import state
    from raydebug.cluster.find import load_cluster

    cluster = load_cluster(name)
    if processes:
        _show_processes(cluster, as_json=as_json)
        return
    document = describe(cluster)
    if as_json:
        render.out_json(document)
    else:
        is_down = document["gateway"]["state"] == "down"
        show_cluster(cluster, usable=not is_down)
        if is_down:
            render.out(render.visible(f"the gateway is down: {document['gateway']['reason']}"))
        own = [f"{m['debugger']} in {m['for']}" for m in document["modes"] if m["from"] == "raydebug run --debugger"]
        if own:
            render.out(render.visible(f"debugger   {', '.join(own)} (raydebug run --debugger)", keep=""))
        keys = ("role", "ip", "state", "node_id", "reason")
        rows = [[str(node[key] or "") for key in keys] for node in document["nodes"]]
        for row in rows:
            row[3] = row[3][:12]  # of 56 digits
        render.table(["role", "ip", "state", "node", "reason"], rows)
        alive = {node["node_id"]: node["ip"] for node in document["nodes"] if node["state"] == "alive"}
        if without := state.without_token(cluster, alive):
            render.say(f"note: {without}")
        for line in describe_failed_tasks(document["gateway"]):
            render.say(render.visible(line))
        if document["pool"] is not None:
            _show_pool(document["pool"])
        others = sorted(set(state.known_names()) - {name})
        if others:
            render.say(f"other clusters: {', '.join(others)} (--name)")
    head_ended = any(n["state"] in ("dead", "exited") and n["role"] == "head" for n in document["nodes"])
    if head_ended or document["gateway"]["state"] == "down":
        raise typer.Exit(Exit.FAILED)


def _show_processes(cluster: Cluster, *, as_json: bool) -> None:
    from raydebug.client.gateway_client import fetch_processes
    from raydebug.protocol.names import name_process, pid_option

    processes = fetch_processes(cluster)
    if as_json:
        render.out_json({"version": 1, "processes": processes})
        return
    if not processes:
        render.say("no process of a job is there that could be stopped")
        return
    rows = []
    for process in processes:
        doing = process["doing"] or {}
        at = f"{PurePath(doing['file']).name}:{doing['line']} {doing['function']}" if doing.get("file") else ""
        state = at if process["answers"] else "does not answer"
        state = f"paused: {', '.join(process['pauses'])}" if process["pauses"] else state
        program = "" if process["actor"] else process["title"] or process["argv"] or ""
        name = name_process(process)
        who = name if program in ("", name) else f"{name}: {program}"
        worker, job = (process["worker_id"] or "")[:12], process["job"] or ""
        rows.append([str(process["pid"]), str(process["ip"]), worker, job, who, state])
    render.table(["pid", "ip", "worker", "job", "who", "at"], rows)
    pid = render.command("raydebug", "attach", "--pid", pid_option(processes[0]))
    render.say(f"next: {pid}")


def _show_pool(pool: dict[str, Any]) -> None:
    """Show the pre-forked processes, and how many processes did not start from them."""
    columns = ["zygote", "pid", "state", "modules", "MiB own", "MiB shared", "served", "running"]
    keys = ("number", "pid", "state", "modules", "own_mib", "shared_mib", "served", "running")
    render.table(columns, [[str(z[key]) for key in keys] for z in pool["zygotes"]], title="pool")
    for zygote in pool["zygotes"]:
        for left_out in [*zygote["left_out"], *([zygote["reason"]] if zygote["reason"] else [])]:
            render.say(f"zygote {zygote['number']}: {left_out}")
    if pool["cold"]:
        last = pool["last_cold"][-1]
        render.say(f"{pool['cold']} cold starts; the last one: {last['reason']}")


def logs(
    service: Annotated[
        str | None, typer.Argument(metavar="[SERVICE]", help="head, gateway, or in containers worker. Default: all.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until Ctrl-C, or until the cluster ends.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Who attached to which pause, of the last 30 days; after `down` too.")
    ] = False,
    name: Name = "default",
    as_json: Annotated[bool, typer.Option("--json", help="With --audit: one JSON document.")] = False,
) -> None:
    """Show the logs of the cluster's own programs (for a job: `job logs`).

    \b
    Examples:
      raydebug logs gateway
      raydebug logs --audit        who attached, resumed, was refused: also of clusters that are down
    """
    if (as_json and not audit) or (audit and (service is not None or follow)):
        raise UsageError(
            "--audit takes no service and no --follow" if audit else "--json is for --audit",
            cause="it shows what is kept of the gateway's audit lines" if audit else "logs are lines of text",
            fix="raydebug logs --audit" + (" --json" if as_json else ""),
        )
    if audit:
        _show_audit(name, as_json=as_json)
        return
    from raydebug.cluster.find import load_cluster
    from raydebug.cluster.kinds import kind_of

    kind = kind_of(load_cluster(name))
    if service is not None and service not in kind.services:
        raise UsageError(
            f"there is no service '{service}'",
            cause=f"the services are: {', '.join(kind.services) or 'not to be seen from here'}",
            fix="raydebug logs head",
            code="service.unknown",
        )
    raise typer.Exit(kind.show_logs(service, follow=follow))


def _show_audit(name: str, *, as_json: bool) -> None:
    """Show the audit lines that are kept of the clusters of this name; the cluster need not run."""
    from raydebug.cluster import audit_log
    from raydebug.cluster.find import find_cluster
    from raydebug.cluster.kinds import kind_of

    cluster = find_cluster(name)
    if cluster is not None:
        kind_of(cluster).keep_audit_lines()
    events = [event for line in audit_log.read(name) if (event := audit_log.describe(line))]
    if as_json:
        render.out_json({"version": 1, "audit": events})
        return
    for event in events:
        render.out(render.visible(f"{event['at']} {event['text']}"))
    if not events:
        render.say(f"no audit line of a cluster '{name}' is kept")
