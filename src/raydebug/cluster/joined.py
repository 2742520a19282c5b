"""Join a Ray cluster that runs already, without a restart: the gateway as a Ray job, a token's file per node.

The record's `joined` holds, beside `dashboard`, `gateway` and `token_file`: `auth` (`token` or `none`: what Ray asks
for), `folder` of the token on the nodes, `job` of the gateway, `head` (its address), `dial` (where processes reach the
gateway), `client_port` of the head, `gcs`, `logs` (Ray's folder of them), `through` (a command that reaches the head),
`uid` (of the dashboard, where it is a process of this machine).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil

import raydebug
from raydebug import process
from raydebug.cluster import audit_log, on_nodes, state
from raydebug.cluster.dashboard import ENDED, Dashboard
from raydebug.cluster.find import cluster_at
from raydebug.cluster.locks import only_one
from raydebug.cluster.node_jobs import (
    ANSWER_LIMIT_S,
    GATEWAY,
    NODES,
    ask_nodes,
    clear_jobs,
    lacks_raydebug,
    stop_job,
    submit_request,
    wait_for_answer,
)
from raydebug.cluster.port_owner import uid_behind
from raydebug.cluster.state import Cluster, name_option
from raydebug.cluster.up import UpOptions, choose_ports, choosing_ports
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.process import SAFE_PATH
from raydebug.settings.files import atomic_write, open_private
from raydebug.settings.flavours import flavour_of

AUTO = "auto"
CLIENT_PORT, DIAL_PORT = 5678, 5679  # of the head, if free
AGENT = "--dashboard_agent_command="  # of the raylet's command line (ray 2.41.0 to 2.60.0 _private/services.py)
TUNNEL_STARTS_S = 10.0


def join(
    options: UpOptions, address: str, through: str, *, on_phase: Callable[[str], None]
) -> tuple[Cluster, list[dict[str, Any]], bool]:
    """Join the cluster at an address, or repair what is missing of an earlier join; nothing of it is restarted.

    Args:
        options: name, debugger's mode, gateway's port.
        address: of the dashboard; `auto` for the one of this machine.
        through: a command that runs a program on the head, such as `ssh HEAD`; empty where this is the head.
        on_phase: called with what it does.

    Returns:
        The cluster, its nodes as on_nodes.py describes them, and whether its gateway ran already.

    Raises:
        RaydebugError: it is no cluster that can be joined; the nodes are as before then.
    """
    state.check_name(options.name)
    asked = cluster_at(dashboard_here() if address == AUTO else address)
    with only_one(options.name, wait=False):
        earlier = _earlier(options.name, asked.dashboard)
        on_phase("asking its dashboard")
        cluster = _plan(options, asked, earlier, through)
        runs = earlier is not None and _status(earlier) not in ENDED
        on_phase("looking at its nodes")
        answer = _ask(cluster, options, again=earlier is not None, with_gateway=not runs)
        if runs and answer.get("public"):  # /tmp was cleaned, and there is a new token: a new gateway too
            runs = not stop_job(cluster, cluster.joined["job"])
            answer = _ask(cluster, options, again=True, with_gateway=True)
        bad = [f"{node['ip']}: {node['problem']}" for node in answer["nodes"] if node["problem"]]
        if bad or "refused" in answer:
            _forget_unused(cluster, again=earlier is not None)
            raise _why_not(bad, str(answer.get("refused", "")))
        joined = {**cluster.joined, "head": answer["head"], "gcs": answer["gcs"], "logs": answer["logs"]}
        joined |= {"job": answer["job"]} if "job" in answer else {}
        if not runs:
            client_port, dial_port = answer["ports"]
            joined |= {"client_port": str(client_port), "dial": f"{answer['head']}:{dial_port}"}
        gpus = [int(node["gpus"]) for node in answer["nodes"]]
        cluster = replace(cluster, joined=joined, gpus=max(gpus), flavour=flavour_of(answer["nodes"][0]))
        state.save_cluster(cluster)  # from here on `down` ends what was started
        if not runs:
            _end_tunnel(cluster)
        cluster = _reach(cluster, options)
        state.save_cluster(cluster)
    return cluster, answer["nodes"], runs


def dashboard_here() -> str:
    """Return the address of the one dashboard of this machine, by the command lines of its processes.

    Raises:
        RaydebugError: there is none, or there are several.
    """
    found = set()
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = one.cmdline()
            if any(word.endswith("/ray/dashboard/dashboard.py") for word in words[1:4]):
                options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
                host = options["host"] if options["host"] not in ("0.0.0.0", "::") else "127.0.0.1"
                found.add(f"http://{host}:{options['port']}")
    if len(found) == 1:
        return found.pop()
    several = f"their dashboards are: {', '.join(sorted(found))}"
    raise UsageError(
        "several Ray clusters have their head here" if found else "no Ray cluster has its head here",
        cause=several if found else "no process of this machine is Ray's dashboard",
        fix="name its dashboard: raydebug up --join http://HEAD:8265",
        code="joined.auto",
    )  # fmt: skip


def leave(cluster: Cluster) -> list[str]:
    """Stop the gateway's job, remove the token's files and the record; return what is left. The cluster itself stays.

    Raises:
        RaydebugError: the cluster does not answer; the record is kept.
    """
    try:
        Dashboard(cluster).nodes()
    except RaydebugError as error:
        raise RaydebugError(
            f"cluster '{cluster.name}' cannot be left: it does not answer",
            cause=error.cause,
            fix=f"when it answers: `raydebug down{name_option(cluster.name)}` again; if it is gone for good, remove"
            f" {cluster.folder}",
            code="joined.no-answer",
        ) from error
    keep_audit_lines(cluster)
    left = [] if stop_job(cluster, cluster.joined["job"]) else [f"job {cluster.joined['job']}"]
    nodes = ask_nodes(cluster, {"do": "leave", "folder": cluster.joined["folder"]})
    left += [f"{node['ip']}: {node['problem']}" for node in nodes if node.get("problem")]
    clear_jobs(cluster)
    _end_tunnel(cluster)
    if not left:
        state.forget(cluster)
    return left


def keep_audit_lines(cluster: Cluster) -> None:
    """Copy the gateway's audit lines, which end with its job, to the kept ones."""
    with contextlib.suppress(RaydebugError):
        audit_log.keep(cluster.name, Dashboard(cluster).job_logs(cluster.joined["job"]).splitlines())


