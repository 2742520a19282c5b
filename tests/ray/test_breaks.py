"""Breakpoints set and removed while a Ray job runs, and conditions by rank and step."""

from __future__ import annotations

import json

import pytest

from runs import JOBS, raydebug, wait_for


@pytest.mark.long
@pytest.mark.timeout(120)
def test_break_add_list_rm(cluster, run):
    """A running job stops at a new breakpoint, in the given rank and from the given step on; then it resumes."""
    job = run("--", "python", "loop.py", "20")
    wait_for(lambda: "working" in job.text, "the job to work", run=job)
    name = ("--name", cluster.name)
    added = raydebug("break", "add", "loop.py:update,rank=1,step>=5,once", *name, "--json", cwd=JOBS)
    assert added.returncode == 0, added.stderr
    break_id = json.loads(added.stdout)["break"]["id"]
    (pause,) = job.pauses(1)
    assert (pause["rank"], pause["where"], pause["line"]) == (1, "loop.py:update", 11)
    assert pause["step"] >= 5
    listed = json.loads(raydebug("break", "list", *name, "--json").stdout)["breaks"]
    states = {p["pid"]: p["state"] for b in listed if b["id"] == break_id for p in b["processes"]}
    assert states[pause["pid"]] == "set"
    assert f"{pause['step']}" in job.attach(pause["id"], "p step", "c")
    assert raydebug("break", "rm", break_id, *name).stdout == f"removed {break_id}\n"
    again = raydebug("break", "rm", break_id, *name)
    assert again.returncode == 2
    assert again.stderr.startswith(f"error: there is no breakpoint '{break_id}'\n")
    assert "steps" in job.end()


@pytest.mark.long
@pytest.mark.timeout(120)
def test_function_that_is_unpickled_later(cluster, run, tmp_path):
    """An actor that starts after `break add` also stops, in a function of the driver's script that it unpickles."""
    job = run("--", "python", "late.py", str(tmp_path / "go"))
    wait_for(lambda: "working" in job.text, "the first actor to work", run=job)
    name = ("--name", cluster.name)
    added = raydebug("break", "add", "late.py:update,if=number == 40", *name, "--json", cwd=JOBS)
    assert added.returncode == 0, added.stderr
    (tmp_path / "go").touch()
    (pause,) = job.pauses(1)
    assert (pause["function"], job.attach(pause["id"], "p number", "c").strip()) == ("update", "40")
    assert "done: 41" in job.end()
    assert raydebug("break", "rm", json.loads(added.stdout)["break"]["id"], *name).returncode == 0


@pytest.mark.timeout(120)
def test_breaks_go_with_their_job(cluster, run):
    """Breakpoints of --break are listed with their job while it runs, and are not listed after it."""
    job = run("--break", "loop.py:update,rank=0,every=10,max=1", "--", "python", "loop.py", "3")
    (pause,) = job.pauses(1)
    (listed,) = json.loads(raydebug("break", "list", "--name", cluster.name, "--json").stdout)["breaks"]
    assert (listed["where"], listed["job"]) == ("loop.py:update", pause["job"])
    job.attach(pause["id"], "c")
    job.end()
    assert json.loads(raydebug("break", "list", "--name", cluster.name, "--json").stdout)["breaks"] == []


@pytest.mark.long
@pytest.mark.timeout(120)
def test_mode(cluster, run):
    """`raydebug ps` shows the debugger of the cluster and of each running job, and its origin."""
    job = run("--debugger", "post-mortem", "--", "python", "loop.py", "8")
    wait_for(lambda: "working" in job.text, "the job to work", run=job)
    modes = json.loads(raydebug("ps", "--name", cluster.name, "--json").stdout)["modes"]
    assert [(m["debugger"], m["from"]) for m in modes] == [
        ("breakpoint", "raydebug up"),
        ("post-mortem", "raydebug run --debugger"),
    ]
    line = f"debugger   post-mortem in {modes[1]['for']} (raydebug run --debugger)"
    assert line in raydebug("ps", "--name", cluster.name).stdout.splitlines()
    job.end()
