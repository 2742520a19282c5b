"""The network between containers is cut, and containers stand still: one test a fault, with its limit in seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from containers import container_of, docker, wait_healthy
from raydebug.cluster import compose
from raydebug.cluster.state import Cluster


@contextlib.contextmanager
def disconnected(cluster: Cluster, service: str) -> Iterator[None]:
    """Take a container off the cluster's network."""
    name, network = container_of(cluster, service).name, f"{compose.project_of(cluster.name)}_default"
    docker("network", "disconnect", network, name)
    try:
        yield
    finally:
        docker("network", "connect", "--alias", service, network, name)


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


@pytest.mark.timeout(300)
def test_f22_f23_worker_cut_off(victim, paused):
    """F22, F23 in part: a worker without its network for 30 s: its client says within 10 s that it waits; it heals."""
    _, _, client = paused
    with disconnected(victim, "worker"):
        client.ask("p 1000 * 4242", until="still runs there; Ctrl-C stops waiting for it", within_s=10.0)
        time.sleep(30)
    wait_healthy(victim)
