"""`raydebug check cluster` on a real cluster of two nodes: equal nodes, a node that differs, and a dead node."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydebug import process
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.environment import cluster_environment
from raydebug.cluster.state import Cluster
from runs import local_cluster, raydebug

pytestmark = pytest.mark.skipif(
    "RAYDEBUG_TEST_TWO_NODES" not in os.environ,
    reason="a second node on loopback: Ray 2.60 looks for the head at the outer address, where it does not listen;"
    " RAYDEBUG_TEST_TWO_NODES=1 where that is fixed",
)
SECOND = "127.0.0.2"
JOIN_S = 60.0


@pytest.fixture
def pair(private_state: Path) -> Iterator[Cluster]:
    """A cluster for this test alone."""
    with local_cluster("pair") as found:
        yield found


@pytest.fixture
def join(pair: Cluster) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a second node with further variables; it ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**variables: str) -> subprocess.Popen[bytes]:
        argv = [pair.python, "-m", "ray.scripts.scripts", "start", f"--address={pair.host}:{pair.ports['gcs']}",
                f"--node-ip-address={SECOND}", "--num-cpus=1", "--block"]  # fmt: skip
        joins = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}  # 0 keeps a local cluster to one node
        environment = {**cluster_environment(os.environ, pair, {}), **joins, **variables}
        started.append(process.start(argv, env=environment, output=subprocess.DEVNULL))
        deadline = time.monotonic() + JOIN_S
        while not any(n["node_ip"] == SECOND and n["state"] == "ALIVE" for n in Dashboard(pair).nodes()):
            assert time.monotonic() < deadline, "the second node did not join"
            time.sleep(0.2)
        return started[-1]

    yield start
    for one in started:
        one.terminate()
        one.wait(20)


def check(pair: Cluster) -> tuple[int, dict[str, object]]:
    """Run the checklist; return the exit code and the only stage of its document."""
    done = raydebug("check", "cluster", "--name", pair.name, "--json", timeout=300)
    (stage,) = json.loads(done.stdout)["stages"]
    return done.returncode, stage


@pytest.mark.timeout(400)
def test_two_nodes_that_are_well(pair: Cluster, join: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Two matching nodes pass; no listening port of the check remains."""
    join()
    code, stage = check(pair)
    assert (code, stage["status"]) == (0, "passed"), stage


@pytest.mark.timeout(400)
def test_a_node_of_another_kind(pair: Cluster, join: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """A node with another version of a package is named, with both versions; a dead node is reported as dead."""
    info = tmp_path / "tensordict-0.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensordict\nVersion: 0.9.0\n\n")
    node = join(PYTHONPATH=str(tmp_path))
    code, stage = check(pair)
    assert code == 1
    said = {finding["code"]: finding["what"] for finding in stage["findings"]}
    assert "tensordict" in said["env.node-differs"]
    assert "0.9.0" in said["env.node-differs"]
    node.terminate()
    node.wait(20)
    deadline = time.monotonic() + JOIN_S
    while any(n["node_ip"] == SECOND and n["state"] == "ALIVE" for n in Dashboard(pair).nodes()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    code, stage = check(pair)
    assert code == 1
    assert f"node {SECOND} is dead" in [finding["what"] for finding in stage["findings"]]
