"""Other users of the host and containers that root started; a cluster without a record on this machine."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Iterator

import pytest

from containers import container_of, docker
from raydebug.cluster.compose.container_user import UNUSED_IDS
from raydebug.cluster.compose.project import containers, project_of
from runs import raydebug, three_lines

FIRST_ACCOUNT = 1000  # of nearly every distribution; also the default user of images


@pytest.fixture(scope="module")
def stranger() -> Iterator[int]:
    """The uid of an account of this host that is unrelated to the cluster: 1000."""
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    try:
        pwd.getpwuid(FIRST_ACCOUNT)
    except KeyError:
        subprocess.run(["useradd", "-u", str(FIRST_ACCOUNT), "-M", "raydebug-stranger"], check=True, timeout=20)
        yield FIRST_ACCOUNT
        subprocess.run(["userdel", "raydebug-stranger"], check=True, timeout=20)
    else:
        yield FIRST_ACCOUNT


def test_an_account_of_the_host_cannot_read_the_token(cluster, stranger):
    """S4: containers that root starts run as an unused id; the account 1000 cannot read the token through /proc."""
    for container in containers(cluster):
        pid = int(docker("inspect", "--format", "{{.State.Pid}}", container.name))
        secret = f"/proc/{pid}/root/run/secrets/raydebug_token"
        read = subprocess.run(["cat", secret], user=stranger, group=stranger, extra_groups=[], capture_output=True,
                              text=True, timeout=20, check=False)  # fmt: skip
        assert (read.returncode, read.stdout) == (1, ""), container.service
        assert "Permission denied" in read.stderr
        uid = int(docker("exec", container.name, "id", "-u"))
        assert uid in UNUSED_IDS, container.service
        assert cluster.user == f"{uid}:{uid}"
        assert (cluster.token_file.stat().st_uid, cluster.token_file.stat().st_mode & 0o777) == (uid, 0o600)


# A cluster without a record: `docker compose up` by hand, or another user's `raydebug up`


@pytest.mark.timeout(120)
def test_found_by_its_labels(cluster, tmp_path):
    """`paused`, `ps` and the job of `run` find the cluster by the compose project's name, without a record."""
    project = project_of(cluster.name)
    nobody = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    paused = raydebug("paused", "--json", "--name", project, env=nobody)
    assert paused.returncode == 0, paused.stderr
    assert json.loads(paused.stdout) == {"version": 1, "pauses": []}
    about = json.loads(raydebug("ps", "--json", "--name", project, env=nobody).stdout)
    assert about["kind"] == "by-hand"
    assert (about["dashboard"], about["gateway"]["port"]) == (cluster.dashboard, cluster.gateway_port)
    assert {node["state"] for node in about["nodes"]} == {"alive"}
    said = raydebug("logs", "gateway", "--name", project, env=nobody)
    assert "raydebug gateway on gateway" in said.stdout, said.stderr
    assert "Ray's own debugger listens" not in said.stdout
    ended = raydebug("down", "--name", project, env=nobody)
    assert three_lines(ended, 2) == f"error: cluster '{project}' was not started by raydebug"
    assert f"docker compose --project-name {project} down" in ended.stderr


@pytest.mark.parametrize("service", ["head", "worker"])
def test_inside_a_node(cluster, service):
    """`docker compose exec head raydebug paused` finds its own cluster; so do `ps` and a worker."""
    node = next(c for c in containers(cluster) if c.service == service)
    assert json.loads(docker("exec", node.name, "raydebug", "paused", "--json")) == {"version": 1, "pauses": []}
    nodes = json.loads(docker("exec", node.name, "raydebug", "ps", "--json"))["nodes"]
    assert {one["state"] for one in nodes} == {"alive"}


GRPC_HEALTH = """
import sys, grpc
for port in (6379, 6380, 6381):
    ask = grpc.insecure_channel(f"head:{port}").unary_unary(
        "/grpc.health.v1.Health/Check", request_serializer=lambda it: it, response_deserializer=lambda it: it)
    print(port, ask(b"", timeout=20))
"""


def test_grpc_health_is_open(cluster):
    """gRPC's own health service answers without a token on three ports of the head, with one bit."""
    worker = container_of(cluster, "gateway")
    said = docker("exec", worker.name, "python", "-c", GRPC_HEALTH)
    assert said.splitlines() == [rf"{port} b'\x08\x01'" for port in (6379, 6380, 6381)]  # field 1, status: SERVING
