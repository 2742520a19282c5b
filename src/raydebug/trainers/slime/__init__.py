"""slime behind the `Trainer` protocol: `train.py` and `train_async.py`, their batch rules and log lines.

`options` has the table of keys by version, and reads the defaults in slime's source.
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

# Options of its training, in every release and fork: `train.py` is a name that says nothing.
OF_SLIME = frozenset((
    *("--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-num-gpus", "--rollout-num-gpus-per-engine"),
    *("--rollout-batch-size", "--n-samples-per-prompt", "--num-rollout", "--rollout-max-response-len"),
    *("--hf-checkpoint", "--ref-load", "--rm-type", "--prompt-data", "--rollout-function-path"),
))  # fmt: skip
SIGNS_LEAST = 3
_UPDATES_ONLY = {"--debug-train-only", "--load-debug-rollout-data"}
_PARALLEL = ("train_tensor_parallel", "train_pipeline_parallel", "train_context_parallel")


class Slime:
    """slime 0.1 to 0.3 and its forks: training by Megatron, rollouts by SGLang or vLLM, both on GPUs."""

    name = "slime"
    modules = "train.py of slime"
    example = "python train.py --actor-num-nodes 1 --hf-checkpoint MODEL --rollout-batch-size 32"
    # Source: slime 0.1.0 ray/buffer.py:35 (0.3.1: ray/rollout.py:457), rollout/sglang_rollout.py:263 (0.3.1: :404),
    # ray/buffer.py:191 (0.3.1: ray/rollout.py:1306).
    phases: tuple[tuple[str, re.Pattern[str]], ...] = (
        ("slime: rollout manager, data", re.compile(r"import [\w.]+ as generate_rollout function\.")),
        ("slime: engines, model load", re.compile(r"Rollout generation: +0%\|")),
        ("slime: first rollout", re.compile(r"\bperf 0: \{'")),
    )
    # Source: slime 0.1.0 backends/megatron_utils/model.py:462-476, loss.py (0.3.1: :881-909).
    metrics = frozenset((
        *("train/loss", "train/pg_loss", "train/entropy_loss", "train/pg_clipfrac", "train/ppo_kl", "train/kl_loss"),
        *("train/grad_norm", "train/lr-pg_0", "train/train_rollout_logprob_abs_diff"),
    ))  # fmt: skip
    step_line = re.compile(r"(?<![\w-])step (?P<step>\d+): \{(?='train/)")  # the critic's line says critic-step
    step_seconds = ""  # no line has both a step's metrics and its duration

    def program_of(self, module: str) -> str | None:
        return None

    def program_of_arguments(self, module: str, arguments: Sequence[str]) -> str | None:
        names = {argument.partition("=")[0] for argument in arguments}
        return self._program(names) if len(names & OF_SLIME) >= SIGNS_LEAST else None

    def _program(self, names: set[str]) -> str:
        return "slime_updates" if names & _UPDATES_ONLY else "slime"

    def may_take(self, arguments: Sequence[str]) -> bool:
        return any(argument.partition("=")[0] in OF_SLIME for argument in arguments)

    def program_of_source(
        self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]
    ) -> str | None:
        return None  # a command names its actors, and is recognised by that

    def programs(self) -> tuple[str, ...]:
        return ("slime", "slime_updates")

    def keys(self, program: str) -> Mapping[str, Column]:
        from raydebug.trainers.slime.options import ROLLOUTS, UPDATES

        return UPDATES if program == "slime_updates" else ROLLOUTS

    def read_config(self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
        """Read the version and the options with their defaults from the source beside the program, or in `search`."""
        from raydebug.settings.flavours import installed_version
        from raydebug.trainers.config import find_program_file, is_file
        from raydebug.trainers.slime.options import package_of, read_options, stated_version

        file = find_program_file(program.module, argv[program.arguments_at - 1], folder, search)
        if file is None:
            return Installed(None, None, f"{argv[program.arguments_at - 1]} is not here")
        try:
            name = package_of(file)
            places = (file.parent, *(folder / place for place in search))
            package = next((it / name for it in places if is_file(it / name / "utils" / "arguments.py")), None)
            if package is None:
                return Installed(installed_version(name) if name == self.name else None, None, f"no {name} is here")
            return Installed(stated_version(package), read_options(file, package))
        except (OSError, SyntaxError, ValueError) as failure:
            return Installed(None, None, str(failure))

    def parse(self, arguments: Sequence[str], launcher: Sequence[str]) -> Arguments:
        from raydebug.trainers.options import Options
        from raydebug.trainers.slime.options import OF_OTHERS

        return Options(list(arguments), list(launcher), OF_OTHERS)

    def in_use(self, part: str, value_of: ValueOf) -> bool:
        return value_of(part) is not None  # load, save: paths

    def on_cpu(self, environ: Mapping[str, str]) -> bool:
        return False  # Megatron's actors need a GPU

    def fit_batches(self, program: str, settings: BatchSettings) -> None:
        """Make one update of each reduced rollout, whose samples divide by the data-parallel ranks.

        Expert parallelism uses the data-parallel ranks, and changes nothing here.
        Source: slime 0.3.1 utils/arguments.py (global_batch_size), utils/dp_schedule.py:138-176; Megatron-LM
        core_v0.15.0 core/num_microbatches_calculator.py:479 (micro batch times data-parallel ranks).
        """
        words = ("train_batch_size", "rollouts_per_prompt", "mini_batch_size")
        if not any(settings.is_changed(word) for word in words):
            return
        gpus = (settings.whole("gpus_per_node") or 1) * (settings.whole("nodes") or 1)
        for word in _PARALLEL:
            gpus //= settings.whole(word) or 1
        ranks, micro = max(gpus, 1), settings.whole("micro_batch_size") or 1
        rollouts, batch = settings.whole("rollouts_per_prompt") or 1, settings.whole("train_batch_size") or 1
        unit = ranks * micro
        fitting = next(n for n in range(batch, batch + unit) if n * rollouts % unit == 0)
        if fitting != batch:
            why = f"its samples are a multiple of the {ranks} data-parallel ranks"
            settings.change("train_batch_size", str(fitting), why + (f" by {micro}" if micro > 1 else ""))
        samples = fitting * rollouts
        if samples != settings.whole("mini_batch_size"):
            settings.change("mini_batch_size", str(samples), f"all {samples} samples of a rollout")

    def step_of(self, line: str) -> StepMetrics | None:
        """Return the step of a line; slime counts from 0, and a run's record from 1."""
        read = read_step(line, self.step_line, LOGGED_DICT)
        return None if read is None else {**read, "step": read["step"] + 1}

    def judge_numbers(self, steps: Sequence[StepMetrics], *, small: bool) -> list[Finding]:
        return []  # no rules for its metrics

    def step_loggers(self, program: Program) -> tuple[str, ...]:
        return ()  # a step's number and metrics are arguments of no function

    def checks(self, program: str) -> Checks:
        from raydebug.trainers.file_checks import FileChecks
        from raydebug.trainers.slime.options import FILES

        return FileChecks(self, program, FILES)


SLIME = Slime()
