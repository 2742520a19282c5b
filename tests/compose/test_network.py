"""The network between containers is cut, and containers stand still: one test a fault, with its limit in seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from containers import container_of, docker, wait_healthy
from raydebug.cluster import compose
from raydebug.cluster.state import Cluster
from runs import Run, wait_for

PLACE = ("kind", "file", "line", "function", "pid", "ip")


@contextlib.contextmanager
def disconnected(cluster: Cluster, service: str) -> Iterator[None]:
    """Take a container off the cluster's network."""
    name, network = container_of(cluster, service).name, f"{compose.project_of(cluster.name)}_default"
    docker("network", "disconnect", network, name)
    try:
        yield
    finally:
        docker("network", "connect", "--alias", service, network, name)


def listed_again(job: Run, before: dict[str, Any], within_s: float) -> dict[str, Any]:
    """Wait until the same pause is listed by another id, and return it."""
    found: list[dict[str, Any]] = []

    def is_back() -> bool:
        nonlocal found
        found = [p for p in job.listed() if p["id"] != before["id"] and p["state"] == "waiting"]
        return len(found) == 1

    wait_for(is_back, "the pause to be listed again", within_s, job)
    assert [found[0][name] for name in PLACE] == [before[name] for name in PLACE]
    return found[0]


# The way to the gateway


@pytest.mark.timeout(300)
def test_f22_gateway_cut_from_worker(victim, paused):
    """F22: a worker is cut off: its client is told within 10 s, exit code 4; it heals: the pause is listed again."""
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


@pytest.mark.timeout(300)
def test_f20_gateway_killed_and_started(victim, paused):
    """F20: the gateway is killed and started: within 2 s of its health it lists the pause at the same frame."""
    job, pause, client = paused
    gateway = container_of(victim, "gateway").name
    docker("kill", gateway)
    assert client.ended(2.0)[0] == 4
    time.sleep(5)
    docker("start", gateway)
    wait_for(lambda: container_of(victim, "gateway").is_ready, "the gateway to be healthy", 30.0)
    again = listed_again(job, pause, 2.0)
    assert again["since_s"] > 5
    assert job.attach(again["id"], "p secret").strip() == "41"
    job.attach(again["id"], "c")
    assert "done: on_worker" in job.end()


@pytest.mark.timeout(300)
def test_f24_worker_stands_still(victim, paused):
    """F24: a worker that stands still for 20 s (docker pause) goes on afterwards; session and job are unharmed."""
    job, pause, client = paused
    name = container_of(victim, "worker").name
    docker("pause", name)
    try:
        assert pause["id"] in [p["id"] for p in job.listed()]
        time.sleep(20)
    finally:
        docker("unpause", name)
    client.ask("p 1000 * 4242", until="4242000")
    client.ask("c")
    assert "done: on_worker" in job.end()
    wait_healthy(victim, 60.0)