def why_gateway_down(cluster: Cluster) -> str | None:
    """Return why the gateway's job does not run; None while it does."""
    status = _status(cluster)
    return None if status not in ENDED else f"its job {cluster.joined['job']} is {status}; {cluster.repair}"


def _status(cluster: Cluster) -> str:
    try:
        return Dashboard(cluster).job(cluster.joined["job"])["status"]
    except RaydebugError as error:
        if error.code != "ray.refused":
            raise
        return "STOPPED"  # removed from the table, or Ray was started anew


def _earlier(name: str, dashboard: str) -> Cluster | None:
    found = state.read_record(name)
    if found is not None and (found.kind != "joined" or found.dashboard != dashboard):
        raise RaydebugError(
            f"cluster '{name}' is another one",
            cause=f"it is of the kind {found.kind}, and its dashboard is {found.dashboard}",
            fix=f"another name: raydebug up --join {dashboard} --name NAME",
            code="joined.other",
            exit_code=Exit.TAKEN,
        )
    return found


def _plan(options: UpOptions, asked: Cluster, earlier: Cluster | None, through: str) -> Cluster:
    """Return the record as far as the dashboard alone can tell it; the token of Ray is kept with it."""
    dashboard = Dashboard(asked)
    try:
        version = dashboard.version()
    except RaydebugError as error:
        if error.code != "ray.refused":
            raise
        raise RaydebugError(
            f"no Ray dashboard is at {asked.dashboard}", cause=error.what, fix=error.fix, code="cluster.no-dashboard"
        ) from error
    with_token = dashboard.asks_for_token()
    head = next(node for node in dashboard.nodes() if node.get("is_head_node"))
    folder = state.make_folder(options.name)
    with state.writing(folder):
        if with_token or earlier is None:
            atomic_write(folder / "token", asked.token if with_token else "")
    known = {} if earlier is None else earlier.joined
    identity = uuid.uuid4().hex if earlier is None else earlier.id
    joined = {
        "gateway": "127.0.0.1:0", "folder": f"/tmp/raydebug-{identity}", **known,  # noqa: S108 - made private there
        "dashboard": asked.dashboard, "token_file": str(folder / "token"), "auth": "token" if with_token else "none",
        "through": through or known.get("through", ""), "uid": str(uid_behind(asked.dashboard)),
    }  # fmt: skip
    return replace(
        earlier or asked, name=options.name, id=identity, kind="joined", folder=folder, temp_dir=folder, ray=version,
        python=_python_of(dashboard, head["node_id"]), debugger=options.debugger, created=time.time(), joined=joined,
    )  # fmt: skip


