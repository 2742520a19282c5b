"""Our setting words against the installed verl: its keys, its defaults, its own checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raydebug.profile.load import load_profile
from raydebug.profile.overlay import overlay_profile
from raydebug.tiny.model import build_model
from raydebug.trainers.registry import _WITHOUT_VALUE, column_of, recognise
from raydebug.trainers.trainer import Installed, Program
from raydebug.trainers.verl.trainer import VERL

TRAINER = Program(VERL, "ppo", "verl.trainer.main_ppo", 3)
COLUMN = column_of("ppo", "0.9.1")
assert COLUMN is not None


@pytest.fixture(scope="module")
def installed() -> Installed:
    """verl as it is installed here: its version and its whole config. tests/wheels has the other releases."""
    argv = ["python", "-m", TRAINER.module]
    found = VERL.read_config(TRAINER, argv, folder=Path("/"), search=sys.path)
    assert found.values is not None, found.unread
    return found


def test_torchrun_s_options_are_torch_s() -> None:
    """torchrun's options without a value are those that we know: any other one is followed by its value."""
    from torch.distributed.run import get_args_parser

    flags = {
        name
        for action in get_args_parser()._actions
        if action.nargs == 0 and "--help" not in action.option_strings
        for name in action.option_strings
    }
    assert {flag.replace("_", "-") for flag in flags} == _WITHOUT_VALUE
    line = ["torchrun", "--standalone", "--nproc_per_node", "2", "-m", "verl.trainer.sft_trainer", "a=b"]
    parsed, found = get_args_parser().parse_args(line[1:]), recognise(line)
    assert found is not None
    assert (parsed.training_script, parsed.training_script_args) == (found.module, line[found.arguments_at :])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model for verl to read the config of."""
    return build_model(tmp_path_factory.mktemp("model") / "m").path


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.adv_estimator=grpo"],
        pytest.param(["algorithm.adv_estimator=gae"], marks=pytest.mark.long),
        ["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=True", "data.train_batch_size=3"],
        pytest.param(
            ["algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=1", "actor_rollout_ref.rollout.n=5"],
            marks=pytest.mark.long,
        ),
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
        installed=VERL.read_config(TRAINER, ["python", "-m", TRAINER.module], folder=Path("/"), search=sys.path),
    ).command.arguments
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


@pytest.mark.timeout(300)
def test_a_training_with_both_tiny_ones(tmp_path: Path) -> None:
    """In a driver the model is made like the user's and the data from the user's rows, and verl takes the command."""
    build_model(tmp_path / "mine")
    from raydebug.protocol import variables
    from raydebug.tiny.dataset import build_dataset

    build_dataset(tmp_path / "data", rows=40, seed=7)
    overrides = [
        "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.model.path=mine",
        "data.train_files=data/train.parquet", "data.val_files=data/test.parquet",
    ]  # fmt: skip
    environ = {**os.environ, variables.GATEWAY: "127.0.0.1:9", variables.PROFILE: "debug", variables.TINY: "model data",
               "VERL_PLATFORM": "cpu"}  # fmt: skip
    done = subprocess.run(  # --cfg job: Hydra prints the config, and the trainer does not start
        [sys.executable, "-m", "verl.trainer.main_ppo", *overrides, "--cfg", "job"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = sorted(path.name.partition("-")[0] for path in (tmp_path / ".raydebug" / "tiny").iterdir())
    assert made == ["data", "model"]
    assert f"path: {tmp_path}/.raydebug/tiny/model-" in done.stdout
    assert f"train_files: {tmp_path}/.raydebug/tiny/data-" in done.stdout
