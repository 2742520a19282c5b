"""A real cluster of containers for the tests: needs a Docker engine and the image raydebug:core (`raydebug image`)."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import runs
from containers import IMAGE, Attached, container_of, is_healthy, remove_all, wait_healthy
from raydebug.cluster.compose import engine
from raydebug.cluster.find import load_cluster
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.state import Cluster
from raydebug.errors import RaydebugError
from runs import JOBS, Run, raydebug, starting_runs, up_in_containers

# Small enough for two cores that also run other work.
SMALL = {"SHM_SIZE": "300mb", "OBJECT_STORE_BYTES": "100000000", "HEAD_CPUS": "2", "WORKER_CPUS": "8"}


def why_no_docker() -> str | None:
    """Return the reason why these tests cannot run here."""
    try:
        if engine.connect().image_labels(IMAGE) is None:
            return f"there is no image {IMAGE}: raydebug image --flavour core"
    except RaydebugError as failure:
        return f"{failure.what} ({failure.cause})"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip visibly without an engine, or fail with REQUIRE_DOCKER=1."""
    mine = [item for item in items if "/compose/" in str(item.path)]
    reason = why_no_docker() if mine else None
    if reason and os.environ.get("REQUIRE_DOCKER") == "1":
        pytest.exit(f"REQUIRE_DOCKER=1, and {reason}", returncode=1)
    if reason:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def private_state() -> Iterator[Path]:
    """The folder of the tests' clusters, apart from the user's."""
    with runs.private_state() as folder:
        os.environ.update(SMALL, RAYDEBUG_IMAGE=IMAGE)
        yield folder


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the containers mount as /workspace: the jobs of the tests."""
    folder = tmp_path_factory.mktemp("project")
    folder.chmod(0o755)
    for path in JOBS.glob("*.py"):
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="session")
def cluster(private_state: Path, project: Path) -> Iterator[Cluster]:
    """Head, gateway and two workers, taken down in any case."""
    name = f"test{os.getpid()}"
    done = up_in_containers(name, project, "--workers", "2")
    assert done.returncode == 0, done.stderr
    found = load_cluster(name)
    try:
        yield found
    finally:
        assert kind_of(found).take_down() == []


@pytest.fixture
def run(cluster: Cluster, project: Path) -> Iterator[Callable[..., Run]]:
    """Start jobs; those that still run when the test ends are stopped."""
    with starting_runs(cluster, project) as start:
        yield start


@pytest.fixture
def name() -> Iterator[str]:
    """An unused cluster name; everything with this name is removed at the end."""
    name = f"fx-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    yield name
    remove_all(name)


# A cluster for fault tests, repaired between tests


@pytest.fixture(scope="module")
def patient(private_state: Path, project: Path) -> Iterator[Cluster]:
    """A cluster for one test module: head, gateway, one worker."""
    name = f"fx-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    done = up_in_containers(name, project)
    assert done.returncode == 0, done.stderr
    yield load_cluster(name)
    remove_all(name)


@pytest.fixture
def victim(patient: Cluster, project: Path) -> Cluster:
    """The same cluster, repaired by `up` after the previous test."""
    if not is_healthy(patient):
        done = raydebug("up", "--cluster", "compose", "--name", patient.name, cwd=project, timeout=200)
        assert done.returncode == 0, done.stderr
        wait_healthy(patient)
    return patient


@pytest.fixture
def start(victim: Cluster, project: Path) -> Iterator[Callable[..., Run]]:
    """Start jobs on it and end those that still run afterwards."""
    with starting_runs(victim, project) as start:
        yield start


@pytest.fixture
def paused(victim: Cluster, start: Callable[..., Run], project: Path) -> Iterator[tuple[Run, dict[str, Any], Attached]]:
    """A task paused on the worker, with an attached prompt."""
    job = start("--", "python", "cases.py", "on_worker")
    (pause,) = job.pauses(1)
    assert container_of(victim, "worker").address == pause["ip"]
    client = Attached(victim, pause["id"], project)
    yield job, pause, client
    client.close()
