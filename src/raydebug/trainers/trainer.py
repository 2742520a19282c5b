"""What raydebug needs to know of a training framework: one class with defaults, and a subclass for each framework."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict

from raydebug.trainers.keys import Column, ValueOf, read_columns

if TYPE_CHECKING:  # the driver of each job imports this module at its start
    from pathlib import Path

    from raydebug.findings import Finding
    from raydebug.trainers.arguments import Arguments
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


@dataclass(frozen=True)
class LogLines:
    """The lines of a trainer's log that raydebug reads.

    Args:
        phases: name of each phase of a run, and the pattern of the line that ends it.
        metrics: the metrics of a step that a run's record keeps.
        step: pattern of the line that reports a step, up to its metrics, with the group `step`; as a sign of progress
            it is looked for in every log, so its literal texts are rare ones.
        step_seconds: the metric that is the duration of the step; empty where no line has it.
    """

    phases: Mapping[str, re.Pattern[str]]
    metrics: frozenset[str]
    step: re.Pattern[str]
    step_seconds: str


class Trainer:
    """A training framework.

    Attributes:
        name: such as `verl`.
        modules: pattern of the commands' modules, for messages.
        example: a training command, for messages.
        keys_file: the keys of its programs (`keys.read_columns`); log.toml is beside it.
        metric: pattern of a metric in the line of a step.
        files: keys for our words of data and model that no profile changes, the newest first.
    """

    name: str
    modules: str
    example: str
    keys_file: Path
    metric = LOGGED_DICT
    files: Mapping[str, Sequence[str]] = MappingProxyType({})

    @cached_property
    def log(self) -> LogLines:
        """The lines of its log: what log.toml has."""
        import tomllib

        said = tomllib.loads(self.keys_file.with_name("log.toml").read_text(encoding="utf-8"))
        phases = {name: re.compile(pattern) for name, pattern in said["phases"].items()}
        return LogLines(phases, frozenset(said["metrics"]), re.compile(said["step"]), said.get("step_seconds", ""))

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
        step = self.log.step.search(line)
        if step is None:
            return None
        metrics = {metric["name"]: float(metric["value"]) for metric in self.metric.finditer(line, step.end())}
        return {"step": int(step["step"]), "metrics": metrics} if metrics else None

    def judge_numbers(self, steps: Sequence[StepMetrics], *, small: bool) -> list[Finding]:
        """Return what the metrics of the last step show, with the steps before it; nothing without rules for them.

        Args:
            steps: from the first one on, with at least those of the log's `metrics` that were logged.
            small: a profile or a tiny model has reduced the training.
        """
        return []

    def step_loggers(self, program: Program) -> tuple[str, ...]:
        """Return the functions that may log the metrics of a step; empty if no function has them as arguments.

        Each is `module:Class.method(STEP,METRICS)`, with the names of its parameters for the two.
        """
        return ()
