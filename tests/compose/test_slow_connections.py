"""Slow connections from another container of the cluster's network, without the token."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from containers import IMAGE, docker
from raydebug.client.gateway_client import fetch_pauses
from raydebug.cluster.compose.project import project_of
from runs import raydebug, wait_for

TESTS = Path(__file__).resolve().parents[1]
IS_LONG = os.environ.get("RAYDEBUG_TEST_LONG") == "1"
CONNECTIONS, BREAKPOINTS = (1000, 20) if IS_LONG else (300, 4)
SECONDS = 600  # longer than the test
PORTS = (5678, 5679)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_s9_slow_connections_in_the_network(cluster, run, took):
    """S9: slow connections from another container to both ports prevent no attach to a job's breakpoint."""
    attackers = []
    try:
        for port in PORTS:
            name = f"slow-{cluster.name}-{port}"
            mount = f"{TESTS / 'support' / 'slow_connections.py'}:/slow_connections.py:ro"
            docker("run", "--detach", "--rm", "--init", "--name", name, "--network",
                   f"{project_of(cluster.name)}_default", "--volume", mount, IMAGE,
                   "python", "/slow_connections.py", "gateway", str(port), str(CONNECTIONS), str(SECONDS))  # fmt: skip
            attackers.append(name)
        time.sleep(3)
        job = run("--", "python", "breaks_often.py", str(BREAKPOINTS))
        listed, attached = [], []
        for _ in range(BREAKPOINTS):
            (pause,) = job.pauses(1, 90)
            seen = time.time()
            begin = time.monotonic()
            done = raydebug("attach", pause["id"], "--name", cluster.name, "-x", "p at", "-x", "c")
            attached.append(time.monotonic() - begin)
            assert done.returncode == 0, done.stderr
            listed.append(seen - float(done.stdout))
            wait_for(lambda before=pause["id"]: all(p["id"] != before for p in fetch_pauses(cluster)), "it to resume")
        assert "done: all" in job.end()
        assert "not paused" not in job.text
        running = docker("ps", "--format", "{{json .Names}}").split()
        assert {json.dumps(name) for name in attackers} <= {*running}, "they were there all the time"
    finally:
        for name in attackers:
            docker("rm", "--force", name)
    took("a breakpoint was listed after at most (the job's first pause loads the debugger)", max(listed), 2.0)
    took("`raydebug attach -x p -x c`, the whole command", max(attached), None)
