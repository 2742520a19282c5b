"""What all tests share: a plain environment, and a marker with the name of the test's folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from fault_lines import Lines

TESTS = Path(__file__).parent
# Set in the shell of whoever runs the tests, these change what the program prints or where it connects to.
_FOREIGN = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")
_FOREIGN_PREFIXES = ("RAY_", "RAYDEBUG_", "VERL_", "PYDEVD_", "DEBUGPY_")
# How this machine runs the tests is not a fact about the program.
_KEPT = ("RAYDEBUG_TEST_",)
# pytest's worker n chooses ports from its part of 20000-31999 (raydebug.cluster.up); the end is left to a pytest
# that runs beside.
_PORTS, _PORTS_FROM, _PORTS_EACH, _WORKERS_AT_MOST = "RAYDEBUG_TEST_PORTS", 20000, 1500, 6


def pytest_configure(config: pytest.Config) -> None:
    """Strip the environment before the first test module is imported: constants are read at import."""
    for name in list(os.environ):
        if name in _FOREIGN or (name.startswith(_FOREIGN_PREFIXES) and not name.startswith(_KEPT)):
            del os.environ[name]
    worker = os.environ.get("PYTEST_XDIST_WORKER")  # gw0, gw1 ...
    if worker:
        number = int(worker.removeprefix("gw"))
        assert number < _WORKERS_AT_MOST, f"{_WORKERS_AT_MOST} workers at most: each has {_PORTS_EACH} ports"
        first = _PORTS_FROM + number * _PORTS_EACH
        os.environ[_PORTS] = f"{first}-{first + _PORTS_EACH}"
    state = tempfile.mkdtemp(prefix="rdt-")
    os.environ["XDG_STATE_HOME"] = state  # no test sees the user's clusters, nor those of another worker
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    config.pluginmanager.register(Lines(writes=worker is None))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder's name: unit, ray, compose, gpu; tests that share a cluster run in one worker."""
    for item in items:
        if item.get_closest_marker("long") and os.environ.get("RAYDEBUG_TEST_LONG") != "1":
            item.add_marker(pytest.mark.skip(reason="a test of `nox -s all`: RAYDEBUG_TEST_LONG=1"))
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(folder)
        if group := _group(item, folder):
            item.add_marker(pytest.mark.xdist_group(group))
    if "PYTEST_XDIST_WORKER" in os.environ:
        # A long test that began last would run on by itself. Groups begin first anyway, and keep their order.
        items.sort(key=lambda item: 0.0 if item.get_closest_marker("xdist_group") else -_limit_s(item))
        for item in items:  # others run beside it; the limit ends a test that hangs, it measures nothing
            item.add_marker(pytest.mark.timeout(3 * _limit_s(item)), append=False)


def _group(item: pytest.Item, folder: str) -> str | None:
    """Return what a test shares a worker with, unless it says so itself: a cluster, a gateway, or two cores."""
    if item.get_closest_marker("xdist_group"):
        return None
    if folder == "compose":
        return "compose"
    if "shared_gateway" in getattr(item, "fixturenames", ()):
        return item.path.stem
    if folder == "ray":
        return "ray-shared" if "cluster" in getattr(item, "fixturenames", ()) else "ray-own"
    return None


def _limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout"))
