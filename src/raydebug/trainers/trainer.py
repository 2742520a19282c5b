"""What raydebug needs to know of a training framework: one class with defaults, and a subclass for each framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from raydebug.trainers.keys import Column, ValueOf, read_columns

if TYPE_CHECKING:  # the driver of each job imports this module at its start
    from pathlib import Path

    from raydebug.findings import Finding
    from raydebug.trainers.arguments import Arguments
    from raydebug.trainers.config import Composed, RewardFunction, TrainingConfig
    from raydebug.trainers.settings import Settings


@dataclass(frozen=True)
class Program:
    """A trainer's program that a command runs.

    Args:
        name: the name of its table of keys, such as `ppo`.
        module: the module that runs; of a fork too, such as `verl_arpo.trainer.main_ppo`.
        arguments_at: index in argv at which its own arguments begin.
        launcher_at: index in argv at which torchrun's options begin; None without torchrun.
    """

    trainer: Trainer
    name: str
    module: str
    arguments_at: int
    launcher_at: int | None = None

    def launcher(self, argv: Sequence[str]) -> Sequence[str]:
        """Return torchrun's options in a command; empty without torchrun."""
        return [] if self.launcher_at is None else argv[self.launcher_at : self.arguments_at - 1]

    def with_arguments(self, argv: Sequence[str], new: Arguments) -> list[str]:
        """Return a command with other arguments of the trainer and options of torchrun."""
        own = argv[: self.arguments_at]
        if self.launcher_at is not None:
            own = [*argv[: self.launcher_at], *new.launcher, argv[self.arguments_at - 1]]
        return [*own, *new.arguments]


@dataclass(frozen=True)
class Installed:
    """A trainer as it is installed where the command runs.

    Args:
        values: every key of its config with its value before any override; None if the config was not read.
        unread: why the config was not read.
    """

    version: str | None
    values: Mapping[str, Any] | None
    unread: str = ""


