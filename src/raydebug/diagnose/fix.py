"""A fix in the user's own command: settings in raydebug's words become keys of the trainer that the command starts."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from raydebug.commands.trainings import Training, find_trainings
from raydebug.diagnose.answer import Diagnosis
from raydebug.errors import RaydebugError
from raydebug.profile.apply_profile import AppliedProfile, apply_profile
from raydebug.profile.load import Profile, load_profile
from raydebug.runs.record import Run
from raydebug.trainers.registry import columns

# A value of a rule: `old` or a number, and what is done to it: `old * 0.8`, `39.2 / 80`, `old, a divisor of 4`.
_NUMBER = r"\d{1,12}(?:\.\d{1,12})?"
_STEP = rf",? (\*|/|at most|a multiple of|a divisor of) ({_NUMBER})"
_FORMULA = re.compile(rf"(old|{_NUMBER})((?:{_STEP})*)")
_STEPS: dict[str, Callable[[float, float], float]] = {
    "*": operator.mul,
    "/": lambda value, by: value / by if by else value,
    "at most": min,
    "a multiple of": lambda value, of: value // of * of or of if of else value,
    "a divisor of": lambda value, of: next((n for n in range(int(min(value, of)), 0, -1) if of % n == 0), 1),
}
_MARK = "raydebug-mark-of-the-end"  # an argument that no training has
_WORD = re.compile(r"(?!-\D)[\w.\[\]-]{1,100}")  # no option


@dataclass(frozen=True)
class Fixed:
    """A command with a fix."""

    command: list[str]
    changes: list[str]  # what differs, in words


def fix_run(cause: Diagnosis, run: Run) -> Fixed | None:
    """Return the command of a run with the fix of a diagnosis; None if there is none that can be applied."""
    if not run.command:
        return None
    folder = Path(run.working_dir or Path.cwd())
    return apply_fix(run.command, cause.settings, cause.variables, folder=folder, profile=run.profile)


def apply_fix(
    command: Sequence[str],
    settings: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    folder: Path,
    profile: str | None = None,
) -> Fixed | None:
    """Return a command with settings and environment variables changed; None if nothing of it can be.

    The command is a training, or a shell script that passes its arguments on to one. The settings are raydebug's words
    with formulas, in which `old` is the value that was in force, under the profile too.
    """
    words, changes = list(command), list[str]()
    if settings:
        with contextlib.suppress(RaydebugError):  # a script or a config that cannot be read, or no known version
            words, changes = _with_settings(words, settings, folder, profile)
    new = [f"{name}={value}" for name, value in variables.items() if f"{name}={value}" not in command]
    return Fixed(["env", *new, *words] if new else words, changes + new) if changes or new else None


def evaluate(formula: str, old: str | None) -> str | None:
    """Return the value that a rule asks for; None if that is no value, or needs an old one that is no number.

    >>> evaluate("old * 0.5", "3"), evaluate("old * 1.5, at most 0.9", "0.7"), evaluate("30.5 / 80", None)
    ('1', '0.9', '0.38')
    >>> evaluate("old, a divisor of 4", "3"), evaluate("old, a multiple of 8", "5"), evaluate("spawn", "fork")
    ('2', '8', 'spawn')
    >>> evaluate("--remote", None), evaluate("-1", None)
    (None, '-1')
    """
    match = _FORMULA.fullmatch(formula)
    if match is None:
        return formula if _WORD.fullmatch(formula) else None
    start = old if match[1] == "old" else match[1]
    if start is None or not re.fullmatch(_NUMBER, start):
        return None
    steps = re.findall(_STEP, match[2])
    if not steps:
        return start
    value = float(start)
    for name, number in steps:
        value = _STEPS[name](value, float(number))
    is_whole = "." not in start and all(name != "/" for name, _ in steps)
    return str(int(max(min(1.0, float(start)), value))) if is_whole else f"{math.floor(round(value * 100, 6)) / 100:g}"


def _with_settings(
    command: list[str], formulas: Mapping[str, str], folder: Path, profile: str | None
) -> tuple[list[str], list[str]]:
    """Return a command with settings changed, and what differs; the command as it is if nothing can be.

    It is read with a mark behind it: where that comes out among the training's arguments, its new ones belong.
    """
    trainings = find_trainings([*command, _MARK], os.environ, folder)
    if len(trainings) != 1 or trainings[0].argv.count(_MARK) != 1:
        return command, []
    training = trainings[0]
    at = training.argv.index(_MARK)
    argv = [word for word in training.argv if word != _MARK]
    applied = _apply(replace(training, argv=argv), load_profile(profile) if profile else Profile("none", "", ()))
    program, trainer, in_force = applied.program, applied.program.trainer, applied.settings
    values = {word: evaluate(formula, in_force.text(word)) for word, formula in formulas.items()}
    own = trainer.parse(argv[program.arguments_at :], program.launcher(argv))
    settings = in_force.of_command(own)
    for word, value in values.items():
        if value is not None:
            settings.set(word, value, "the fix")
    trainer.fit_batches(program.name, settings)
    changes = [f"{change.key}: {change.old} -> {change.new}" for change in settings.changes]
    if command[len(command) - len(argv) :] == argv:
        return [*command[: len(command) - len(argv)], *program.with_arguments(argv, own)], changes
    # A script: the new arguments are passed on.
    added = trainer.parse([], [])
    for change in settings.changes:
        added.replace(change.key, change.new, added=in_force.column[change.setting].added)
    passed = trainer.parse([*argv[:at], *added.arguments, *argv[at:]][program.arguments_at :], [])
    are_passed = all(passed.get(change.key) == change.new for change in settings.changes)
    return ([*command, *added.arguments], changes) if are_passed and not added.launcher else (command, [])


def _apply(training: Training, profile: Profile) -> AppliedProfile:
    """Apply a profile with the keys of the installed version, or of the newest where that is not known here."""
    search = ["", *filter(None, training.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path]
    apply = partial(
        apply_profile, training.argv, profile=profile, environ=training.environ, folder=training.folder, search=search
    )
    try:
        return apply()
    except RaydebugError as failure:
        if failure.code != "profile.version":
            raise
        versions = columns()[training.program.name]
        return apply(version=[version for version, column in versions.items() if column][-1])
