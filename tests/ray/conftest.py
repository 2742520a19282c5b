"""A real Ray cluster for the tests, and the means to look at what pauses on it."""

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
from runs import Run, starting_runs


@pytest.fixture(scope="session", autouse=True)
def private_state() -> Iterator[Path]:
    """Keep the tests' clusters apart from the user's; the folder goes with the tests."""
    folder = Path(tempfile.mkdtemp(prefix="rdt-"))
    before = dict(os.environ)
    os.environ["XDG_STATE_HOME"] = str(folder)
    for name in [n for n in os.environ if n.startswith(("RAY_", "RAYDEBUG_"))]:
        del os.environ[name]
    yield folder
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(private_state: Path) -> Iterator[Cluster]:
    """A local cluster of its own ports, taken down whatever happens; RAYDEBUG_TEST_WARM=1: a warm one."""
    warm = os.environ.get("RAYDEBUG_TEST_WARM") == "1"
    wish = local.Wish(name="tests", python=sys.executable, dashboard_port=0, gateway_port=0, warm=warm)
    found, _ = local.bring_up(wish)
    try:
        yield found
    finally:
        assert local.take_down(found) == []


@pytest.fixture
def run(cluster: Cluster) -> Iterator[Callable[..., Run]]:
    """Start jobs; whatever still runs when the test ends is stopped."""
    with starting_runs(cluster) as start:
        yield start


@pytest.fixture
def dashboard(cluster: Cluster) -> Dashboard:
    """Ray's own view of the cluster."""
    return Dashboard(cluster)