class Checks(Protocol):
    """What `raydebug check` needs of every program: its config, and the files that this names.

    Attributes:
        keys: raydebug's setting words and the newest release's keys.
        sign: what an argument has before its key.
    """

    keys: Mapping[str, str]
    sign: str

    @property
    def rules(self) -> Rules | None:
        """Its own rules, where raydebug has some."""

    def keys_of(self, values: Mapping[str, Any]) -> Mapping[str, str]:
        """Return raydebug's setting words and the keys that this config has for them: a fork's may be older ones."""

    def compose(self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Composed:
        """Return the config of a command; the arguments are those of `Trainer.read_config`.

        Raises:
            CannotCompose: the trainer would refuse the command.
        """

    def files_read(self, config: TrainingConfig) -> FilesRead:
        """Return the paths and names that a training reads at its start."""


class Rules(Checks, Protocol):
    """The rules about a program's config, and how it uses vLLM and a reward.

    Attributes:
        programs_asked: the modules whose config the trainer's library can judge.
    """

    programs_asked: tuple[str, ...]

    def refused(self, refusal: Mapping[str, Any], arguments: Sequence[str]) -> Finding:
        """Return the finding for a command that cannot be composed."""

    def judge(self, config: TrainingConfig, facts: Mapping[str, Any], gpus: int | None) -> list[Finding]:
        """Return what is wrong with a config.

        Args:
            config: of the command.
            facts: `variables` and `gpus` of the machine, `program`, its module, and `is_release`: whether its version
                is a known one.
            gpus: of the cluster; None without one.
        """

    def verdict(self, composed: Composed) -> dict[str, str] | None:
        """Return the trainer's own first refusal of a config; None if it accepts the config or was not asked."""

    def judge_verdict(self, refusal: Mapping[str, Any]) -> Finding:
        """Return the finding for the trainer's own refusal."""

    def trained_bytes(self, config: TrainingConfig, parameters: int) -> int:
        """Return the bytes of parameters, gradients and optimizer on each GPU."""

    def engine_options(self, config: TrainingConfig) -> dict[str, object]:
        """Return the arguments that the trainer gives vLLM."""

    def reward_function(self, config: TrainingConfig) -> RewardFunction:
        """Return the reward function that the config names."""

    def own_reward(self) -> Callable[..., Any]:
        """Return the trainer's own reward function."""

    def reward_arguments(self, row: Mapping[str, Any], answer: str) -> dict[str, object]:
        """Return the arguments of a call of the reward function for a row of the data.

        Raises:
            KeyError, TypeError: the row lacks a column.
        """


@dataclass(frozen=True)
class FilesRead:
    """Paths that a training reads at its start, as the config has them.

    Args:
        models: folders, or names on the Hub, of the models in use.
    """

    models: list[str]
    data: list[str]


class StepMetrics(TypedDict):
    """A step of a training and its metrics, by their names."""

    step: int
    metrics: dict[str, float]


NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"  # as Python writes it
# A metric of a dict that is logged as Python writes it.
LOGGED_DICT = re.compile(
    r"'(?P<name>[\w./@-]+)': (?:np\.\w+\()?"
    rf"(?P<value>{NUMBER}|nan|-?inf)"
    r"\)?(?=[,}])"
)


class Trainer:
    """A training framework.

    Attributes:
        name: such as `verl`.
        modules: pattern of the commands' modules, for messages.
        example: a training command, for messages.
        keys_file: the keys of its programs (`keys.read_columns`).
        phases: name of each phase of a run and the pattern of the log line that ends it.
        metrics: the metrics of a step that a run's record keeps.
        step_line: pattern of the log line that reports a step, up to its metrics, with the group `step`; as a sign of
            progress it is looked for in every log, so its literal texts are rare ones.
        metric: pattern of a metric in this line.
        step_seconds: the one of them that is the duration of the step; empty where no line has it.
    """

    name: str
    modules: str
    example: str
    keys_file: Path
    phases: tuple[tuple[str, re.Pattern[str]], ...]
    metrics: frozenset[str]
    step_line: re.Pattern[str]
    metric = LOGGED_DICT
    step_seconds = ""

    def program_of(self, module: str) -> str | None:
        """Return the name of the program that a module is; None if it is none of this trainer."""
        return None

    def program_of_arguments(self, module: str, arguments: Sequence[str]) -> str | None:
        """Return the name of the program that takes these arguments, whatever it is called; None if none does."""
        raise NotImplementedError

    def may_take(self, arguments: Sequence[str]) -> bool:
        """Return whether these can be arguments of its trainings, of a program that the user calls one."""
        raise NotImplementedError

    def program_of_source(
        self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]
    ) -> str | None:
        """Return the name of the program whose config the source of a program names; None if it is none.

        Nothing is imported; the arguments are those of `read_config`.
        """
        return None

    def keys(self, program: str) -> Mapping[str, Column]:
        """Return the program's keys: version from which they hold -> our setting names -> keys, oldest first."""
        return read_columns(self.keys_file)[program]

    def programs(self) -> tuple[str, ...]:
        """Return the names of all programs."""
        return tuple(read_columns(self.keys_file))

    def read_config(self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
        """Read the version and the config from files, without an import.

        Args:
            program: recognised in the command.
            argv: the command.
            folder: its working directory.
            search: where its Python looks for modules, in order.
        """
        raise NotImplementedError

    def parse(self, arguments: Sequence[str], launcher: Sequence[str]) -> Arguments:
        """Return the arguments of a command."""
        raise NotImplementedError

    def in_use(self, part: str, value_of: ValueOf) -> bool:
        """Return whether a training with these values has a part, as `Key.only_with` names it."""
        raise NotImplementedError

    def on_cpu(self, environ: Mapping[str, str]) -> bool:
        """Return whether a training with these variables runs on the CPU."""
        return False  # actors of DeepSpeed and Megatron need a GPU

    def fit_batches(self, program: str, settings: Settings) -> None:
        """Adjust the numbers that a profile has reduced so that they divide each other as the trainer requires."""
        raise NotImplementedError

    def step_of(self, line: str) -> StepMetrics | None:
        """Return the step that a line of the log reports, with its metrics; None if it reports none."""
        step = self.step_line.search(line)
        if step is None:
            return None
        metrics = {metric["name"]: float(metric["value"]) for metric in self.metric.finditer(line, step.end())}
        return {"step": int(step["step"]), "metrics": metrics} if metrics else None

    def judge_numbers(self, steps: Sequence[StepMetrics], *, small: bool) -> list[Finding]:
        """Return what the metrics of the last step show, with the steps before it; nothing without rules for them.

        Args:
            steps: from the first one on, with at least those of the trainer's `metrics` that were logged.
            small: a profile or a tiny model has reduced the training.
        """
        return []

    def step_loggers(self, program: Program) -> tuple[str, ...]:
        """Return the functions that may log the metrics of a step; empty if no function has them as arguments.

        Each is `module:Class.method(STEP,METRICS)`, with the names of its parameters for the two.
        """
        return ()

    def checks(self, program: str) -> Checks:
        """Return what `raydebug check` knows of a program."""
        raise NotImplementedError
