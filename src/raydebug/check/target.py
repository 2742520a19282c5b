"""The target of a check: a training command, where it would run, its environment; and how a probe is run there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug import process
from raydebug.check.probes import BUSY_TIMES, MARK, Facts
from raydebug.cluster.environment import DROPPED
from raydebug.cluster.interpreter import find_interpreter, installed_in
from raydebug.cluster.kinds import find_running, kind_of
from raydebug.cluster.runner import LocalRunner, NodeRunner, Runner, run_on_each
from raydebug.cluster.state import Cluster
from raydebug.errors import RaydebugError, UsageError
from raydebug.findings import Finding, finding
from raydebug.protocol.secrets import without_secret_arguments
from raydebug.settings.flavours import flavour_of, flavour_variables, install
from raydebug.trainers.config import TrainingConfig
from raydebug.trainers.registry import TRAINERS, checks_of
from raydebug.trainers.trainer import Program

if TYPE_CHECKING:
    from raydebug.commands.trainings import Reading, Training
    from raydebug.trainers.checks import Checks
    from raydebug.trainers.verl.checks import PpoChecks

KILL_AFTER_BUDGETS = 3
LIMIT_LEAST_S = 15.0  # a machine under load is no finding: starting Python alone may take seconds there
GRACE_S = 10.0  # the other side ends its child itself; we step in where it does not


@dataclass(frozen=True)
class Target:
    """A command under check.

    Args:
        command: the whole command; empty where only the environment is checked.
        program: the trainer's program that it runs; None without a command.
        folder: where it runs, on this machine.
        runner: where its programs run.
        environ: the whole environment that its processes would have; None where the runner has one of its own.
        caller: the environment of the user.
        cluster: the running cluster that it would join.
        gpus: how many logical GPUs that cluster has; None without one, or where it does not answer.
        profile: the name of a profile that is applied to it.
        others: the cluster's other nodes, as far as this machine reaches them: name and runner.
        changed: variables that a script, `env` or a fix changes for the command; None: removed.
        elsewhere: the training runs on another machine: this one's GPUs, limits and missing data say nothing about it.
        copies: the launcher that would start it several times, as `Training` has it.
    """

    command: tuple[str, ...]
    program: Program | None
    folder: Path
    runner: Runner
    environ: Mapping[str, str] | None
    caller: Mapping[str, str]
    cluster: Cluster | None = None
    gpus: int | None = None
    profile: str | None = None
    others: tuple[tuple[str, Runner], ...] = ()
    changed: Mapping[str, str | None] = field(default_factory=dict)
    elsewhere: bool = False
    copies: tuple[str, str] | None = None

    @property
    def arguments(self) -> list[str]:
        """The program's own arguments."""
        return list(self.command[self.program.arguments_at :]) if self.program else []

    @property
    def checks(self) -> Checks:
        """What is known of its program; without a command, of the first trainer's first program."""
        trainer = self.program.trainer if self.program else TRAINERS[0]
        return checks_of(trainer, self.program.name if self.program else trainer.programs()[0])

    @property
    def rules(self) -> PpoChecks | None:
        """The rules of its program, where raydebug has some."""
        from raydebug.trainers.verl.checks import rules_of  # 10 ms that `check env` need not pay

        return rules_of(self.checks)

    def config(self, values: Mapping[str, Any]) -> TrainingConfig:
        """Return a config that a probe has composed."""
        return TrainingConfig(values, self.checks.keys_of(values))

    def with_variable(self, name: str, value: str | None) -> Target:
        """Return this target with one more variable changed."""
        environ = None if self.environ is None else _with_changes(self.environ, {name: value})
        caller = _with_changes(self.caller, {name: value})
        return replace(self, environ=environ, caller=caller, changed={**self.changed, name: value})

    def as_request(self) -> Facts:
        """Return the part of a probe's request that describes the command."""
        return {
            "command": list(self.command),
            "profile": self.profile,
            "trainer": self.program.trainer.name if self.program else None,
        }


