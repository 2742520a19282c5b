"""A job that requests more resources than its cluster has fails without a wait; the error names both."""

from __future__ import annotations

import subprocess
import sys

import pytest

from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster
from runs import RAYDEBUG, wait_for

ASKS = """
import ray
from ray.util.placement_group import placement_group
ray.init()
ray.get(placement_group([{"CPU": 3, "GPU": 1}] * 8, strategy="STRICT_PACK").ready())
"""


@pytest.mark.timeout(180)
def test_request_that_never_fits(cluster: Cluster) -> None:
    """A job whose placement group fits no node is stopped; the error has the request and the resources; exit code 2."""
    argv = [str(RAYDEBUG), "run", "--name", cluster.name, "--", sys.executable, "-c", ASKS]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    *_, error, cause, fix = done.stderr.splitlines()
    asks = "a placement group of 8 x (3 CPUs, 1 GPU)"
    assert error == f"error: the job asks for {asks}, which cluster 'tests' can never give"
    assert cause.startswith(f"cause: it has 1 node with {cluster.cpus} CPUs, 0 GPUs, ")
    assert fix.startswith("fix: let the program ask for less, or make the cluster larger: raydebug down --name tests")
    jobs = Dashboard(cluster)
    wait_for(lambda: jobs.submitted_jobs()[-1]["status"] == "STOPPED", "the job's end")
