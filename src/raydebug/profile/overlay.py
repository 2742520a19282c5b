"""Lay a profile over a training command: the new command, and each change with its reason. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raydebug.errors import Exit, RaydebugError
from raydebug.profile.command import Command
from raydebug.profile.fit import fit
from raydebug.profile.installed import Installed
from raydebug.profile.keys import Column, column_of, columns, known_versions, nearest_column
from raydebug.profile.load import Profile, Rule
from raydebug.profile.recognise import Trainer
from raydebug.profile.settings import Change, Missing, Settings
from raydebug.worker import names

AGREES_AT_LEAST = 0.6  # of a version's keys, for a config of unknown version to be read by them
TYPO_CLOSENESS = 0.8  # of each part of two keys, for one key to be taken for the other misspelled


@dataclass(frozen=True)
class Overlay:
    """What a profile makes of a command.

    Args:
        changes: what changed.
        argv: the trainer's new arguments.
        launcher: torchrun's new options.
        missing: settings of the profile that the trainer has no key for.
        notes: what the user should know beside.
        version: the version whose keys were used.
        settings: the settings as they are now, for whoever goes on changing them.
    """

    changes: list[Change]
    argv: list[str]
    launcher: list[str]
    missing: list[Missing]
    notes: list[str]
    version: str
    settings: Settings = field(repr=False)


def overlay_profile(
    profile: Profile,
    trainer: Trainer,
    overrides: Sequence[str],
    environ: Mapping[str, str],
    *,
    installed: Installed,
    launcher: Sequence[str] = (),
) -> Overlay:
    """Lay a profile over a trainer's arguments.

    Args:
        profile: what to lay over.
        trainer: whose arguments they are.
        overrides: its arguments: Hydra overrides, and Hydra's own options, which pass as they are.
        environ: VERL_PLATFORM decides which parts of the profile hold, the node's GPUs how many ranks it
            has at most.
        installed: the trainer's version and config, as far as they are known.
        launcher: torchrun's options.

    Raises:
        RaydebugError: the profile is not for this trainer, the trainer's keys are not known, or an override is
            misspelled.
    """
    if profile.trainers and trainer.name not in profile.trainers:
        raise _not_for(profile, trainer)
    version, column, notes = _choose_column(profile, trainer, installed)
    command = Command(list(overrides), list(launcher))
    _check_spelling(command, trainer, installed)
    started = environ.get("WORLD_SIZE", "") if trainer.launcher_at is None else ""
    settings = Settings(
        column if trainer.launcher_at is not None else _without_launcher(column),
        command,
        installed.values,
        elsewhere=frozenset(word for other in columns()[trainer.name].values() for word in other),
        started_ranks=int(started) if started.isdigit() else None,
    )
    platform = environ.get("VERL_PLATFORM", "").strip().lower()
    for rule in profile.rules:
        if rule.only_on in (None, platform):
            settings.obey(_as_many_as_the_node_has(rule, environ))
    fit(trainer.name, settings)
    return Overlay(settings.changes, command.arguments, command.launcher, settings.missing, notes, version, settings)


def _choose_column(profile: Profile, trainer: Trainer, installed: Installed) -> tuple[str, Column, list[str]]:
    """Return the keys to use, the version that they are of, and what is to be said about the choice."""
    found = column_of(trainer.name, installed.version) if installed.version else None
    if found is not None:
        return *found, []
    if installed.values is None:
        raise _unknown_version(profile, trainer, installed)
    version, column = nearest_column(trainer.name, installed.values)
    own = [key.path for key in column.values() if not key.is_launcher_option and not key.added]
    if sum(path in installed.values for path in own) < AGREES_AT_LEAST * len(own):
        raise _unknown_version(profile, trainer, installed)
    called = f"verl {installed.version}" if installed.version else "a verl that names no version"
    return (
        version,
        column,
        [f"{called} is not known; its config is most like that of verl {version}, whose keys are used"],
    )


def _as_many_as_the_node_has(rule: Rule, environ: Mapping[str, str]) -> Rule:
    """Return a rule; a limit on ranks is what `raydebug up --gpus` was told, where that is known."""
    gpus = environ.get(names.NODE_GPUS, "")
    if rule.word != "gpus_per_node" or rule.kind != "at_most" or not gpus.isdigit():
        return rule
    return replace(rule, value=int(gpus), why="the logical GPUs that `raydebug up --gpus` gave each node")


def _without_launcher(column: Column) -> Column:
    return {word: key for word, key in column.items() if not key.is_launcher_option}


def _check_spelling(command: Command, trainer: Trainer, installed: Installed) -> None:
    """Refuse an override of a key that the config does not have and that is nearly one that it has.

    Hydra refuses every key that is not there, after the trainer's imports and without a proposal.
    """
    if installed.values is None:
        return
    for key in command.set_keys():
        if _is_known(key, installed.values):
            continue
        nearest = max(installed.values, key=lambda known: _closeness(key, known), default="")
        if _closeness(key, nearest) >= TYPO_CLOSENESS:
            raise RaydebugError(
                f"{trainer.module} has no setting '{key}'",
                cause=f"the config of verl {installed.version or '(no version)'} has no such key; "
                f"the nearest is {nearest}",
                fix=f"write {nearest}=..., or +{key}=... to add a key of your own",
                code="profile.typo",
                exit_code=Exit.USAGE,
            )


def _closeness(key: str, known: str) -> float:
    """Return how alike the least alike parts of two keys are: `rollout.n` and `rollout.name` are two words."""
    mine, theirs = key.split("."), known.split(".")
    if len(mine) != len(theirs):
        return 0.0
    return min(
        1.0 if a == b else difflib.SequenceMatcher(None, a, b).ratio() for a, b in zip(mine, theirs, strict=True)
    )


def _is_known(key: str, values: Iterable[str]) -> bool:
    """Tell whether Hydra would take a key: it is there, it is a part of the config, or it is no key (a group)."""
    return (
        "." not in key
        or "@" in key
        or key.startswith("hydra.")
        or any(path == key or path.startswith(f"{key}.") for path in values)
    )


def _unknown_version(profile: Profile, trainer: Trainer, installed: Installed) -> RaydebugError:
    if installed.version is None and installed.values is None:
        cause = f"{installed.unread}, and its version is not known"
        fix = "run it where verl is installed, or name the version: raydebug profile show --verl 0.9 ..."
    else:
        cause = (
            f"verl {installed.version or '(no version)'} is installed; the keys of these versions are known: "
            f"{known_versions(trainer.name)}"
        )
        fix = "install a known version, or run without --profile"
    return RaydebugError(
        f"the profile '{profile.name}' cannot be laid over {trainer.module}",
        cause=cause,
        fix=fix,
        code="profile.version",
        exit_code=Exit.USAGE,
    )


def _not_for(profile: Profile, trainer: Trainer) -> RaydebugError:
    return RaydebugError(
        f"the profile '{profile.name}' is not for {trainer.module}",
        cause=f"{profile.summary}: that is for {', '.join(profile.trainers)}, and this is {trainer.name}",
        fix="--profile debug",
        code="profile.not-for",
        exit_code=Exit.USAGE,
    )
