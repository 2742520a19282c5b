"""The numbers check on a real GRPO training: spoiled weights of the rollout engine are found; without, nothing is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo import TRAINING
from raydebug.cluster.state import Cluster
from raydebug.runs.folder import load_run
from raydebug.runs.timeline import PARTS, read_recorded
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model
from raydebug.trace.lanes import groups_of
from raydebug.trace.why import steps_of
from raydebug.trainers.verl.numbers import PEARSON, PEARSON_LEAST
from runs import local_cluster, private_state, starting_runs

TRAINING_LIMIT_S = 900.0  # a hang guard, as in test_tripwires.py

# Replaces every matrix of the engine after it has received the actor's weights for the first time (verl 0.9.1).
SPOILS = """
import importlib.util, os, sys

NAME = "verl.workers.rollout.vllm_rollout.utils"

class Spoils:
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def load_and_patch(module):
            load(module)
            patch(module.vLLMColocateWorkerExtension)
        spec.loader.exec_module = load_and_patch
        return spec

def patch(extension):
    original = extension.update_weights_from_ipc
    def update_weights_from_ipc(self, *args, **kwargs):
        import torch
        received = original(self, *args, **kwargs)
        extension.update_weights_from_ipc = original
        chance = torch.Generator().manual_seed(1)
        for parameter in self.model_runner.model.parameters():
            if parameter.dim() > 1:
                other = torch.randn(parameter.shape, generator=chance) * 0.1
                parameter.data.copy_(other)
        with open(os.environ["SPOILED"], "a") as file:
            file.write("spoiled\\n")
        return received
    extension.update_weights_from_ipc = update_weights_from_ipc

if "SPOILED" in os.environ:
    sys.meta_path.insert(0, Spoils())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A local cluster with a logical GPU, apart from the user's, taken down whatever happens."""
    with private_state(), local_cluster("numbers", gpus=1) as found:
        yield found


@pytest.fixture
def train(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., tuple[str, dict[str, Any]]]]:
    """Train the tiny model for two steps, and return what the run printed and its record."""
    build_model(tmp_path / "model")
    build_dataset(tmp_path / "data")
    with starting_runs(cluster, cwd=tmp_path) as start:

        def run(*settings: str) -> tuple[str, dict[str, Any]]:
            text = start("--profile", "debug", "--", *TRAINING, *settings).end(timeout_s=TRAINING_LIMIT_S)
            return text, load_run().document

        yield run


@pytest.mark.timeout(1800)
def test_spoiled_weights_of_the_rollout_engine(
    train: Callable[..., tuple[str, dict[str, Any]]], tmp_path: Path
) -> None:
    """Weights of the rollout engine that are spoiled after their first transfer are a finding within two steps."""
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(SPOILS)
    variables = "+ray_kwargs.ray_init.runtime_env.env_vars"
    text, run = train(f"{variables}.PYTHONPATH={tmp_path / 'patch'}", f"{variables}.SPOILED={tmp_path / 'spoiled'}")
    assert (tmp_path / "spoiled").read_text() == "spoiled\n"
    print({step["step"]: step["metrics"] for step in run["steps"]})
    (finding,) = run["findings"]
    assert (finding["code"], finding["severity"]) == ("train.rollout-mismatch", "warning")
    assert re.search(rf"{PEARSON} is \S+ at step [12], expected {PEARSON_LEAST} or more$", finding["what"]), finding
    assert ". Likely causes, in order: the rollout engine does not have the actor's weights" in finding["why"]
    said = (
        f"warning: {finding['what']}  [{finding['code']}]\nnext: raydebug run --stop-when '{PEARSON} < {PEARSON_LEAST}'"
    )
    assert text.count(said) == 1, text
    assert text.index("succeeded") < text.index(f"warning [{finding['code']}]: {finding['what']}; {finding['why']}\n")


@pytest.mark.timeout(1800)
def test_healthy_training(train: Callable[..., tuple[str, dict[str, Any]]]) -> None:
    """The same training with the weights as they came gives no finding; its trace has its phases as verl timed them."""
    text, run = train()
    print({step["step"]: step["metrics"] for step in run["steps"]})
    assert [step["step"] for step in run["steps"]] == [1, 2]
    assert run["findings"] == []
    assert "[train." not in text
    assert all(step["metrics"][PEARSON] > PEARSON_LEAST for step in run["steps"])
    check_trace(run)


def check_trace(run: dict[str, Any]) -> None:
    """Check that the trace of a training of two steps has all lanes, and the phases of each step as verl timed them."""
    recorded = read_recorded(load_run())
    steps = {step.number: step for step in steps_of(recorded)}
    for logged in run["steps"]:
        timed = {name.partition("/")[2]: value for name, value in logged["metrics"].items() if "timing_s/" in name}
        phases = {name: seconds for name, seconds in steps[logged["step"]].phases.items() if name in timed}
        assert {"gen", "old_log_prob", "update_actor", "update_weights"} <= phases.keys()
        assert sum(phases.values()) == pytest.approx(sum(timed[name] for name in phases), rel=0.05)
        assert steps[logged["step"]].took_s == pytest.approx(timed["step"], rel=0.05)
    samples = {one.of for process in recorded.processes for one in process.spans if one.name in PARTS}
    assert samples
    assert "" not in samples
    titles = [lane.title for group in groups_of(recorded) for lane in group.lanes]
    for wanted in ("phases", "states", "samples: generate", "samples: reward", "vLLM requests", "Ray tasks"):
        assert wanted in titles
    assert not [note for note in recorded.notes if "spans" in note], recorded.notes
