"""OpenRLHF: `openrlhf.cli.train_ppo_ray`, its batch rules and log lines; `keys.toml` has its options by version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from raydebug.trainers.argparse_trainer import ArgparseTrainer
from raydebug.trainers.trainer import Program

if TYPE_CHECKING:
    from raydebug.trainers.keys import ValueOf
    from raydebug.trainers.settings import Settings

_MODULE = "openrlhf.cli.train_ppo_ray"


class OpenRlhf(ArgparseTrainer):
    """OpenRLHF 0.8 to 0.11: PPO and its relatives on Ray."""

    name = "openrlhf"
    modules = _MODULE
    example = f"python -m {_MODULE}"
    keys_file = Path(__file__).with_name("keys.toml")
    # Until 0.10.1, and from 0.10.2 on.
    signs = frozenset((
        *("--actor_num_nodes", "--actor_num_gpus_per_node", "--vllm_num_engines", "--rollout_batch_size"),
        *("--micro_rollout_batch_size", "--n_samples_per_prompt", "--prompt_data"),
        *("--actor.num_nodes", "--actor.num_gpus_per_node", "--vllm.num_engines", "--rollout.batch_size"),
        *("--rollout.micro_batch_size", "--rollout.n_samples_per_prompt", "--data.prompt_dataset"),
    ))  # fmt: skip
    # Source: OpenRLHF 0.11.0 cli/train_ppo_ray.py:542, datasets/prompts_dataset.py:28.
    files: Mapping[str, tuple[str, ...]] = {"prompt_column": ("data.input_key", "input_key")}

    def program_of(self, module: str) -> str | None:
        return "openrlhf_ppo" if module == _MODULE or module.endswith(f".{_MODULE}") else None

    def in_use(self, part: str, value_of: ValueOf) -> bool:
        assert part == "critic", part
        # Source: OpenRLHF 0.11.0 cli/train_ppo_ray.py: without the estimator gae, its default, there is no critic.
        return (value_of("algo.advantage.estimator") or value_of("advantage_estimator") or "gae") == "gae"

    def fit_batches(self, program: str, settings: Settings) -> None:
        """Make reduced batches divide.

        Source: OpenRLHF 0.11.0 cli/train_ppo_ray.py:711 (at least as many sample batches as actors) and
        utils/deepspeed/deepspeed.py:110 (train batch by micro batch and actors; 0 accumulates nothing).
        """
        if not any(
            settings.is_changed(word) for word in ("train_batch_size", "rollouts_per_prompt", "mini_batch_size")
        ):
            return
        actors = (settings.whole("gpus_per_node") or 1) * (settings.whole("nodes") or 1)
        rollouts, batch = settings.whole("rollouts_per_prompt") or 1, settings.whole("train_batch_size") or 1
        fitting = next(n for n in range(batch, batch + actors + 1) if n * rollouts % actors == 0)
        if fitting != batch:
            settings.change("train_batch_size", str(fitting), f"its samples are a multiple of the {actors} actors")
        rows = settings.whole("train_samples")
        if settings.is_limited("train_samples") and (rows is None or rows > 2 * fitting):
            settings.change("train_samples", str(2 * fitting), "two steps: there is no option for their number")
        samples = fitting * rollouts
        wanted = min(settings.whole("mini_batch_size") or samples, samples)
        mini = next((n for n in range(wanted, 0, -1) if samples % n == 0 and n % actors == 0), samples)
        if mini != settings.whole("mini_batch_size"):
            settings.change("mini_batch_size", str(mini), f"divides the {samples} samples and the {actors} actors")
        for word, whole in (("micro_batch_size", mini), ("rollout_log_prob_micro_batch_size", samples)):
            share, micro = whole // actors, settings.whole(word) or 1
            if share % micro:
                divisor = next(n for n in range(min(micro, share), 0, -1) if share % n == 0)
                settings.change(word, str(divisor), f"divides an actor's share, {share}")

    def step_loggers(self, program: Program) -> tuple[str, ...]:
        # Source: OpenRLHF 0.11.0 trainer/ppo_trainer.py:383; trainer/ppo_trainer_async.py inherits it.
        return ("openrlhf.trainer.ppo_trainer:BasePPOTrainer.save_logs_and_checkpoints(global_step,logs_dict)",)


OPENRLHF = OpenRlhf()
