"""The network between containers is cut, and containers are frozen: one test for each fault, with its limit."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from containers import container_of, docker, remove_all, wait_healthy
from raydebug.cluster.compose.project import project_of
from raydebug.cluster.find import load_cluster
from raydebug.cluster.state import Cluster
from runs import Run, raydebug, up_in_containers, wait_for

pytestmark = [pytest.mark.xdist_group("long"), pytest.mark.timeout(300)]

LONG = "RAYDEBUG_TEST_LONG" in os.environ
PLACE = ("kind", "file", "line", "function", "pid", "ip")


@contextlib.contextmanager
def disconnected(cluster: Cluster, service: str) -> Iterator[None]:
    """Disconnect a container from the cluster's network."""
    name, network = container_of(cluster, service).name, f"{project_of(cluster.name)}_default"
    docker("network", "disconnect", network, name)
    try:
        yield
    finally:
        docker("network", "connect", "--alias", service, network, name)


def listed_again(job: Run, before: dict[str, Any], within_s: float) -> dict[str, Any]:
    """Wait until a pause that was not listed any more is listed with its number again, and return it."""
    found: list[dict[str, Any]] = []

    def is_back() -> bool:
        nonlocal found
        found = [p for p in job.listed() if p["id"] == before["id"] and p["state"] == "waiting"]
        return len(found) == 1

    wait_for(is_back, "the pause to be listed again", within_s, job)
    assert [found[0][name] for name in PLACE] == [before[name] for name in PLACE]
    return found[0]


def still_listed(job: Run, before: dict[str, Any]) -> dict[str, Any]:
    """Return the pause, which has its number also after the cut."""
    (found,) = job.pauses(1)
    assert found["id"] == before["id"]
    assert [found[name] for name in PLACE] == [before[name] for name in PLACE]
    return found


