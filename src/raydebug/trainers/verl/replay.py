"""verl's trainer without a rollout engine: `run --replay` trains on recorded rollouts, and vLLM is not started.

`worker/import_hooks` imports this module after verl's own trainers, so that `trainer.v1.trainer_mode` can name it.
Source: verl 0.9.1 trainer/ppo/v1/trainer_base.py (`_enable_hybrid_replicas`, register_trainer), trainer_sync.py,
main_ppo.py (agent_loop_manager_class), utils/skip/rollout_skip.py (RolloutTqSkip).
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.rollout.llm_server import LLMServerManager

MODE = "raydebug_replay"


@register_trainer(MODE)
class ReplayTrainer(PPOTrainerSync):  # type: ignore[misc]  # verl is not there when types are checked
    """The synchronous trainer, with an actor that no rollout engine gets weights from."""

    _enable_hybrid_replicas = False

    def _setup(self) -> None:
        LLMServerManager.rollout_replica_class = None  # verl would look it up, and import vLLM
        super()._setup()

    def __init__(self, config: Any) -> None:
        config.trainer.v1.trainer_mode = "sync"  # verl asks for the mode by name: sampler, dataloader, checkpoint
        config.actor_rollout_ref.rollout.nnodes = 1  # LLMServerManager asserts it where no worker group serves
        super().__init__(config)

    def on_init_end(self) -> None:
        """Send no weights."""

    def on_step_end(self) -> None:
        """Send no weights."""

    def on_sample_end(self) -> None:
        """Leave the engine alone that is not there."""


class RecordedRollouts:
    """An agent loop manager without agents: whatever is not in the record is an error."""

    @classmethod
    def create(cls, **_parts: Any) -> RecordedRollouts:
        """Return one; it needs no engine and no reward workers."""
        return cls()

    def generate_sequences(self, *_args: Any, **_options: Any) -> None:
        """Refuse to generate.

        Raises:
            RuntimeError: always.
        """
        from verl.utils.skip import SkipManager

        skip = SkipManager.skip_instances["rollout_tq"]
        raise RuntimeError(
            f"step {SkipManager.step} is not in the record {skip.dump_dir}, and a replay has no engine that generates: "
            "train fewer steps"
        )
