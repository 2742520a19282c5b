"""Memory in the flavour cpu: tensors in a census, and a leak planted in the reward function of a real tiny training."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from demo import TRAINING
from raydebug.profile.apply_profile import apply_profile
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model
from raydebug.worker.census import take
from runs import local_cluster, private_state, raydebug, starting_runs, wait_for

LONG = "RAYDEBUG_TEST_LONG"
REWARD = """
import torch
KEPT = []
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **options):
    KEPT.append(torch.full((1_000_000,), 1.0))
    return 1.0
"""


def test_tensors_in_a_census() -> None:
    """A census counts a storage once, names a model by its variable, and a graph that a tensor keeps with its bytes."""
    import torch

    class Holder:
        pass

    module = sys.modules[__name__]
    module.held = holder = Holder()  # type: ignore[attr-defined]
    try:
        holder.model = torch.nn.Linear(1000, 1000)  # type: ignore[attr-defined]
        holder.views = [torch.ones(500_000)]  # type: ignore[attr-defined]
        holder.views += [holder.views[0][:7], holder.views[0].numpy()]  # type: ignore[attr-defined]
        loss = (torch.ones(1, 1000) * 2.0) @ holder.model.weight  # type: ignore[attr-defined]
        holder.loss = loss.exp().sum()  # type: ignore[attr-defined]
        found = []
        thread = threading.Thread(target=lambda: found.append(take()))
        thread.start()
        thread.join()
    finally:
        del module.held  # type: ignore[attr-defined]
    rows = {(row["holder"], row["kind"]): row for row in found[0]["holders"]}
    assert rows["test_memory.py held.model", "tensor"]["bytes"] == 4 * 1000 * 1001
    views = rows["test_memory.py held.views[*]", "tensor"]
    assert (views["count"], views["bytes"], views["what"]) == (1, 2_000_000, "[7] float32, a view of 2,000,000 bytes")
    graph = "test_memory.py held.loss (autograd graph)"
    assert rows[graph, "graph"]["count"] >= 3
    assert rows[graph, "saved tensor"]["bytes"] >= 4000


@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    os.environ.get(LONG) != "1", reason=f"takes minutes: {LONG}=1 nox -s cpu -- tests/cpu/test_memory.py"
)
def test_a_leak_in_a_reward_worker(tmp_path: Path) -> None:
    """In a real training the process and the holder of a leak in the reward file are named."""
    build_model(tmp_path / "model")
    build_dataset(tmp_path / "data")
    (tmp_path / "score.py").write_text(REWARD)
    command = [*TRAINING[:-1], "reward.custom_reward_function.path=score.py"]
    environ = {**os.environ, "VERL_PLATFORM": "cpu"}
    made = apply_profile(command, profile="debug", environ=environ, folder=tmp_path, search=sys.path).argv
    more = ["trainer.total_training_steps=1000", "trainer.total_epochs=1000", "data.max_response_length=8"]
    with private_state(), local_cluster("leak", gpus=1) as cluster, starting_runs(cluster, cwd=tmp_path) as start:
        run = start("--", *made, *more, env={"VERL_PLATFORM": "cpu"})
        wait_for(lambda: "step:2 - " in run.text, "two steps", 600, run)
        done = raydebug("memory", "--growth", "3", "--json", "--name", "leak", timeout=400)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        print(raydebug("memory", "--name", "leak", timeout=60).stdout, found["grows"], sep="\n")
        first = found["grows"][0]
        names = "RewardLoopWorker reward_loop_worker_0", "score.py KEPT[*]", "step"  # verl names the actor
        assert (first["process"], first["holder"], first["per"]) == names
        assert first["what"] == "[1000000] float32"
