"""Apply a profile to one whole command: in the driver of a job, for the checks, and for `run --dry-run`.

`python -m raydebug.profile.apply_profile REQUEST` prints JSON: for a container or another Python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug import render
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.process import answer_in
from raydebug.profile.load import Profile, load_profile
from raydebug.profile.overlay import overlay_profile
from raydebug.profile.rollouts import Rollouts
from raydebug.profile.swap import MODEL_RULES, OURS, Build, hide_from_git, swap_in
from raydebug.protocol import variables
from raydebug.trainers.registry import TRAINERS, modules_known, recognise
from raydebug.trainers.settings import Change, Settings
from raydebug.trainers.trainer import Installed, Program

if TYPE_CHECKING:
    from raydebug.cluster.runner import Runner

# The variables that decide how a profile is applied.
_DECIDING = ("VERL_PLATFORM", "WORLD_SIZE")


@dataclass(frozen=True)
class AppliedProfile:
    """A command with a profile applied: what it runs, the changes, the new command, and what is made before it."""

    program: Program
    installed: Installed
    settings: Settings
    argv: list[str]
    builds: list[Build]

    def as_json(self) -> dict[str, Any]:
        """Return the document of `run --dry-run --json`."""
        return {
            "trainer": self.program.module,
            self.program.trainer.name: self.installed.version,
            "keys_of": self.settings.version,
            "changes": [asdict(change) for change in self.settings.changes],
            "missing": [asdict(missing) for missing in self.settings.missing],
            "made": [{"what": build.what, "target": str(build.target)} for build in self.builds],
            "notes": self.settings.notes,
            "argv": self.argv,
        }


def apply_profile(
    argv: Sequence[str],
    *,
    profile: str | Profile,
    environ: Mapping[str, str],
    folder: Path,
    search: Sequence[str],
    tiny: Sequence[str] = (),
    rollouts: Rollouts | None = None,
    version: str | None = None,
) -> AppliedProfile:
    """Apply a profile to a command.

    Args:
        argv: the whole command, from its interpreter or torchrun on.
        profile: the profile, or its name.
        environ: its environment.
        folder: its working directory.
        search: where its Python looks for modules, in order.
        tiny: what is replaced by a tiny one: `model`, `data`.
        rollouts: what is done with rollouts.
        version: of the trainer, to assume whatever is installed.

    Raises:
        RaydebugError: it is no known training, or the profile cannot be applied to it.
    """
    program = recognise(argv, folder=folder, search=search)
    if program is None:
        raise no_training(argv, [])
    rules = load_profile(profile) if isinstance(profile, str) else profile
    if "model" in tiny:
        rules = replace(rules, rules=rules.rules + MODEL_RULES)
    if rollouts is not None:
        rules = replace(rules, rules=rules.rules + rollouts.rules())
    installed = program.trainer.read_config(program, argv, folder=folder, search=search)
    if version is not None and version != installed.version:
        installed = Installed(version, None, f"{program.trainer.name} {version} was asked for")
    settings = overlay_profile(
        rules, program, argv[program.arguments_at :], environ, installed=installed, launcher=program.launcher(argv)
    )
    builds = swap_in(tiny, settings, program, folder)
    new = program.with_arguments(argv, settings.command)
    return AppliedProfile(program, installed, settings, new, builds)


def apply_in_driver(
    argv: Sequence[str], *, profile: str, tiny: Sequence[str] = (), rollouts: str = ""
) -> list[str] | None:
    """Return the new sys.argv[1:] of a training command, and print the changes into the job's log.

    None if the command, as `sys.orig_argv` has it, is no known training; `rollouts` is `Rollouts.as_variable`.

    Raises:
        RaydebugError: the profile is unknown or cannot be applied to this command, or nothing tiny can be made.
    """
    # `python -m` puts the working folder first, only after site has run; with -P or -I it does not at all.
    search = sys.path if sys.flags.safe_path else ["", *sys.path]
    if recognise(argv, folder=Path.cwd(), search=search) is None:
        return None
    kept = Rollouts.of_variable(rollouts)
    applied = apply_profile(
        argv, profile=profile, environ=os.environ, folder=Path.cwd(), search=search, tiny=tiny, rollouts=kept
    )
    program, settings = applied.program, applied.settings
    if any(f"{OURS}/" in str(change.new) for change in settings.changes):
        hide_from_git(Path(OURS))
    is_first = os.environ.get("RANK", "0") == "0"
    for build in applied.builds:
        if is_first:
            render.say(f"raydebug: making a tiny {build.what} in {build.target}")
        build.make(os.environ)
    if is_first:
        if kept is not None:
            kept.begin(settings, applied.installed.version)
        _record(settings.changes)
        render.say(f"raydebug: the profile '{profile}' changes {len(settings.changes)} settings of {program.module}:")
        for line in (*settings.changes, *settings.notes):
            render.say(f"  {line}")
        if settings.missing:
            render.say(f"  left alone, it has no key for: {', '.join(missing.setting for missing in settings.missing)}")
    first = program.arguments_at if program.launcher_at is None else program.launcher_at
    return applied.argv[first:]


def _record(changes: Sequence[Change]) -> None:
    """Append the changes to the job's file in Ray's log folder, where the recorder of the run reads them."""
    job = os.environ.get(variables.JOB)
    if not job:
        return
    folder = Path(os.environ.get(variables.RAY_LOGS) or variables.CONTAINER_RAY_LOGS)
    path = folder / variables.PROFILE_REPORT.format(job=job)
    try:
        earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        rows = [*earlier, *(change.as_json() for change in changes)]
        path.write_text(json.dumps(rows), encoding="utf-8")
    except (OSError, ValueError) as failure:
        render.say(f"raydebug: the profile's changes are not recorded: {failure}")


def no_training(argv: Sequence[str], others: Sequence[str]) -> RaydebugError:
    """Return the error for a command that is no training; `others` are the Python programs that it runs."""
    if others:
        names = [trainer.name for trainer in TRAINERS]
        return UsageError(
            f"'{' '.join(argv)[:120]}' runs no training that raydebug knows",
            cause=f"it runs {', '.join(others[:3])}: neither the name nor the arguments are those of"
            f" {' or '.join(names)}, and no config with their keys was found",
            fix=f"say what it is: --trainer {names[0]} (or {', '.join(names[1:])}),"
            " with --verl 0.9 where verl is not installed",
            code="profile.no-training",
        )
    return UsageError(
        f"'{' '.join(argv)[:120]}' is not a training command that raydebug knows",
        cause=f"those are python or torchrun with -m {modules_known()}",
        fix=f"raydebug run --profile debug --dry-run -- {TRAINERS[0].example} ...",
        code="profile.no-training",
    )


def explain(
    command: Sequence[str],
    *,
    profile: str,
    environ: Mapping[str, str],
    folder: Path,
    tiny: Sequence[str] = (),
    rollouts: str = "",
    version: str | None = None,
    elsewhere: Runner | None = None,
) -> list[dict[str, Any]]:
    """Return the document of each training command that a command or a shell script runs, in their order.

    One to which the profile cannot be applied has `refused` instead, an error as JSON.

    Arguments are those of `apply_profile`; `rollouts` is `Rollouts.as_variable`, `elsewhere` is the runner of a
    cluster that has another Python, or other files, than this process.

    Raises:
        RaydebugError: it runs no known training, its script cannot be read, or the profile can be applied to none.
    """
    from raydebug.commands.trainings import read_command

    reading = read_command(command, environ, folder)
    if not reading.trainings:
        raise reading.unreadable or no_training(command, reading.others)
    documents: list[dict[str, Any]] = []
    refused: list[RaydebugError] = []
    for training in reading.trainings:
        # The training's Python looks in its folder first, then in PYTHONPATH.
        search = ["", *(entry for entry in training.environ.get("PYTHONPATH", "").split(os.pathsep) if entry)]
        request: dict[str, Any] = {"argv": training.argv, "profile": profile, "tiny": list(tiny), "version": version}
        request |= {"search": search, "rollouts": rollouts}
        try:
            if elsewhere is None:
                document = _answer({**request, "environ": training.environ}, training.folder)
            else:
                deciding = {name: training.environ[name] for name in _DECIDING if name in training.environ}
                request |= {"environ": deciding, "trainer": environ.get(variables.TRAINER)}
                document = _ask(elsewhere, training.folder, request)
        except RaydebugError as failure:
            refused.append(failure)
            refusal = failure.as_json()["error"]
            document = {"trainer": training.program.module, "notes": [], "argv": training.argv, "refused": refusal}
        documents.append({**document, "notes": [*document["notes"], *training.notes]})
    if len(refused) == len(documents):
        raise refused[0]
    return documents


def _answer(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the document of a request, here."""
    search, rollouts = [*request["search"], *sys.path], Rollouts.of_variable(request["rollouts"])
    return apply_profile(**{**request, "folder": folder, "search": search, "rollouts": rollouts}).as_json()


def _ask(runner: Runner, folder: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a profile in the Python of a runner, by `main`, and return the document."""
    printed = runner.run_python(["-m", "raydebug.profile.apply_profile", json.dumps(request)], folder)
    answer: dict[str, Any] = answer_in(printed)
    if "error" in answer:
        raise RaydebugError.of_json(answer, Exit(answer["exit_code"]))
    return answer


def main(request: str) -> int:
    """Answer one request of `run --dry-run` with JSON."""
    asked = json.loads(request)
    if trainer := asked.pop("trainer", None):
        os.environ[variables.TRAINER] = trainer
    try:
        answer = _answer(asked, Path.cwd())
    except RaydebugError as failure:
        answer = {**failure.as_json(), "exit_code": failure.exit_code}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
