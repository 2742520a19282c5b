"""verl behind the `Trainer` protocol. What costs an import is loaded by the method that needs it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from raydebug.trainers.trainer import NUMBER, Installed, Program, Trainer
from raydebug.trainers.verl.keys import KEYS_FILE, is_in_use

if TYPE_CHECKING:
    from pathlib import Path

    from raydebug.findings import Finding
    from raydebug.trainers.arguments import Arguments
    from raydebug.trainers.keys import ValueOf
    from raydebug.trainers.settings import Settings
    from raydebug.trainers.trainer import StepMetrics

# The modules of verl's package `trainer` that train or generate, and the name of each one's table of keys.
PROGRAMS = {
    "main_ppo": "ppo",
    "main_ppo_sync": "ppo",
    "sft_trainer": "sft",
    "sft_trainer_ray": "sft_ray",
    "fsdp_sft_trainer": "fsdp_sft",
    "main_generation": "generation",
    "main_generation_server": "generation_server",
}
# What only the config of one program has, for a program of any name: recipes, forks, the user's own.
PARTS = {
    "actor_rollout_ref.": "ppo",
    "worker.actor.": "easyr1",
    "worker.rollout.": "easyr1",
    "model.partial_pretrain": "fsdp_sft",
    "data.output_path": "generation",
}
_METRIC = re.compile(rf"(?P<name>[\w./@-]+):(?:np\.\w+\()?(?P<value>{NUMBER}|nan|-?inf)\)?(?= - |$)")


class Verl(Trainer):
    """verl 0.4 to 0.9."""

    name = "verl"
    modules = f"verl.trainer.NAME (or a fork's); NAME is one of {', '.join(PROGRAMS)}"
    example = "python -m verl.trainer.main_ppo"
    keys_file = KEYS_FILE
    metric = _METRIC

    def program_of(self, module: str) -> str | None:
        package, _, rest = module.rpartition(".trainer.")
        # verl itself, vendored below another package, or a fork with verl in its name: verl_arpo, open_verl.
        return PROGRAMS.get(rest) if "verl" in package.rpartition(".")[2].split("_") else None

    def program_of_arguments(self, module: str, arguments: Sequence[str]) -> str | None:
        keys = {argument.lstrip("+").partition("=")[0] for argument in arguments if "=" in argument}
        for part, name in PARTS.items():
            if any(key.startswith(part) for key in keys):
                return name
        return "easyr1" if "config" in keys and module.endswith("trainer.main") else None

    def may_take(self, arguments: Sequence[str]) -> bool:
        return any("=" in argument and not argument.startswith("-") for argument in arguments)

    def program_of_source(
        self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]
    ) -> str | None:
        values = self.read_config(program, argv, folder=folder, search=search).values or {}
        return next((name for part, name in PARTS.items() if any(key.startswith(part) for key in values)), None)

    def read_config(self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
        if program.name == "easyr1":
            from raydebug.trainers.verl.easyr1 import read_config as read_dataclasses

            return read_dataclasses(program, argv, folder=folder, search=search)
        from raydebug.trainers.verl.config_files import read_config

        return read_config(program, argv, folder=folder, search=search)

    def parse(self, arguments: Sequence[str], launcher: Sequence[str]) -> Arguments:
        from raydebug.trainers.verl.config_files import Overrides

        return Overrides(list(arguments), list(launcher))

    def in_use(self, part: str, value_of: ValueOf) -> bool:
        return is_in_use(part, value_of)

    def on_cpu(self, environ: Mapping[str, str]) -> bool:
        """Return whether verl's platform for CPUs is asked for (packages/raydebug-cpu)."""
        from raydebug.trainers.verl.patches import is_on_cpu

        return is_on_cpu(environ)

    def fit_batches(self, program: str, settings: Settings) -> None:
        from raydebug.trainers.verl.batch_sizes import fit_batches
        from raydebug.trainers.verl.vision import fit_images

        fit_batches(program, settings)
        if program == "ppo":
            fit_images(settings)

    def judge_numbers(self, steps: Sequence[StepMetrics], *, small: bool) -> list[Finding]:
        from raydebug.trainers.verl.numbers import judge

        return judge(steps, small=small)

    def step_loggers(self, program: Program) -> tuple[str, ...]:
        # Source: verl 0.4 to 0.9.1 utils/tracking.py; a fork has it in its own package, or imports verl's.
        if program.name.startswith("generation"):
            return ()
        packages = dict.fromkeys((program.module.rpartition(".trainer.")[0], "verl"))
        return tuple(f"{package}.utils.tracking:Tracking.log(step,data)" for package in packages)


VERL = Verl()
