"""`run --record` and `--replay` on a real GRPO training: equal updates without vLLM, and a stop in an edited loss."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import TRAINING
from raydebug.cluster.state import Cluster
from raydebug.runs.folder import load_run
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model
from runs import Run, attach, local_cluster, private_state, starting_runs

LIMIT_S = 900.0  # a hang guard, as in test_tripwires.py
LOSS = """\
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss


@register_policy_loss("mine")
def my_loss(*args, **options):
    loss, metrics = compute_policy_loss_vanilla(*args, **options)
    return 2 * loss, metrics
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A local cluster with a logical GPU, apart from the user's, taken down whatever happens."""
    with private_state(), local_cluster("replay", gpus=1) as found:
        yield found


def updates() -> list[dict[str, float]]:
    """Return the metrics of the last run's updates, and print how long its first one took."""
    run = load_run().document
    phases = {phase["name"]: phase["end_s"] for phase in run["phases"]}
    print({name: round(end, 1) for name, end in phases.items() if end is not None})
    return [{name: step["metrics"][name] for name in ("actor/pg_loss", "actor/grad_norm")} for step in run["steps"]]


@pytest.mark.timeout(3600)
def test_record_and_replay(cluster: Cluster, tmp_path: Path) -> None:
    """A replay makes the recorded updates without vLLM, stops in an edited loss, and refuses another batch or model."""
    build_model(tmp_path / "model")
    build_dataset(tmp_path / "data")
    (tmp_path / "my_losses.py").write_text(LOSS)
    with starting_runs(cluster, cwd=tmp_path) as start:
        text = start("--profile", "debug", "--record", "kept", "--", *TRAINING).end(timeout_s=LIMIT_S)
        assert re.search(r"raydebug: recorded steps 1, 2 in \S+/kept \([\d,]+ kB\)", text), text
        assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
        recorded = updates()

        named = "trainer.experiment_name=of_today"  # part of the path of kept rollouts
        text = start("--profile", "debug", "--replay", "kept", "--", *TRAINING, named).end(timeout_s=LIMIT_S)
        assert "vLLMHttpServer" not in text
        assert updates() == [pytest.approx(one, abs=1e-5) for one in recorded]

        edited = (
            "actor_rollout_ref.actor.policy_loss.loss_mode=mine",
            "actor_rollout_ref.model.external_lib=my_losses",
        )
        job: Run = start(
            "--profile", "debug", "--replay", "kept", "--break", "my_losses.py:my_loss,max=1", "--", *TRAINING, *edited
        )
        (pause,) = job.pauses(1, timeout_s=LIMIT_S)
        assert "torch.Tensor" in attach(cluster, pause["id"], "tensor options['advantages']", "c").stdout
        job.end(timeout_s=LIMIT_S)
        assert len(updates()) == 2

        text = start("--profile", "debug", "--replay", "kept", "--", *TRAINING, "data.train_batch_size=2").end(2)
        assert "cause: train_batch_size: 4 recorded, 2 now" in text
        build_model(tmp_path / "other", seed=1)
        other = "actor_rollout_ref.model.path=other"
        text = start("--profile", "debug", "--replay", "kept", "--", *TRAINING, other).end(2)
        assert "cause: the model's model.safetensors differs" in text


@pytest.mark.timeout(1800)
def test_only_rollout(cluster: Cluster, tmp_path: Path) -> None:
    """`--only rollout` prints rewards, and no optimizer is built."""
    build_model(tmp_path / "model")
    build_dataset(tmp_path / "data")
    built = "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_optimizer,log=optimizer built"
    with starting_runs(cluster, cwd=tmp_path) as start:
        text = start("--profile", "debug", "--only", "rollout", "--break", built, "--", *TRAINING).end(
            timeout_s=LIMIT_S
        )
    assert re.search(r"reward\S*'?: (np\.float\d+\()?\d", text), text
    assert "Initial validation metrics" in text
    assert "optimizer built" not in text
    assert "step:1 - actor" not in text
