"""A worker on another host: two compose projects on separate networks, with a firewall between them."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from containers import container_of, docker, remove_all
from raydebug.cluster.compose.project import compose_argv, compose_variables, project_of
from raydebug.cluster.find import load_cluster
from raydebug.cluster.state import Cluster
from runs import Run, raydebug, up_in_containers, wait_for

# Only the ports that docs/07-containers.md lists are open between the hosts.
OF_EVERY_NODE = "6380:6383,52365,10002:10999"
OF_THE_HEAD = f"6379,8265,10001,5679,{OF_EVERY_NODE}"

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("iptables") is None,
    reason="a firewall between two networks takes root and iptables",
)


@pytest.fixture
def first_host(project) -> Iterator[Cluster]:
    """A head and a gateway, without a worker."""
    name = f"fx-host-a-{os.getpid()}"
    done = up_in_containers(name, project, "--workers", "0")
    assert done.returncode == 0, done.stderr
    yield load_cluster(name)
    remove_all(name)


@pytest.fixture
def second_host(first_host) -> Iterator[Cluster]:
    """The worker service alone, with the addresses of head and gateway; its network exists, the worker does not yet."""
    other = dataclasses.replace(first_host, name=f"fx-host-b-{os.getpid()}")
    compose_up(other, first_host, "create", "--no-build", "worker")
    yield other
    remove_all(other.name)


def compose_up(host: Cluster, head: Cluster, *arguments: str) -> None:
    """Run docker compose for the second host."""
    environment = {
        **os.environ,
        **compose_variables(head),
        "WORKERS": "1",
        "HEAD_ADDRESS": f"{container_of(head, 'head').address}:6379",
        "GATEWAY_ADDRESS": f"{container_of(head, 'gateway').address}:5679",
    }
    argv = compose_argv(host, *arguments)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def firewall(first: Cluster, second: Cluster) -> Iterator[None]:
    """Allow the documented ports between the networks of two hosts, as routers would, and no others."""
    a, b = network_of(first), network_of(second)
    rules = [
        ["-I", "DOCKER-USER", "-s", one, "-d", other, "-p", "tcp", *match, "-j", "ACCEPT"]
        for one, other, ports in ((a, b, OF_EVERY_NODE), (b, a, OF_THE_HEAD))
        for match in (
            ["-m", "multiport", "--dports", ports],
            ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"],
        )
    ]
    # Docker would hide a container behind its host's address; routed hosts see each container's own address.
    rules += [
        ["-t", "nat", "-I", "POSTROUTING", "-s", one, "-d", other, "-j", "ACCEPT"] for one, other in ((a, b), (b, a))
    ]
    try:
        for rule in rules:
            subprocess.run(["iptables", "-w", *rule], check=True, capture_output=True, timeout=20)
        yield
    finally:
        for rule in rules:
            removal = ["-D" if part == "-I" else part for part in rule]
            subprocess.run(["iptables", "-w", *removal], check=False, capture_output=True, timeout=20)


def network_of(host: Cluster) -> str:
    """Return the addresses of a host's containers."""
    (found,) = json.loads(docker("network", "inspect", f"{project_of(host.name)}_default"))
    return str(found["IPAM"]["Config"][0]["Subnet"])


@pytest.mark.timeout(400)
def test_worker_on_another_host(first_host, second_host, project):
    """The worker service joins a remote head by HEAD_ADDRESS, over the listed ports only; its pauses are listed."""
    with firewall(first_host, second_host):
        compose_up(second_host, first_host, "up", "--detach", "--no-build", "--wait", "--no-deps", "worker")
        worker = container_of(second_host, "worker")

        def joined() -> bool:
            document = json.loads(raydebug("ps", "--name", first_host.name, "--json").stdout)
            return [n["ip"] for n in document["nodes"] if n["role"] == "worker" and n["state"] == "alive"] == [
                worker.address
            ]

        wait_for(joined, "the worker of the second host to join")
        assert ipaddress.ip_address(worker.address) not in ipaddress.ip_network(network_of(first_host))
        reach = "import socket, sys; socket.create_connection((sys.argv[1], 5678), 2)"  # the clients' port, unlisted
        argv = ["docker", "exec", worker.name, "python", "-S", "-c", reach, container_of(first_host, "gateway").address]
        assert "TimeoutError" in subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stderr
        job = Run(first_host, ["--", "python", "cases.py", "on_worker"], cwd=project)
        (pause,) = job.pauses(1)
        assert pause["ip"] == worker.address
        assert job.attach(pause["id"], "p secret").strip() == "41"
        job.attach(pause["id"], "c")
        assert "done: on_worker" in job.end()
        assert raydebug("down", "--name", first_host.name).returncode == 0
