"""A real Ray cluster for the tests, and functions to list its pauses."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydebug.cluster import local
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import UpOptions
from runs import Run, starting_runs


@pytest.fixture(scope="session", autouse=True)
def private_state() -> Iterator[Path]:
    """Separate the tests' clusters from the user's; the folder is removed with the tests."""
    folder = Path(tempfile.mkdtemp(prefix="rdt-"))
    before = dict(os.environ)
    os.environ["XDG_STATE_HOME"] = str(folder)
    for name in [n for n in os.environ if n.startswith(("RAY_", "RAYDEBUG_")) and not n.startswith("RAYDEBUG_TEST_")]:
        del os.environ[name]
    yield folder
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(private_state: Path) -> Iterator[Cluster]:
    """A local cluster with its own ports, taken down in any case."""
    found, _ = local.bring_up(UpOptions(name="tests", python=sys.executable, dashboard_port=0, gateway_port=0))
    try:
        yield found
    finally:
        assert local.take_down(found) == []


@pytest.fixture
def run(cluster: Cluster) -> Iterator[Callable[..., Run]]:
    """Start jobs; those that still run when the test ends are stopped."""
    with starting_runs(cluster) as start:
        yield start


@pytest.fixture
def dashboard(cluster: Cluster) -> Dashboard:
    """Ray's own view of the cluster."""
    return Dashboard(cluster)
