"""A fix in the user's own command: settings in raydebug's words become keys of the trainer that the command starts."""

from __future__ import annotations

import math
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raydebug.commands.trainings import Training, find_trainings
from raydebug.errors import RaydebugError
from raydebug.profile.apply_profile import AppliedProfile, apply_profile
from raydebug.profile.load import Profile, SettingRule, load_profile
from raydebug.trainers.registry import columns, recognise

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
_WORD = re.compile(r"(?!-\D)[\w.\[\]-]{1,100}")  # no option


@dataclass(frozen=True)
class Fixed:
    """A command with a fix.

    Args:
        command: its words.
        changes: what differs, in words.
    """

    command: list[str]
    changes: list[str] = field(default_factory=list)


def apply_fix(
    command: Sequence[str],
    settings: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    folder: Path,
    profile: str | None = None,
) -> Fixed | None:
    """Return a command with settings and environment variables changed; None if nothing of it can be.

    Args:
        command: the user's: a training, or a shell script that passes its arguments on to one.
        settings: raydebug's words and their values.
        variables: environment variables and their values.
        folder: where the command runs.
        profile: the profile under which it has run; `old` is the value that was in force.
    """
    new = {name: value for name, value in variables.items() if f"{name}={value}" not in command}
    fixed: Fixed | None = None
    if settings:
        try:
            fixed = _with_settings(list(command), settings, folder, profile)
        except RaydebugError:  # a script or a config that cannot be read, or no known version
            fixed = None
    words, changes = (fixed.command, fixed.changes) if fixed is not None else (list(command), [])
    if new:
        words = ["env", *(f"{name}={value}" for name, value in new.items()), *words]
        changes = [*changes, *(f"{name}={value}" for name, value in new.items())]
    return Fixed(words, changes) if changes else None


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


def _with_settings(command: list[str], settings: Mapping[str, str], folder: Path, profile: str | None) -> Fixed | None:
    trainings = find_trainings(command, os.environ, folder)
    if len(trainings) != 1:
        return None
    training = trainings[0]
    before = load_profile(profile) if profile is not None else Profile("none", "", ())
    in_force = _apply(training, before).overlay.settings
    values = {word: evaluate(value, in_force.text(word)) for word, value in settings.items()}
    rules = tuple(SettingRule(word, "set", value, "the fix") for word, value in values.items() if value is not None)
    applied = _apply(training, Profile("fix", "", rules))
    changes = applied.overlay.changes
    at = len(command) - len(training.argv)
    if command[at:] == training.argv:
        new = [*command[:at], *applied.argv]
    else:
        new = _through_script(command, applied, folder) or []
    return Fixed(new, [f"{one.key}: {one.old} -> {one.new}" for one in changes]) if new and changes else None


def _apply(training: Training, profile: Profile) -> AppliedProfile:
    """Apply a profile with the keys of the installed version, or of the newest where that is not known here."""
    search = ["", *filter(None, training.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path]

    def apply(version: str | None) -> AppliedProfile:
        return apply_profile(
            training.argv, profile=profile, environ=training.environ, folder=training.folder, search=search,
            version=version,
        )  # fmt: skip

    try:
        return apply(None)
    except RaydebugError as failure:
        program = recognise(training.argv)
        if failure.code != "profile.version" or program is None:
            raise
        versions = columns()[program.name]
        return apply([version for version, column in versions.items() if column][-1])


def _through_script(command: list[str], applied: AppliedProfile, folder: Path) -> list[str] | None:
    """Return the script's command with the new settings behind it; None if it does not pass them on."""
    trainer, column = applied.program.trainer, applied.overlay.settings.column
    arguments = trainer.parse([], [])
    for one in applied.overlay.changes:
        arguments.replace(one.key, one.new, added=column[one.setting].added)
    new = [*command, *arguments.arguments]
    trainings = find_trainings(new, os.environ, folder)
    if arguments.launcher or len(trainings) != 1:
        return None
    passed = trainer.parse(trainings[0].argv[applied.program.arguments_at :], [])
    return new if all(passed.get(one.key) == one.new for one in applied.overlay.changes) else None