def nodes(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the cluster's nodes, dead ones included."""
    document = json.loads(raydebug("ps", "--name", cluster.name, "--json").stdout)
    return list(document["nodes"])


def ids_of(cluster: Cluster, node_state: str) -> list[str]:
    """Return the workers' nodes in a state."""
    return [n["node_id"] for n in nodes(cluster) if n["role"] == "worker" and n["state"] == node_state]


# The connection to the gateway


def test_f22_gateway_cut_from_worker(victim, paused):
    """F22: a worker is cut off: its client exits with 4 within 10 s; after the cut the pause is listed again."""
    job, pause, client = paused
    with disconnected(victim, "worker"):
        client.ask("p 1000 * 4242", until="is out of reach", within_s=10.0)
        code, printed, _ = client.ended(5.0)
        assert code == 4, printed
        wait_for(lambda: job.listed() == [], "the row to vanish", 3.0)
    again = listed_again(job, pause, 40.0)
    assert job.attach(again["id"], "p secret").strip() == "41"
    job.attach(again["id"], "c")
    assert "done: on_worker" in job.end()
    wait_healthy(victim)


@pytest.mark.alone
def test_f20_gateway_killed_and_started(victim, paused):
    """F20: a killed gateway ends its client with 4 in 2 s; once healthy, it lists the pause at its frame within 2 s."""
    job, pause, client = paused
    gateway = container_of(victim, "gateway").name
    docker("kill", gateway)
    code, printed, _ = client.ended(2.0)
    assert code == 4, printed
    assert "error: the session ended: the gateway is gone" in printed
    assert "does not answer" in raydebug("paused", "--name", victim.name).stderr
    time.sleep(5)
    docker("start", gateway)
    wait_for(lambda: container_of(victim, "gateway").is_ready, "the gateway to be healthy", 30.0)
    (again,) = job.pauses(1, 2.0)
    assert again["id"] == pause["id"]
    assert [again[name] for name in PLACE] == [pause[name] for name in PLACE]
    assert again["since_s"] > 5
    assert job.attach(again["id"], "p secret").strip() == "41"
    job.attach(again["id"], "c")
    assert "done: on_worker" in job.end()


# The connection to the head


def test_f23_half_a_minute(victim, paused):
    """F23: a worker without network for 30 s stays in the cluster; its task is still paused, and then finishes."""
    job, pause, client = paused
    client.close()
    (node,) = ids_of(victim, "alive")
    with disconnected(victim, "worker"):
        time.sleep(30)
    wait_healthy(victim)
    assert ids_of(victim, "alive") == [node], "the same node, not a new one"
    again = still_listed(job, pause)
    job.attach(again["id"], "c")
    assert "done: on_worker" in job.end()


@pytest.mark.long
@pytest.mark.timeout(420)
def test_f23_two_minutes(victim, paused):
    """F23: after 120 s `ps` shows the node dead with a reason; with a network it rejoins, and the task reruns."""
    job, pause, client = paused
    client.close()
    (node,) = ids_of(victim, "alive")
    with disconnected(victim, "worker"):
        cut = time.monotonic()
        wait_for(lambda: node in ids_of(victim, "dead"), "the node to die", 120.0)
        (dead,) = [n for n in nodes(victim) if n["node_id"] == node]
        assert "missing too many heartbeats" in dead["reason"]
        time.sleep(max(0.0, 120.0 - (time.monotonic() - cut)))
    wait_healthy(victim, 120.0)
    (fresh,) = job.pauses(1)  # Ray reruns the task of a lost node
    assert fresh["pid"] != pause["pid"] or fresh["node_id"] != node
    job.attach(fresh["id"], "c")
    assert "done: on_worker" in job.end()


# A frozen container


def test_f24_frozen_worker(victim, paused):
    """F24: a worker is frozen for 60 s: its client reports a running evaluation; then session, job, node continue.

    Without RAYDEBUG_TEST_LONG it is frozen for 20 s.
    """
    job, pause, client = paused
    name = container_of(victim, "worker").name
    docker("pause", name)
    try:
        client.ask("p 1000 * 4242", until="is still running; Ctrl-C interrupts it", within_s=10.0)
        assert pause["id"] in [p["id"] for p in job.listed()]
        time.sleep(50 if LONG else 10)
    finally:
        docker("unpause", name)
    client.ask("", until="4242000", within_s=10.0)
    client.ask("c")
    assert "done: on_worker" in job.end()
    wait_healthy(victim, 60.0)


# Ray's own listener, inside the network

# Ray's extension uses debugpy's adapter in this order. A bare connect would break that adapter.
EXTENSION = """
import asyncio, sys
from raydebug.dap import DapSession
async def main(host, port):
    session = await DapSession.connect(host, int(port))
    await session.request("initialize", {"clientID": "vscode", "adapterID": "debugpy", "pathFormat": "path"})
    attached = session.send("attach", {"connect": {"host": host, "port": int(port)}, "justMyCode": False})
    await session.next_event("initialized", timeout_s=20)
    await session.request("setExceptionBreakpoints", {"filters": ["uncaught"]})
    await session.request("configurationDone")
    assert (await attached)["success"]
    thread = {"threadId": (await session.next_event("stopped", timeout_s=20))["body"]["threadId"]}
    for frame in (await session.request("stackTrace", thread))["stackFrames"]:
        if frame["name"] == "task":
            value = await session.request("evaluate", {"expression": "secret", "frameId": frame["id"]})
            print("secret is", value["result"])
    await session.request("continue", thread)
    await session.request("disconnect", {"terminateDebuggee": False})
asyncio.run(main(*sys.argv[1:]))
"""
WORKERS = "/api/v0/workers?detail=1&filter_keys=num_paused_threads&filter_predicates=%21%3D&filter_values=0"


def test_open_mode(project, monkeypatch):
    """S7: with RAYDEBUG_OPEN=1 a debugger inside the network attaches to Ray's own listener; no port leads there."""
    monkeypatch.setenv("RAYDEBUG_OPEN", "1")
    name = f"fx-open-{os.getpid()}"
    try:
        done = up_in_containers(name, project)
        assert done.returncode == 0, done.stderr
        cluster = load_cluster(name)
        worker = container_of(cluster, "worker")
        assert "listens in workers that pause, without a token" in docker("logs", worker.name)
        job = Run(cluster, ["--", "python", "cases.py", "on_worker"], cwd=project)
        row = paused_worker(cluster)
        assert row["ip"] == worker.address
        assert job.listed() == [], "the gateway knows nothing of it"
        published = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Ports}}", worker.name))
        assert not any(published.values())
        asked = ("python", "-c", EXTENSION, row["ip"], str(row["debugger_port"]))
        said = docker("exec", container_of(cluster, "gateway").name, *asked)
        assert said.strip() == "secret is 41"
        assert "done: on_worker" in job.end()
    finally:
        remove_all(name)


def paused_worker(cluster: Cluster) -> dict[str, Any]:
    """Wait for the row of Ray's worker table that waits for a debugger."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        url = f"http://127.0.0.1:{cluster.ports['dashboard']}{WORKERS}"
        headers = {"Authorization": f"Bearer {cluster.token}"}
        answer = httpx.get(url, headers=headers, timeout=20, trust_env=False).json()
        found[:] = [row for row in answer["data"]["result"]["result"] if row["is_alive"] and row["num_paused_threads"]]
        return len(found) == 1

    wait_for(is_there, "a worker that waits for a debugger")
    return found[0]
