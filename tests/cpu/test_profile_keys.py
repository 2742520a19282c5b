"""Our setting words against the installed verl: its keys, its defaults, its own checks."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydebug.profile.keys import PPO_0_9, Key
from raydebug.profile.load import load_profile
from raydebug.profile.overlay import overlay_profile
from raydebug.profile.recognise import Trainer
from raydebug.tiny.model import build_model

TRAINER = Trainer("ppo", "verl.trainer.main_ppo", 3)
ABSENT = object()


@pytest.fixture(scope="module")
def shipped() -> Any:
    """verl's whole config, as it ships it."""
    path = distribution("verl").locate_file("verl/trainer/config/_generated_ppo_trainer.yaml")
    return yaml.safe_load(Path(str(path)).read_text())


def value_at(config: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(config, dict) or part not in config:
            return ABSENT
        config = config[part]
    return config


@pytest.mark.parametrize(("word", "key"), PPO_0_9.items(), ids=list(PPO_0_9))
def test_key_and_default_are_verls(word: str, key: Key, shipped: Any) -> None:
    """Each word's key is in verl's config with the default that we state, or is rightly marked as added."""
    found = value_at(shipped, key.path)
    assert (found is ABSENT) == key.added, key.path
    for other in key.instead_of:
        assert value_at(shipped, other) is not ABSENT, other
    if not key.added and not str(found).startswith("${"):
        stated = key.default if key.default != "[console,wandb]" else ["console", "wandb"]
        assert found == stated, key.path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model for verl to read the config of."""
    return build_model(tmp_path_factory.mktemp("model") / "m").path


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.adv_estimator=grpo"],
        ["algorithm.adv_estimator=gae"],
        ["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=True", "data.train_batch_size=3"],
        ["algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=1", "actor_rollout_ref.rollout.n=5"],
    ],
)
def test_verl_accepts_the_command(overrides: list[str], model: str) -> None:
    """verl composes and validates the config of a command that the profile was laid over."""
    environ = {**os.environ, "VERL_PLATFORM": "cpu"}
    argv = overlay_profile(
        load_profile("debug"),
        TRAINER,
        [
            *overrides,
            "actor_rollout_ref.rollout.name=vllm",
            f"actor_rollout_ref.model.path={model}",
            f"critic.model.path={model}",
            "+ray_kwargs.ray_init.num_gpus=4",
        ],
        environ,
    ).argv
    code = (
        "import sys, hydra\n"
        "from verl.utils.config import validate_config\n"
        "from verl.trainer.ppo.utils import need_critic, need_reference_policy\n"
        "@hydra.main(config_path='pkg://verl.trainer.config', config_name='ppo_trainer', version_base=None)\n"
        "def main(c):\n"
        "    validate_config(config=c, use_reference_policy=need_reference_policy(c), use_critic=need_critic(c))\n"
        "    print('valid', c.trainer.device, c.trainer.n_gpus_per_node, c.ray_kwargs.ray_init)\n"
        "main()\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            *argv,
            "hydra.run.dir=.",
            "hydra.output_subdir=null",
            "hydra/job_logging=disabled",
        ],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "valid cpu 1 {'num_cpus': None" in done.stdout, done.stdout + done.stderr
