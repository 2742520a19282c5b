"""`raydebug stacks` on ranks of a real torch (gloo, CPU) that hang in planted ways, and on slow ones that do not."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raydebug.cluster.state import Cluster
from runs import Run, local_cluster, private_state, raydebug, starting_runs

pytestmark = pytest.mark.timeout(360)

SETTLED_S = 240.0  # 16 processes import torch at once, on as little as two cores
# kind, certainty, ranks, words of the verdict
HANGS: dict[str, tuple[str, str, list[int], tuple[str, ...]]] = {
    "mismatch": ("collective-mismatch", "certain", [2],
                 ("rank 2 calls broadcast [4] Float at ", "Trainer.sync_metrics; ranks 0,1 call all_reduce [1000]",
                  "in collective 4 of group 0 default_pg gloo")),
    "missing": ("missing-rank", "certain", [1],
                ("Trainer rank 1 did not join all_reduce [1000] Float: it is at ",
                 "Trainer.load_batch, waiting for a lock or an event (wait); rank 0 waits in collective 4",
                 "Trainer.sync_gradients")),
    "skipped": ("missing-rank", "certain", [1], ("it is idle, its task has returned; rank 0 waits in collective 4",)),
    "unrecorded": ("missing-rank", "likely", [1],
                   ("rank 1 did not join all_reduce: it is at ", "Trainer.load_batch, waiting for a lock",
                    "; Trainer rank 0")),
    "sync": ("missing-rank", "certain", [0],
             ("did not join broadcast [4] torch.float32: it is at ", "Side.load_batch, waiting for a lock or an event",
              "in collective 1 of group sync ray.util.collective")),
    "crashed": ("crashed-peer", "certain", [3],
                ("the process of Trainer rank 3", "is gone; rank 1 waits in collective 4")),
    "loader": ("lock", "likely", [],
               ("waits for a lock at ", "Rows.__getitem__", " waits for a worker of its DataLoader")),
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A local cluster for this module."""
    with private_state(), local_cluster("hangs", gpus=0) as found:
        yield found


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> Iterator[dict[str, Run]]:
    """All planted programs, started at once: most of their time goes to the import of torch."""
    with starting_runs(cluster) as start:
        started = {how: start("--", "python", "hangs/planted_torch.py", how) for how in (*HANGS, "slow")}
        yield started
        for job in started.values():
            job.process.send_signal(signal.SIGINT)
        for job in started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(25)


def look(cluster: Cluster, job: Run, *options: str) -> dict[str, Any]:
    """Return the document of `raydebug stacks --json` on one job."""
    found = re.search(r"^job (\S+): ", job.text, re.M)
    if found is None:
        return {"verdict": {"kind": "not there"}}
    done = raydebug("stacks", found[1], "--name", cluster.name, "--json", *options)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def settle(read: Callable[[], dict[str, Any]], is_it: Callable[[dict[str, Any]], bool], job: Run) -> dict[str, Any]:
    """Read stacks until the verdict is as expected."""
    deadline, document = time.monotonic() + SETTLED_S, read()
    while not is_it(document["verdict"]):
        is_over = job.process.poll() is not None or time.monotonic() > deadline
        assert not is_over, json.dumps(document, indent=1)[-6000:] + job.text[-2000:]
        time.sleep(0.5)
        document = read()
    return document


@pytest.mark.parametrize("how", HANGS)
def test_planted_hang(cluster: Cluster, jobs: dict[str, Run], how: str) -> None:
    """The verdict on a planted hang has the reason, the rank, its line and the collective."""
    kind, certainty, ranks, words = HANGS[how]
    document = settle(
        lambda: look(cluster, jobs[how], "--samples", "2"),
        lambda verdict: verdict["kind"] == kind and all(one in verdict["text"] for one in words),
        jobs[how],
    )
    assert (document["verdict"]["certainty"], document["verdict"]["ranks"]) == (certainty, ranks)


def test_slow_training(cluster: Cluster, jobs: dict[str, Run]) -> None:
    """Ranks that compute for a while between collectives, and wait for the slowest, do not hang."""
    settle(
        lambda: look(cluster, jobs["slow"], "--samples", "2"), lambda verdict: verdict["kind"] == "moving", jobs["slow"]
    )
    for _ in range(3):
        verdict = look(cluster, jobs["slow"], "--samples", "2")["verdict"]
        assert verdict["kind"] == "moving", verdict


@pytest.mark.skipif(
    os.environ.get("RAYDEBUG_TEST_LONG") != "1", reason="tests/cpu/test_slow_ranks.py has the short form"
)
def test_slow_rank(cluster: Cluster) -> None:
    """A rank that the others wait for in each step is named, with its line; the training does not hang."""
    with starting_runs(cluster) as start:
        job = start("--", "python", "hangs/planted_torch.py", "late")
        document = settle(lambda: look(cluster, job), lambda verdict: verdict["kind"] == "slow-rank", job)
    assert document["verdict"]["ranks"] == [1]
    said = document["verdict"]["text"]
    assert said.startswith("Trainer rank 1 is slower than the others: they have waited "), said
    assert "Trainer.read_rows in " in said, said