def find_target(command: list[str], folder: Path, name: str, profile: str | None) -> Target:
    """Return the target: a command as it would run on the cluster of this name, or on one that `run` would start.

    Raises:
        RaydebugError: the command does not run one training that can be checked, or the cluster cannot run it from
            here.
    """
    training = None
    if command:
        from raydebug.commands.trainings import read_command  # `check env` needs no command: 30 ms

        reading = read_command(command, os.environ, folder)
        if reading.unreadable is not None:
            raise reading.unreadable
        training = only_training(reading)
    return target_of(training, folder, find_running(name), profile)


def only_training(reading: Reading) -> Training:
    """Return the training that a command runs.

    Raises:
        RaydebugError: it runs none, or several.
    """
    # Of those that run in place of one another, by a condition that was not decided, the first.
    found = [training for training in reading.trainings if not training.is_variant] or reading.trainings[:1]
    if len(found) > 1:
        raise UsageError(
            f"'{' '.join(reading.command)[:120]}' runs {len(found)} trainings",
            cause="; ".join(" ".join(training.argv)[:60] for training in found[:4]),
            fix=f"check each by itself: raydebug check -- {TRAINERS[0].example} ...",
            code="check.several",
        )
    if found:
        return found[0]
    raise UsageError(
        f"'{' '.join(without_secret_arguments(reading.command))[:120]}' is not a training that raydebug can check",
        cause=f"it does not run {TRAINERS[0].example.split()[-1]}",
        fix=f"raydebug check -- {TRAINERS[0].example} data.train_files=... ; `raydebug check env` needs none",
        code="check.no-training",
    )


def target_of(training: Training | None, folder: Path, cluster: Cluster | None, profile: str | None) -> Target:
    """Return the target for a training, or for an environment alone, on a cluster or on one that `run` would start.

    Raises:
        RaydebugError: the cluster cannot run it from here.
    """
    nodes = [("this machine", LocalRunner(find_interpreter()))] if cluster is None else kind_of(cluster).runners()
    runner = nodes[-1][1]  # a worker where there is one: it has the GPUs
    if training is not None:
        folder = training.folder
        if isinstance(runner, LocalRunner) and not folder.is_dir():
            raise UsageError(
                f"there is no folder {folder}",
                cause="the command goes there before it trains",
                fix="write the folder that you have into the script, or start the training command itself in it",
                code="check.no-folder",
            )
    elif isinstance(runner, NodeRunner):  # an environment needs none, and the nodes may not have this one
        folder = Path("/")
    runner.folder(folder)
    changed: dict[str, str | None] = {}
    if training is not None:
        changed = dict.fromkeys(set(os.environ) - set(training.environ))
        changed.update((name, it) for name, it in training.environ.items() if os.environ.get(name) != it)
    environ = None
    if isinstance(runner, LocalRunner):
        if cluster is not None:
            base, flavour = cluster_base(cluster), cluster.flavour
        else:
            base, flavour = dict(os.environ), flavour_of(installed_in(runner.python))
        environ = _with_changes(local_environ(base, flavour), changed)
    return Target(
        command=tuple(training.argv) if training else (),
        program=training.program if training else None,
        folder=folder,
        runner=runner,
        environ=environ,
        caller=_with_changes(os.environ, changed),
        cluster=cluster,
        gpus=kind_of(cluster).gpus() if cluster is not None else None,
        profile=profile,
        others=tuple(nodes[:-1]),
        changed=changed,
        copies=training.copies if training else None,
    )


def _with_changes(environ: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**environ, **changed}.items() if value is not None}


def local_environ(caller: Mapping[str, str], flavour: str) -> dict[str, str]:
    """Return what a job's processes have on a local cluster, as far as it can matter to a training.

    Args:
        caller: the environment of `raydebug up`, or of the check where no cluster runs.
        flavour: of the cluster's Python.
    """
    kept = {k: v for k, v in caller.items() if k not in DROPPED and not k.startswith(("RAYDEBUG_", "RAY_DEBUG"))}
    return {**flavour_variables(flavour), **kept, "PYTHONUNBUFFERED": "1"}


