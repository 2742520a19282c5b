"""`raydebug diagnose` of a job: its processes' logs, at the end of `run` and later."""

from __future__ import annotations

import json

import pytest

from raydebug.cluster.state import Cluster
from raydebug.runs.folder import load_run
from runs import Run, raydebug

WORKER_FAILS = """
import ray
@ray.remote
def work():
    import no_such_package_anywhere
ray.init()
ray.get(work.remote())
"""


@pytest.mark.timeout(120)
def test_failed_job(run, cluster: Cluster) -> None:
    """`run` names cause and fix of a job that fails in a worker; `diagnose` shows its line and its snapshot."""
    job: Run = run("--", "python", "-c", WORKER_FAILS)
    said = job.end(code=1)
    assert "a package is not installed where it is imported (missing-python-package)" in said, said
    assert said.endswith("next: raydebug open\n")
    job_id = load_run("last").id
    done = raydebug("diagnose", job_id, "--name", cluster.name, "--json")
    document = json.loads(done.stdout)
    first = document["diagnoses"][0]
    assert (done.returncode, first["class"], first["confidence"]) == (1, "missing-python-package", "exact")
    assert "no_such_package_anywhere" in first["evidence"][0]["text"]
    assert [one["command"] for one in document["related"]] == [f"raydebug open {job_id}"]
    recorded = json.loads(raydebug("report", job_id, "--json").stdout)
    assert [one["code"] for one in recorded["findings"]] == ["missing-python-package"]


NEEDS_A_VARIABLE = """
import os, ray
@ray.remote
def log():
    if os.environ.get("WANDB_MODE") != "offline":
        raise RuntimeError("wandb: api_key not configured (no-tty)")
    return "it has logged"
ray.init()
print(ray.get(log.remote()))
"""


@pytest.mark.long
@pytest.mark.timeout(180)
def test_run_again(run, cluster: Cluster) -> None:
    """`run --again` applies the fix that `run` has said, in the workers too; without a fix it runs the same command."""
    said = run("--", "python", "-c", NEEDS_A_VARIABLE).end(code=1)
    assert "fix: WANDB_API_KEY, WANDB_MODE=offline, or trainer.logger=console; WANDB_MODE=offline" in said, said
    first = next(line for line in said.splitlines() if line.startswith("next: raydebug run --again ")).split()[4]
    again = run("--again", first).end()
    assert f"again: {first} with a fix for wandb-login" in again, again
    assert "it has logged" in again
    last = next(line for line in again.splitlines() if line.startswith("job raydebug-")).split()[1].rstrip(":")
    same = run("--again", last).end()
    assert f"again: {last} as it was; there is no fix that can be applied: no failure is found in its logs" in same, (
        same
    )
    assert "it has logged" in same
