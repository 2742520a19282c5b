"""`raydebug attach --pid` and `--worker` in a real job: running processes are paused, inspected and resumed."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from raydebug.client.gateway_client import fetch_processes
from raydebug.cluster.state import Cluster
from runs import Run, raydebug, three_lines, wait_for

pytestmark = pytest.mark.timeout(120)

SECONDS = "12"


def processes(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the processes that `raydebug ps --processes` lists."""
    done = raydebug("ps", "--processes", "--name", cluster.name, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["processes"]


def at_work(
    run, cluster: Cluster, how: str, who: str, seconds: str = SECONDS, line: str = ""
) -> tuple[Run, dict[str, Any]]:
    """Start a job and return it with its active process, at `line` if given.

    A process that is asked to pause before it reaches a `time.sleep` stops at a line before it.
    """
    job = run("--", "python", "working.py", how, seconds)
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        listed = [p for p in processes(cluster) if bool(p.get("child_of")) == (how == "fork")]
        found[:] = [p for p in listed if who in (p["actor"], p["title"], p["is_driver"] and "driver")]
        doing = (found[0]["doing"] if found else None) or {}
        is_loading = "site-packages" in doing.get("file", "")  # before its work begins
        return bool(doing.get("file")) and not is_loading and line in doing["text"]

    wait_for(is_there, f"'{who}' to work", run=job)
    return job, found[0]


@pytest.mark.parametrize(
    ("how", "who", "thread"),
    [
        ("actor", "Worker", "MainThread"),
        pytest.param("async", "AsyncWorker", "AsyncIO Thread: default", marks=pytest.mark.long),
        ("threads", "Worker", "Dummy-"),
        pytest.param("task", "ray::task", "MainThread", marks=pytest.mark.long),
        ("driver", "driver", "MainThread"),
        pytest.param("fork", "ray::Worker.fork", "MainThread", marks=pytest.mark.long),
    ],
    ids=["actor", "async", "threads", "task", "driver", "fork"],
)
def test_attach_to_a_process_that_works(run, cluster, dashboard, how, who, thread):
    """The process pauses at a line of user code, its values are read, it is stepped, and it finishes its work."""
    job, process = at_work(run, cluster, how, who)
    target = ("--worker", process["worker_id"][:12]) if how in ("actor", "task") else ("--pid", str(process["pid"]))
    done = raydebug("attach", *target, "--name", cluster.name, "-x", "w all", "-x", "p seconds", "-x", "n")
    assert done.returncode == 0, done.stdout + done.stderr + str(process)
    assert SECONDS in done.stdout, done.stdout
    (pause,) = job.listed()
    assert (pause["kind"], pause["pid"], pause["state"]) == ("requested", process["pid"], "waiting")
    assert pause["thread"].startswith(thread)
    if how in ("actor", "async", "threads"):
        assert pause["actor"] == who
    if how in ("actor", "async", "threads", "task"):
        # Ray does not provide the attempt number in an async actor.
        assert (pause["attempt"], pause["worker_id"]) == (None if how == "async" else 1, process["worker_id"])
        assert pause["task"]
    wait_for(lambda: len(dashboard.paused_workers()) == (0 if how == "fork" else 1), "Ray's own table to be right")
    job.attach(pause["id"], "c")
    assert f"done: {how}" in job.end()
    assert job.listed() == []


@pytest.mark.long
def test_ray_get_is_told(run, cluster):
    """A driver that waits in ray.get does not stop; `attach` prints its line, and after --timeout exits with 124."""
    job, process = at_work(run, cluster, "sleep", "driver", "20", line="ray.get(")
    looks: list[object] = []

    def waits() -> bool:  # on a busy machine ray.get imports for seconds before it waits
        time.sleep(0.5)
        looks.extend(each["doing"] for each in fetch_processes(cluster) if each["pid"] == process["pid"])
        return len(looks) > 2 and looks[-1] == looks[-2] == looks[-3]

    wait_for(waits, "the wait", 15, job)
    done = raydebug("attach", "--pid", str(process["pid"]), "--name", cluster.name, "--timeout", "3", "-x", "w")
    assert three_lines(done, 124) == f"error: pid:{process['pid']} did not stop within 3 s"
    assert f"pid {process['pid']}: its MainThread is at working.py:" in done.stderr
    assert "ray.get(w.sleep.remote(s))" in done.stderr
    assert "done: sleep" in job.end()


def test_cancelled_while_paused_on_request(run, cluster, tmp_path):
    """A task that is paused on request and then cancelled ends as a cancelled task."""
    job = run("--", "python", "faults.py", "cancel_at_work", str(tmp_path / "strike"))
    wait_for(lambda: any(p["title"] == "ray::work" for p in processes(cluster)), "the task", run=job)
    (process,) = [p for p in processes(cluster) if p["title"] == "ray::work"]
    raydebug("attach", "--pid", str(process["pid"]), "--name", cluster.name)
    assert [p["kind"] for p in job.listed()] == ["requested"]
    (tmp_path / "strike").touch()
    assert "TaskCancelledError" in job.end().partition("failed as it should: ")[2].partition("\n")[0]


def test_not_a_process_of_a_job(cluster):
    """A process of the cluster itself, and one outside the cluster, are refused in three lines."""
    done = raydebug("attach", "--pid", str(os.getpid()), "--name", cluster.name)
    assert three_lines(done, 1) == "error: the process cannot be paused"
    assert f"cause: process {os.getpid()} is not a process of a job that has a control channel" in done.stderr
    wrong = raydebug("attach", "--pid", "12x", "--name", cluster.name)
    assert three_lines(wrong, 2) == "error: --pid 12x names no process"
    both = raydebug("attach", "3", "--pid", "12", "--name", cluster.name)
    assert (
        three_lines(both, 2)
        == "error: --pid and --worker take one process and nothing else; --thread goes with one of them"
    )
