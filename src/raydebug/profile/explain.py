"""`raydebug profile show`: apply a profile to each training that a command runs, without starting anything."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from raydebug.errors import Exit, RaydebugError
from raydebug.profile.apply_profile import apply_profile, no_training
from raydebug.profile.script import Training, find_trainings

# The variables that decide how a profile is applied.
_DECIDING = ("VERL_PLATFORM", "WORLD_SIZE")


class Runner(Protocol):
    """Where commands run (cluster/runner.py)."""

    def folder(self, here: Path) -> str:
        """Return what a folder of this machine is called there."""

    def run_python(self, arguments: list[str], working_dir: Path) -> str:
        """Run the Python there and return what it printed."""


def explain(
    command: Sequence[str],
    *,
    profile: str,
    environ: Mapping[str, str],
    folder: Path,
    tiny: Sequence[str] = (),
    version: str | None = None,
    elsewhere: Runner | None = None,
) -> list[dict[str, Any]]:
    """Return the document of each training command that a command runs, in their order.

    Args:
        command: a training command, or a shell script that runs some.
        profile: the profile's name.
        environ: the environment that it would run in.
        folder: where it would run.
        tiny: what is swapped in: `model`, `data`.
        version: take the trainer for one of this version of verl.
        elsewhere: the place of a cluster that has another Python, or other files, than this process; None for here.

    Raises:
        RaydebugError: it runs no known training, its script cannot be read, or the profile cannot be applied.
    """
    trainings = find_trainings(command, environ, folder)
    if not trainings:
        raise no_training(command)
    documents = []
    for training in trainings:
        asked: dict[str, Any] = {"argv": training.argv, "profile": profile, "tiny": list(tiny), "version": version}
        document = _ask(elsewhere, training, asked) if elsewhere else _look_here(training, asked)
        documents.append({**document, "notes": [*document["notes"], *training.notes]})
    return documents


def _search(training: Training) -> list[str]:
    """Return where the training's Python looks first: its folder, then PYTHONPATH."""
    return ["", *(entry for entry in training.environ.get("PYTHONPATH", "").split(os.pathsep) if entry)]


def _look_here(training: Training, asked: dict[str, Any]) -> dict[str, Any]:
    search = [*_search(training), *sys.path]
    return apply_profile(**asked, environ=training.environ, folder=training.folder, search=search).as_json()


def _ask(place: Runner, training: Training, asked: dict[str, Any]) -> dict[str, Any]:
    environ = {name: training.environ[name] for name in _DECIDING if name in training.environ}
    request = json.dumps({**asked, "environ": environ, "search": _search(training)})
    printed = place.run_python(["-m", "raydebug.profile.apply_profile", request], training.folder)
    answer: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    if "error" in answer:
        said = answer["error"]
        raise RaydebugError(
            said["message"],
            cause=said["cause"],
            fix=said["fix"],
            code=said["code"],
            exit_code=Exit(answer["exit_code"]),
        )
    return answer