def cluster_base(cluster: Cluster) -> dict[str, str]:
    """Return the environment that a local cluster was brought up with; the caller's own where it cannot be read."""
    import psutil

    from raydebug.cluster.local import supervisor_of

    supervisor = supervisor_of(cluster)
    try:
        return dict(supervisor.environ()) if supervisor is not None else dict(os.environ)
    except psutil.Error:
        return dict(os.environ)


@dataclass(frozen=True)
class StageResult:
    """The result of one stage.

    Args:
        findings: errors, warnings and notes.
        read: the files that the result depends on, by their paths in the cluster; empty if it depends on more than
            files, so that it cannot be cached.
    """

    findings: list[Finding]
    read: tuple[str, ...] = ()


class NoAnswer(Exception):
    """A probe that returned no facts; `finding` has the reason."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


def run_probe(target: Target, question: str, *, budget_s: float, **request: Any) -> Facts:
    """Return the facts that one module of `probes` gathers.

    Args:
        target: where to ask.
        question: the module's name.
        budget_s: how long it may take; after three times as long (15 s at least) it is killed.
        **request: arguments of the probe.

    Raises:
        NoAnswer: it failed, died or was killed.
        RaydebugError: the cluster's Python could not be run.
    """
    return run_probes(target, {"": target.runner}, question, budget_s=budget_s, **request)[""]


def run_probes(
    target: Target, runners: Mapping[str, Runner], question: str, *, budget_s: float, **request: Any
) -> dict[str, Facts]:
    """Return the facts that one module of `probes` gathers in several places; see `run_probe`."""
    limit_s = max(budget_s * KILL_AFTER_BUDGETS, LIMIT_LEAST_S)
    argv = ["-m", "raydebug.check.probes", json.dumps({**request, "question": question, "limit_s": limit_s})]
    programs = {name: (runner, argv) for name, runner in runners.items()}
    timeout_s = limit_s * BUSY_TIMES + GRACE_S
    printed = run_on_each(programs, target.folder, environ=target.environ, timeout_s=timeout_s)
    return {name: _facts_in(one, question, limit_s) for name, one in printed.items()}


def _facts_in(printed: str | RaydebugError, question: str, limit_s: float) -> Facts:
    if isinstance(printed, RaydebugError):
        raise printed
    lines = [line for line in printed.splitlines() if line.startswith(MARK)]
    if not lines:
        raise process.CommandFailed(
            ["python", process.SAFE_PATH, "-m", "raydebug.check.probes"],
            0,
            printed,
            fix="install this raydebug in the cluster's Python",
        )
    return facts_of(json.loads(lines[-1].removeprefix(MARK)), question, limit_s)


def facts_of(answer: Facts, question: str, limit_s: float) -> Facts:
    """Return the facts in an answer.

    Raises:
        NoAnswer: there are none in it.
    """
    if "facts" in answer:
        facts: Facts = answer["facts"]
        facts.setdefault("output", answer.get("output", ""))
        return facts
    last = (answer.get("output") or "").strip().splitlines()[-1:] or ["(it printed nothing)"]
    if "late" in answer:
        case = "seen" if answer["late"] else "silent"
        about = {"question": question, "limit_s": limit_s, "place": answer["late"], "last": last}
        raise NoAnswer(finding(f"check.out-of-time.{case}", **about))
    if "signal" in answer:
        number = answer["signal"]
        death = f"signal {number}" if number > 0 else f"exit code {-number}"
        raise NoAnswer(finding("check.died", question=question, death=death, last=last))
    if "refused" in answer:
        refused = answer["refused"]
        raise NoAnswer(finding("check.refused", refused=refused))
    failed = answer["failed"]
    if failed["type"] == "ModuleNotFoundError":
        missing = failed["message"].partition("'")[2].partition("'")[0]
        raise NoAnswer(
            finding(
                "env.package-missing.probe",
                question=question,
                missing=missing,
                failed=failed,
                install=install(flavour="cpu"),
            )
        )
    raise NoAnswer(finding("check.failed", question=question, failed=failed))
