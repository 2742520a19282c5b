"""`raydebug job` on a real cluster: lists, states, logs by role and rank, stop and wait."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from raydebug.client.gateway_client import fetch_pauses
from raydebug.cluster.state import Cluster
from raydebug.runs.folder import load_run
from runs import JOBS, RAYDEBUG, Run, wait_for
from verl_fork import make_fork

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def job(cluster: Cluster) -> Callable[..., str]:
    """Run `raydebug job`; return stdout, or stderr if it has to fail."""

    def call(*arguments: str, exit_code: int = 0) -> str:
        done = subprocess.run([str(RAYDEBUG), "job", *arguments, "--name", cluster.name], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stderr if exit_code else done.stdout

    return call


def detach(cluster: Cluster, *command: str) -> str:
    """Start a job with --detach and return its id."""
    argv = [str(RAYDEBUG), "run", "--name", cluster.name, "--detach", "--", *command]
    done = subprocess.run(
        argv, cwd=JOBS, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_job_that_fails(cluster: Cluster, job: Callable[..., str]) -> None:
    """One of two ranks raises: its own lines and the exit code are reported."""
    submission_id = detach(cluster, "python", "ranks.py")
    assert job("wait", submission_id, exit_code=1).endswith(f"job {submission_id}: failed\n")
    listed = next(one for one in json.loads(job("list", "--json"))["jobs"] if one["id"] == submission_id)
    assert listed["status"] == "failed"
    assert listed["command"] == "python ranks.py"
    assert listed["exit_code"] == 1
    assert job("logs", submission_id, "--role", "trainer", "--rank", "1", "--grep", "reward") == (
        "[Trainer rank 1] reward at rank 1\n"
    )
    both = job("logs", submission_id, "--role", "Trainer", "--grep", "^reward").splitlines()
    assert both == ["[Trainer rank 0] reward at rank 0", "[Trainer rank 1] reward at rank 1"]
    assert "no process of job" in job("logs", submission_id, "--rank", "7", exit_code=1)


def test_follow_stop_and_unknown(cluster: Cluster, job: Callable[..., str], run: Callable[..., Run]) -> None:
    """`logs --follow` streams lines and ends with the job, `wait` ends at its limit; `stop` ends the job."""
    submission_id = detach(
        cluster, "python", "-u", "-c", "import time\nfor i in range(900): print('tick', i); time.sleep(.1)"
    )
    argv = [str(RAYDEBUG), "job", "logs", submission_id, "--follow", "--grep", "^tick", "--name", cluster.name]
    following = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "tick 0\n"

    def states() -> dict[str, str]:
        return {each["id"]: each["status"] for each in json.loads(job("list", "--json"))["jobs"]}

    assert states()[submission_id] == "running"
    assert "did not end within 0 s" in job("wait", submission_id, "--timeout", "0", exit_code=124)
    job("stop", submission_id)
    rest = following.stdout.read().splitlines()
    assert following.wait(30) == 0
    assert rest[:3] == ["tick 1", "tick 2", "tick 3"]
    assert rest == [f"tick {number}" for number in range(1, len(rest) + 1)], "each line once"
    assert states()[submission_id] == "stopped"
    assert "there is no job 'nope'" in job("stop", "nope", exit_code=1)
    job("stop", submission_id)  # again: the job has ended, which is not an error


def test_record_of_a_profile(cluster: Cluster, tmp_path: Path) -> None:
    """The record of a run has the profile's changes as its driver wrote them, independent of the command's output."""
    make_fork(tmp_path, version="0.9.1")
    # How many GPUs it asks for is not known before it runs: the cluster has none, and `run` would refuse it.
    gpus = "$(python -c 'print(8)')"
    training = f"python -m verl.trainer.main_ppo data.train_batch_size=512 trainer.n_gpus_per_node={gpus}"
    script = f'echo "  a: b -> c (d)"; {training} | tail -1\n'
    (tmp_path / "run.sh").write_text(script)
    argv = [str(RAYDEBUG), "run", "--name", cluster.name, "--profile", "debug", "--", "bash", "run.sh"]
    subprocess.run(argv, cwd=tmp_path, check=True, timeout=60, stdin=subprocess.DEVNULL, capture_output=True)
    changes = load_run().document["changes"]
    assert {"key": "a", "old": "b", "new": "c", "why": "d"} not in changes
    assert [(one["old"], one["new"]) for one in changes if one["key"] == "data.train_batch_size"] == [("512", "8")]


def test_follow_as_run_does(cluster: Cluster) -> None:
    """`logs -f` shows a running job's log and pauses, and returns its exit code."""
    submission_id = detach(cluster, "python", "cases.py", "task")
    argv = [str(RAYDEBUG), "job", "logs", "-f", submission_id, "--name", cluster.name]
    following = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: any(p["job"] == submission_id for p in fetch_pauses(cluster)), "the pause")
    (pause,) = (p for p in fetch_pauses(cluster) if p["job"] == submission_id)
    assert following.stderr is not None
    assert any(f"next: raydebug attach --name {cluster.name} {pause['id']}" in line for line in following.stderr)
    subprocess.run([str(RAYDEBUG), "attach", pause["id"], "--name", cluster.name, "-x", "c"], check=True, timeout=30,
                   stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
    printed, _ = following.communicate(timeout=60)
    assert "done: task" in printed
    assert following.returncode == 0
    run = load_run(submission_id).document  # the follower's record
    assert (run["status"], run["exit_code"], run["command"]) == ("succeeded", 0, ["python", "cases.py", "task"])
    assert [one["id"] for one in run["pauses"]] == [pause["id"]]
    assert run["pauses"][0]["end_s"] > run["pauses"][0]["start_s"]
    assert [phase["name"] for phase in run["phases"]] == ["driver: imports, Ray", "run"]
    assert any(curve["samples"] for curve in run["memory"])
    assert "done: task" in (Path(run["folder"]) / "job.log").read_text()


EXPORTS = """
export PYTHONPATH=$PWD/fork:$PYTHONPATH COLOUR=${SHADE:-red} NCCL_DEBUG=INFO MY_API_KEY=hush RAY_COLOUR=red
for n in $(seq 240); do export "BIG_$n=$(printf '%0600d' $n)"; done
python driver.py | cat
"""
DRIVER = """
import os, ray
ray.init(runtime_env={"env_vars": {"NCCL_DEBUG": "WARN", "RAYDEBUG_JOB": os.environ["RAYDEBUG_JOB"]}})
@ray.remote
def seen():
    import paper
    names = ("COLOUR", "NCCL_DEBUG", "MY_API_KEY", "RAY_COLOUR")
    return [paper.NAME, len(os.environ["BIG_240"]), *(os.environ.get(name) for name in names)]
print("seen:", ray.get(seen.remote()))
"""


def test_exports_of_a_script_reach_the_workers(cluster: Cluster, tmp_path: Path) -> None:
    """Workers see what the job's script exports, made of this shell's variables; ray.init's values win."""
    (tmp_path / "fork").mkdir()
    (tmp_path / "fork" / "paper.py").write_text("NAME = 'ours'\n")
    (tmp_path / "run.sh").write_text(EXPORTS)
    (tmp_path / "driver.py").write_text(DRIVER)
    argv = [str(RAYDEBUG), "run", "--name", cluster.name, "--", "bash", "run.sh"]
    done = subprocess.run(argv, cwd=tmp_path, timeout=90, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=os.environ | {"SHADE": "blue"}, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seen: ['ours', 600, 'blue', 'WARN', None, None]" in done.stdout
    assert "BIG_99, COLOUR, NCCL_DEBUG, PYTHONPATH" in done.stdout + done.stderr