def _python_of(dashboard: Dashboard, node_id: str) -> str:
    """Return the Python of a node's raylet; `python` where its agent has not reported yet."""
    with contextlib.suppress(RaydebugError):
        for word in dashboard.node_statistics(node_id).get("cmdline") or ():
            if word.startswith(AGENT) and " -u " in word:
                return str(word.removeprefix(AGENT).partition(" -u ")[0])
    return "python"


def _ask(cluster: Cluster, options: UpOptions, *, again: bool, with_gateway: bool) -> dict[str, Any]:
    """Have the nodes prepared, and the gateway started; return the answer, with the gateway's `job`.

    A new token is in our file then.
    """
    private = secrets.randbits(512)
    kept = [int(cluster.joined["client_port"]), int(cluster.joined["dial"].rpartition(":")[2])] if again else [0, 0]
    asked = options.gateway_port if options.gateway_port is not None and not cluster.joined["through"] else None
    request = {
        "do": "join", "again": again, "gateway": with_gateway, "version": raydebug.__version__,
        "folder": cluster.joined["folder"],
        "public": on_nodes.public_of(private) if cluster.joined["auth"] == "none" else "",
        "client_ports": [asked] if asked is not None else [kept[0] or CLIENT_PORT, 0],
        "dial_ports": [kept[1] or DIAL_PORT, 0],
    }  # fmt: skip
    job = submit_request(cluster, GATEWAY if with_gateway else NODES, request)
    try:
        answer = wait_for_answer(cluster, job, ANSWER_LIMIT_S)
    except BaseException:
        stop_job(cluster, job)
        if not again:
            with contextlib.suppress(RaydebugError):  # it may have come as far as the nodes
                ask_nodes(cluster, {"do": "leave", "folder": cluster.joined["folder"]})
        _forget_unused(cluster, again=again)
        raise
    if answer.get("public"):
        atomic_write(cluster.token_file, on_nodes.agreed_token(private, answer["public"]))
    return {**answer, "job": job} if answer.get("ports") else answer


def _forget_unused(cluster: Cluster, *, again: bool) -> None:
    if not again:
        clear_jobs(cluster)
        state.forget(cluster)


def _why_not(bad: list[str], refused: str) -> RaydebugError:
    if refused:
        return RaydebugError(
            "the gateway cannot listen on the head", cause=refused, code="port.taken", exit_code=Exit.TAKEN,
            fix="choose another port with --gateway-port (0 takes a free one)",
        )  # fmt: skip
    cause = "; ".join(bad)
    if any(on_nodes.NO_ANSWER not in one for one in bad):
        return lacks_raydebug(cause)
    fix = "join again; if it stays so, look at these nodes in Ray's dashboard"
    return RaydebugError("not all nodes have answered", cause=cause, fix=fix, code="joined.no-answer")


# The way from this machine to the gateway's port


def _reach(cluster: Cluster, options: UpOptions) -> Cluster:
    """Return the cluster with the port of this machine that leads to its gateway, a tunnel's if a way was given."""
    joined = dict(cluster.joined)
    if not joined["through"]:
        joined["gateway"] = f"127.0.0.1:{joined['client_port']}"
        return replace(cluster, joined=joined, ports={"gateway": int(joined["client_port"])})
    if _tunnel_of(cluster) is not None:
        return cluster
    with choosing_ports(cluster.name) as taken:
        ports = choose_ports({"gateway": options.gateway_port}, cluster.ports, taken, ["gateway"])
        joined["gateway"] = f"127.0.0.1:{ports['gateway']}"
        there = [cluster.python, SAFE_PATH, "-m", "raydebug.cluster.reach", "there", joined["client_port"]]
        here = [sys.executable, SAFE_PATH, "-m", "raydebug.cluster.reach", "here", str(ports["gateway"])]
        with open_private(cluster.folder / "tunnel.log", "wb") as log:
            argv = [*here, *shlex.split(joined["through"]), *there]
            tunnel = process.start(argv, env=os.environ, output=log, new_session=True)
        birth = process.birth_of(tunnel.pid)
        return replace(cluster, joined=joined, ports=ports, supervisor_pid=tunnel.pid, supervisor_birth=birth)


def _tunnel_of(cluster: Cluster) -> psutil.Process | None:
    if cluster.supervisor_pid and process.birth_of(cluster.supervisor_pid) == cluster.supervisor_birth:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(cluster.supervisor_pid)
    return None


def _end_tunnel(cluster: Cluster) -> None:
    tunnel = _tunnel_of(cluster)
    if tunnel is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [*tunnel.children(recursive=True), tunnel]
            tunnel.send_signal(signal.SIGTERM)
            psutil.wait_procs(family, timeout=2.0)
