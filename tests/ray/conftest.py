"""A real Ray cluster for the tests, and functions to list its pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import runs
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster
from runs import Run, local_cluster, starting_runs


@pytest.fixture(scope="session", autouse=True)
def private_state() -> Iterator[Path]:
    """The folder of the tests' clusters, apart from the user's."""
    with runs.private_state() as folder:
        yield folder


@pytest.fixture(scope="session")
def cluster(private_state: Path) -> Iterator[Cluster]:
    """A local cluster with its own ports, taken down in any case."""
    with local_cluster("tests") as found:
        yield found


@pytest.fixture
def run(cluster: Cluster) -> Iterator[Callable[..., Run]]:
    """Start jobs; those that still run when the test ends are stopped."""
    with starting_runs(cluster) as start:
        yield start


@pytest.fixture
def dashboard(cluster: Cluster) -> Dashboard:
    """Ray's own view of the cluster."""
    return Dashboard(cluster)
