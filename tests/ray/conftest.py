"""A real Ray cluster for the tests, and functions to list its pauses."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator
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
    """A local cluster with its own ports, taken down in any case. Ray takes its disk for almost full."""
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in runs.ALMOST_FULL.items():
                patch.setenv(name, value)
            found = stack.enter_context(local_cluster("tests"))
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


_ENDS = re.compile(
    r"^(?!.*(?:\[state-dump\]|Execution time)).*(?:died|dead|disconnect|exit|kill|error|fail|SIG)", re.IGNORECASE
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """To the report of a test that failed, add what Ray's own processes wrote last about ends and errors."""
    report = yield
    found = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(found, Cluster):
        report.sections.append(("Ray's logs", _last_errors(found.ray_logs)))
    return report


def _last_errors(logs: Path) -> str:
    """Return lines about ends and errors from the logs of GCS, raylet, agent and the newest job's supervisor."""
    supervisors = (*logs.glob("jobs/supervisor-*.log"), *logs.glob("*worker-*-01000000-*"))
    newest = sorted(supervisors, key=lambda path: path.stat().st_mtime)[-4:]
    lines = []
    for path in [*(logs / name for name in ("gcs_server.out", "raylet.out", "dashboard_agent.log")), *newest]:
        if path.exists():
            ends = [line for line in path.read_text(errors="replace").splitlines() if _ENDS.search(line)]
            lines += [path.name, *(f"    {line[:500]}" for line in ends[-20:])]
    return "\n".join(lines)
