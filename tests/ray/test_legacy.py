"""Ray's legacy debugger: its stops are in our list and open in our console, and `ray debug` still works."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pexpect
import psutil
import pytest

from raydebug.cluster import local
from raydebug.cluster.state import Cluster
from runs import Run, wait_for

pytestmark = pytest.mark.timeout(120)


def ray_debug(cluster: Cluster) -> pexpect.spawn[str]:
    """Start Ray's own `ray debug` against the cluster."""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(cluster.token_file),
                   "RAY_DEBUG": "legacy", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # fmt: skip
    argv = ["-m", "ray.scripts.scripts", "debug", "--address", cluster.address]
    return pexpect.spawn(sys.executable, argv, env=environment, timeout=30, encoding="utf-8", dimensions=(40, 200))


def test_breakpoint(run: Callable[..., Run]) -> None:
    """A legacy breakpoint is listed at the user's line, and attached, inspected and stepped in the usual console."""
    job = run("--debugger", "legacy", "--", "python", "cases.py", "task")
    (pause,) = job.pauses(1)
    assert pause["kind"] == "breakpoint"
    assert pause["file"].endswith("cases.py")
    assert pause["task"] == "task"
    printed = job.attach(pause["id"], "p secret", "n", "p secret + 1", "c")
    assert printed.splitlines()[0] == "41"
    assert printed.splitlines()[-1] == "42"
    assert "done: task" in job.end()


def test_it_listens_on_loopback_alone(run: Callable[..., Run], cluster: Cluster) -> None:
    """S8: the only listening socket of a legacy breakpoint is on loopback."""
    job = run("--debugger", "legacy", "--", "python", "cases.py", "task")
    (pause,) = job.pauses(1)
    of_the_worker = _listening({pause["pid"]})
    assert [address.ip for address in of_the_worker if address.ip != "::ffff:127.0.0.1"] == ["127.0.0.1"], "pdb's"
    everywhere = _listening({process.pid for process in local.marked_processes(cluster)})
    assert {address.ip.removeprefix("::ffff:") for address in everywhere} == {"127.0.0.1"}
    job.attach(pause["id"], "c")
    assert "done: task" in job.end()


def _listening(pids: set[int]) -> list[Any]:
    connections = psutil.net_connections("tcp")
    return [c.laddr for c in connections if c.status == psutil.CONN_LISTEN and c.pid in pids]


@pytest.mark.long
def test_post_mortem(run: Callable[..., Run]) -> None:
    """A crash under legacy-post-mortem is listed once, at the frame that raised; the job then fails as without us."""
    job = run("--debugger", "legacy-post-mortem", "--", "python", "cases.py", "pm_task")
    (pause,) = job.pauses(1)
    assert pause["kind"] == "post-mortem"
    assert "ValueError" in pause["exception"]
    assert job.attach(pause["id"], "p secret", "c").splitlines()[0] == "41"
    assert "done: pm_task" in job.end()


@pytest.mark.long
def test_ray_debug_takes_it(run: Callable[..., Run], cluster: Cluster) -> None:
    """`ray debug` lists the same stop at the user's line and opens it; it leaves our list, and the job resumes."""
    job = run("--debugger", "legacy", "--", "python", "cases.py", "task")
    job.pauses(1)
    child = ray_debug(cluster)
    child.expect(r"0 +\| [^\r\n]*cases\.py:\d+")
    child.expect_exact("Enter breakpoint index")
    child.sendline("0")
    child.expect_exact("cases.py")
    child.expect_exact("(Pdb)")
    wait_for(lambda: not job.listed(), "the pause to leave the list", 10.0, job)
    child.sendline("p secret")
    child.expect_exact("41")
    child.sendline("c")
    assert "done: task" in job.end()
    child.close(force=True)


@pytest.mark.long
def test_ray_debug_has_nothing_left(run: Callable[..., Run], cluster: Cluster) -> None:
    """A stop that our console resumed is no longer in the list of `ray debug`."""
    job = run("--debugger", "legacy", "--", "python", "cases.py", "task")
    (pause,) = job.pauses(1)
    job.attach(pause["id"], "c")
    assert "done: task" in job.end()
    child = ray_debug(cluster)
    child.expect_exact("Active breakpoints:")
    child.expect_exact("Enter breakpoint index")
    assert "cases.py" not in (child.before or "")
    child.close(force=True)
