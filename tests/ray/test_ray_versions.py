"""Differences between Ray's releases (2.41 to 2.60) are hidden from raydebug's users, or reported."""

from __future__ import annotations

import contextlib
import json

import httpx
import pytest

import ray
from raydebug.errors import RaydebugError
from raydebug.settings.flavours import has_token_mode
from runs import raydebug, wait_for

pytestmark = pytest.mark.timeout(180)


def test_head_of_any_ray_is_alive(cluster):
    """`ps` reports a healthy head as alive."""
    (node,) = json.loads(raydebug("ps", "--name", cluster.name, "--json").stdout)["nodes"]
    assert (node["role"], node["state"], node["reason"]) == ("head", "alive", None)


def test_dashboard_asks_for_the_token_or_up_says_that_it_does_not(cluster):
    """Ray from 2.52 on refuses clients without the token; with an older one `up` warns in one line who can run code."""
    shown = raydebug("up", "--cluster", "local", "--name", cluster.name)
    assert shown.returncode == 0, shown.stderr
    status = httpx.get(f"{cluster.dashboard}/api/jobs/", trust_env=False).status_code
    warning = (
        f"warning: Ray {ray.__version__} has no token (2.52 and later have one): any user of this machine can run code "
        f"as you through {cluster.dashboard}"
    )
    told = [line for line in shown.stderr.splitlines() if line.startswith("warning: ")]
    assert (status, told) == ((401, []) if has_token_mode(ray.__version__) else (200, [warning]))


def test_a_log_comes_as_it_is(cluster, dashboard):
    """What Ray's dashboard sends of a log file is the file, without marks between its pieces."""
    (node,) = dashboard.nodes()
    lines = "".join(f"line {number}\n" for number in range(100_000))  # of several pieces
    (cluster.ray_logs / "long.log").write_text(lines)

    def text() -> str:
        with contextlib.suppress(RaydebugError):  # the node's agent starts after the node
            return dashboard.log_text(node["node_id"], "long.log")
        return ""

    wait_for(text, "the node's agent")
    assert text() == lines
