"""What raydebug does in a Ray, a debugpy and an environment that are not the newest."""

from __future__ import annotations

import http.server
import sys
import threading

import pytest

import raydebug
from raydebug.check.env import judge_packages, judge_platform
from raydebug.cluster.dashboard import why_no_gcs
from raydebug.cluster.find import cluster_at
from raydebug.settings import flavours
from raydebug.settings.flavours import has_token_mode, is_tested
from raydebug.worker import records
from raydebug.worker.pydevd_session import AT_LEAST


def test_a_missing_getter_of_ray_is_a_missing_fact(monkeypatch):
    """A Ray whose runtime context lacks every getter costs a pause its ids, and not the pause."""
    monkeypatch.setattr(records, "_ray_context", lambda: object())
    pause = records.describe_pause(sys._getframe(), "breakpoint")
    assert (pause["function"], pause["task"], pause["actor"]) == (
        "test_a_missing_getter_of_ray_is_a_missing_fact", None, None,
    )  # fmt: skip
    assert records.describe_process()["worker_id"] is None
    assert records.describe_work()["job_id"] is None
    assert (records.describe_ray_process() or {})["actor_id"] is None


def test_the_health_of_the_head_is_asked_with_a_user_agent():
    """Dashboards before Ray 2.52 answer 500 without a User-Agent: `ps` sends one, and calls the head alive."""

    class OldDashboard(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers["User-Agent"] else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OldDashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = why_no_gcs(cluster_at(f"127.0.0.1:{server.server_address[1]}", {}))
        server.shutdown()
    assert said is None


@pytest.mark.parametrize(
    ("package", "version", "expected"),
    [
        ("ray", "2.40.0", False), ("ray", "2.41.0", True), ("ray", "2.52.1", True), ("ray", "2.60.0", True),
        ("ray", "2.60.1", False), ("ray", "2.100.0", False), ("ray", "unknown", False),
        ("debugpy", "1.8.5", False), ("debugpy", "1.8.6", True), ("debugpy", "1.8.22", True),
    ],
)  # fmt: skip
def test_range(package, version, expected):
    """Versions are compared as numbers, both ends of the range included; a text without a number is not tested."""
    assert is_tested(package, version) is expected


def test_the_oldest_debugpy_is_the_one_that_a_worker_takes():
    """What `check env` calls tested is what a worker accepts."""
    assert flavours.tested_range("debugpy")[0] == ".".join(map(str, AT_LEAST))


def test_token_mode():
    """Ray asks for a token from 2.52 on."""
    assert [has_token_mode(version) for version in ("2.51.1", "2.52.0", "2.60.0", "3.0.0.dev0")] == [
        False, True, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("package", "version", "expected"),
    [
        ("ray", "2.44.1", []),
        ("ray", "2.40.0", [
            ("error", "ray 2.40.0 is installed; raydebug is tested with 2.41.0 to 2.60.0",
             "pip install 'ray[default]>=2.41.0,<=2.60.0'"),
        ]),
        ("debugpy", "1.8.14", []),
        ("debugpy", "1.8.5", [
            ("error", "debugpy 1.8.5 is installed; raydebug is tested with 1.8.6 to 1.8.22",
             "pip install 'debugpy>=1.8.6,<=1.8.22'"),
        ]),
        ("debugpy", "1.8.23", [
            ("warning", "debugpy 1.8.23 is installed; raydebug is tested with 1.8.6 to 1.8.22",
             "pip install 'debugpy>=1.8.6,<=1.8.22'"),
        ]),
    ],
)  # fmt: skip
def test_check_env_knows_the_range(package, version, expected):
    """`check env` says nothing of a version in the tested range, and names the range where one is outside of it."""
    has = {"ray": "2.60.0", "debugpy": "1.8.22", package: version}
    facts = {"packages": has, "conflicts": [], "python": "3.13.0", "user_site": [], "executable": "python"}
    found = list(judge_packages(facts, trainer=None))
    assert [(one.severity, one.what, one.fix) for one in found] == expected


@pytest.mark.parametrize(("variables", "has"), [({"VERL_PLATFORM": "cpu"}, False), ({}, True)])
def test_the_platform_for_cpus_is_named(variables, has):
    """A verl training on a CPU needs raydebug-cpu, and `check env` names the package; one on a GPU does without."""
    facts = {
        "packages": {"verl": "0.9.1"}, "conflicts": [], "python": "3.11.7", "user_site": [], "executable": "python",
    }  # fmt: skip
    found = [one.fix for one in judge_platform({**facts, "variables": variables})]
    fix = f"in the checkout of raydebug {raydebug.__version__}: pip install ./packages/raydebug-cpu"
    assert (fix not in found) == has
