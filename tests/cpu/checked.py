"""What the tests of the check ladder share: a tiny training that passes, and the ladder over it."""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raydebug.check.finding import Finding
from raydebug.check.ladder import Outcome, choose_stages, climb
from raydebug.check.mend import Mended, mend
from raydebug.check.subject import Subject, find_subject

# All that a CPU and sixteen rows need, said by the command itself.
OVERRIDES = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "data/train.parquet",
    "data.val_files": "data/test.parquet",
    "data.train_batch_size": "4",
    "data.max_prompt_length": "64",
    "data.max_response_length": "32",
    "data.dataloader_num_workers": "0",
    "actor_rollout_ref.model.path": "model",
    "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    "actor_rollout_ref.model.use_remove_padding": "False",
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": "2",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": "4",
    "actor_rollout_ref.rollout.free_cache_engine": "False",
    "+actor_rollout_ref.rollout.enable_sleep_mode": "False",
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "4",
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": "1",
    "trainer.logger": "[console]",
    "reward.custom_reward_function.path": "data/reward.py",
}


@dataclass
class Setup:
    """A tiny training in a folder of its own, to be broken.

    Args:
        folder: holds model/ and data/.
        environment: sets variables of whoever asks.
    """

    folder: Path
    environment: pytest.MonkeyPatch
    overrides: dict[str, str] = field(default_factory=lambda: dict(OVERRIDES))
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def command(self) -> list[str]:
        """The training command."""
        return ["python", "-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in self.overrides.items())]

    def subject(self) -> Subject:
        """What is checked, as things are now."""
        return find_subject(self.command, self.folder, "default", None)

    def climb(self, *stages: str) -> list[Outcome]:
        """Check it."""
        return climb(self.subject(), choose_stages(stages))

    def climb_mended(self, found: list[Finding], *stages: str) -> list[Outcome]:
        """Check it with the findings' own fixes applied."""
        mended = mend(Mended(self.subject()), found)
        assert mended.changes, "the finding has no fix that can be applied"
        return climb(mended.subject, choose_stages(stages))

    def close(self) -> None:
        """Free the ports that it holds."""
        for one in self.sockets:
            one.close()


def copy_of(tiny: Path, folder: Path) -> Path:
    """Copy the tiny model and data, so that they can be broken."""
    for part in ("model", "data"):
        shutil.copytree(tiny / part, folder / part)
    return folder
