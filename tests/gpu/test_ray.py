"""A local Ray cluster on a GPU host: an actor that owns the GPU pauses, crashes, and is attached to while it works."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator

import pytest

from raydebug.cluster.state import Cluster
from runs import Run, local_cluster, private_state, raydebug, starting_runs, wait_for

pytestmark = pytest.mark.timeout(240)
START_S = 120.0  # a worker that imports torch and makes a CUDA context


@pytest.fixture(scope="module")
def cluster(gpu: None) -> Iterator[Cluster]:
    """A local cluster started without --gpus: it finds the GPUs itself."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed in this environment")
    with private_state(), local_cluster("gpu") as found:
        yield found


@pytest.fixture
def run(cluster: Cluster) -> Iterator[Callable[..., Run]]:
    """Start jobs; whatever still runs when the test ends is stopped."""
    with starting_runs(cluster) as start:
        yield start


def test_breakpoint(run):
    """A breakpoint in an actor with a GPU is listed, its CUDA tensor is read, and the job finishes."""
    job = run("--", "python", "gpu_actor.py", "breakpoint")
    (pause,) = job.pauses(1, START_S)
    assert pause["function"] == "Trainer.breakpoint"
    assert "[4]  float32  cuda:0\n  min 42  max 42" in job.attach(pause["id"], "tensor weight")
    job.attach(pause["id"], "c")
    assert "done: 168.0" in job.end()


def test_crash(run):
    """A CUDA error of shapes pauses the actor at the frame that raised, with its tensors."""
    job = run("--debugger", "post-mortem", "--", "python", "gpu_actor.py", "crash")
    (pause,) = job.pauses(1, START_S)
    assert (pause["kind"], pause["function"]) == ("post-mortem", "Trainer.crash")
    assert "min 42  max 42" in job.attach(pause["id"], "tensor weight")
    job.attach(pause["id"], "c")
    job.end(1)


def test_attach_while_it_works(run, cluster):
    """`attach --worker` stops an actor between its launches, and it works to its end."""
    job = run("--", "python", "gpu_actor.py", "work")
    workers: list[str] = []

    def is_there() -> bool:
        listed = json.loads(raydebug("ps", "--processes", "--name", cluster.name, "--json").stdout)["processes"]
        workers[:] = [p["worker_id"] for p in listed if p["actor"] == "Trainer" and (p["doing"] or {}).get("file")]
        return bool(workers)

    wait_for(is_there, "the actor to work", START_S, job)
    done = raydebug("attach", "--worker", workers[0], "--name", cluster.name, "-x", "w", "-x", "c")
    assert "gpu_actor.py:32 work" in done.stdout, done.stdout + done.stderr
    assert "done: True" in job.end()
