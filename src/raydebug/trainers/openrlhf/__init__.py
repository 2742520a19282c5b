"""OpenRLHF behind the `Trainer` protocol: `openrlhf.cli.train_ppo_ray`, its batch rules and log lines.

`options` has the arguments of argparse, the defaults in OpenRLHF's source, and the table of keys by version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from raydebug.trainers.trainer import (
    LOGGED_DICT,
    Arguments,
    BatchSettings,
    Checks,
    Column,
    Installed,
    Program,
    ValueOf,
    read_step,
)

if TYPE_CHECKING:
    from pathlib import Path

    from raydebug.findings import Finding
    from raydebug.trainers.trainer import StepMetrics

_MODULE = "openrlhf.cli.train_ppo_ray"
# Options of its training with Ray, until 0.10.1 and from 0.10.2 on: a fork's program of any name has them too.
OF_RAY = frozenset((
    *("--actor_num_nodes", "--actor_num_gpus_per_node", "--vllm_num_engines", "--rollout_batch_size"),
    *("--micro_rollout_batch_size", "--n_samples_per_prompt", "--prompt_data"),
    *("--actor.num_nodes", "--actor.num_gpus_per_node", "--vllm.num_engines", "--rollout.batch_size"),
    *("--rollout.micro_batch_size", "--rollout.n_samples_per_prompt", "--data.prompt_dataset"),
))  # fmt: skip
SIGNS_LEAST = 3
# Source: OpenRLHF trainer/ppo_trainer.py:547 (0.11.0) and :541 (0.9.10), trainer/ppo_trainer_async.py:244 (0.11.0).
_MODEL_PRINTED = re.compile(r"\((?:PolicyModelActor|ActorModelRayActor) pid=\d+[^)]*\) Actor\($")


class OpenRlhf:
    """OpenRLHF 0.8 to 0.11: PPO and its relatives on Ray."""

    name = "openrlhf"
    modules = _MODULE
    example = f"python -m {_MODULE}"
    # Source: OpenRLHF 0.11.0 trainer/ray/ppo_actor.py:528 prints the model (0.9.10: :478; 0.8.0 calls its actor
    # ActorModelRayActor), trainer/ray/vllm_worker_wrap.py:27, trainer/ppo_trainer.py:518 (the bar of the first
    # episode).
    phases: tuple[tuple[str, re.Pattern[str]], ...] = (
        ("workers: start, model load", _MODEL_PRINTED),
        ("vLLM: engines, weight groups", re.compile(r"init_process_group: master_address=")),
        ("trainer: data, DeepSpeed", re.compile(r"\bEpisode \[1/\d+\]:")),
    )
    # Source: OpenRLHF 0.11.0 trainer/ppo_trainer.py:249-263 and :541, trainer/ray/ppo_actor.py:369-376.
    metrics = frozenset((
        *("policy_loss", "actor_lr", "actor_grad_norm", "kl", "entropy_loss", "critic_loss", "reward"),
        *("response_length", "timing/generation", "timing/make_experience", "timing/ppo_train"),
        *("timing/broadcast", "timing/step_total"),
    ))  # fmt: skip
    step_line = re.compile(r"\bGlobal step (?P<step>\d+):")
    step_seconds = "timing/step_total"

    def program_of(self, module: str) -> str | None:
        return "openrlhf_ppo" if module == _MODULE or module.endswith(f".{_MODULE}") else None

    def program_of_arguments(self, module: str, arguments: Sequence[str]) -> str | None:
        names = {argument.partition("=")[0] for argument in arguments}
        return "openrlhf_ppo" if len(names & OF_RAY) >= SIGNS_LEAST else None

    def may_take(self, arguments: Sequence[str]) -> bool:
        return any(argument.partition("=")[0] in OF_RAY for argument in arguments)

    def program_of_source(
        self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]
    ) -> str | None:
        return None  # a command names its actors, and is recognised by that

    def programs(self) -> tuple[str, ...]:
        return ("openrlhf_ppo",)

    def keys(self, program: str) -> Mapping[str, Column]:
        from raydebug.trainers.openrlhf.options import PPO

        return PPO

    def read_config(self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
        """Read the version from its metadata and the options with their defaults from its source."""
        from raydebug.settings.flavours import installed_version
        from raydebug.trainers.config import find_program_file
        from raydebug.trainers.options import declared_defaults

        version = installed_version(self.name)
        file = find_program_file(program.module, argv[program.arguments_at - 1], folder, search)
        if file is None:
            return Installed(version, None, f"{program.module} is not installed here")
        try:
            return Installed(version, declared_defaults(file))
        except (OSError, SyntaxError, ValueError) as failure:
            return Installed(version, None, str(failure))

    def parse(self, arguments: Sequence[str], launcher: Sequence[str]) -> Arguments:
        from raydebug.trainers.options import Options

        return Options(list(arguments), list(launcher))

    def in_use(self, part: str, value_of: ValueOf) -> bool:
        assert part == "critic", part
        # Source: OpenRLHF 0.11.0 cli/train_ppo_ray.py: without the estimator gae, its default, there is no critic.
        return (value_of("algo.advantage.estimator") or value_of("advantage_estimator") or "gae") == "gae"

    def on_cpu(self, environ: Mapping[str, str]) -> bool:
        return False  # DeepSpeed's actors need a GPU

    def fit_batches(self, program: str, settings: BatchSettings) -> None:
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

    def step_of(self, line: str) -> StepMetrics | None:
        return read_step(line, self.step_line, LOGGED_DICT)

    def judge_numbers(self, steps: Sequence[StepMetrics], *, small: bool) -> list[Finding]:
        return []  # no rules for its metrics

    def step_loggers(self, program: Program) -> tuple[str, ...]:
        # Source: OpenRLHF 0.11.0 trainer/ppo_trainer.py:383; trainer/ppo_trainer_async.py inherits it.
        return ("openrlhf.trainer.ppo_trainer:BasePPOTrainer.save_logs_and_checkpoints(global_step,logs_dict)",)

    def checks(self, program: str) -> Checks:
        from raydebug.trainers.file_checks import FileChecks

        # Source: OpenRLHF 0.11.0 cli/train_ppo_ray.py:542, datasets/prompts_dataset.py:28.
        return FileChecks(self, program, {"prompt_column": ("data.input_key", "input_key")})


OPENRLHF = OpenRlhf()
