"""Apply a profile to the arguments of a training: the new arguments, and each change with its reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from raydebug.errors import RaydebugError, UsageError
from raydebug.profile.load import Profile, SettingRule
from raydebug.protocol import variables
from raydebug.settings.flavours import numbers
from raydebug.trainers.argparse_trainer import ArgparseTrainer
from raydebug.trainers.arguments import Arguments
from raydebug.trainers.keys import Column
from raydebug.trainers.registry import column_of, columns, is_in, known_versions, nearest_column, own_keys
from raydebug.trainers.settings import Settings
from raydebug.trainers.trainer import Installed, Program

AGREES_AT_LEAST = 0.6  # of a version's keys, for a config of unknown version to be read by them
_BATCH_GROUP = {"train_batch_size", "generation_batch_size", "mini_batch_size", "rollouts_per_prompt"} | {
    "rollouts_per_agent", "samples_per_prompt", "gpus_per_node", "nodes",
}  # fmt: skip


def overlay_profile(
    profile: Profile,
    program: Program,
    overrides: Sequence[str],
    environ: Mapping[str, str],
    *,
    installed: Installed,
    launcher: Sequence[str] = (),
) -> Settings:
    """Return the settings of a program's arguments, with a profile applied to them; Hydra's own options stay.

    In `environ` VERL_PLATFORM decides which parts of the profile hold, the node's GPUs how many ranks it has at most;
    `launcher` has torchrun's options.

    Raises:
        RaydebugError: the profile is not for this trainer, the trainer's keys are not known, or an override is
            misspelled.
    """
    if profile.trainers and program.name not in profile.trainers:
        raise _not_for(profile, program)
    version, column, notes = _choose_column(profile, program, installed)
    command = program.trainer.parse(overrides, launcher)
    _check_spelling(command, program, installed)
    _check_version(command, program, installed, version, column)
    started = environ.get("WORLD_SIZE", "") if program.launcher_at is None else ""
    settings = Settings(
        program.trainer.name,
        program.trainer.in_use,
        version,
        {word: key for word, key in column.items() if program.launcher_at is not None or not key.is_launcher_option},
        command,
        installed.values,
        notes,
        elsewhere=frozenset(word for other in columns()[program.name].values() for word in other),
        started_ranks=int(started) if started.isdigit() else None,
    )
    # The micro batch has to divide what the others are reduced to.
    can_fit = settings.has("micro_batch_size") or not settings.has("mini_batch_size")
    group = set[str]() if can_fit else _BATCH_GROUP
    if group:
        notes.insert(0, f"{program.module} has no micro batch size by a known name: its batch sizes stay as they are")
    if "steps" in settings.elsewhere and not settings.has("steps") and not settings.has("async_samples"):
        notes.insert(0, "it has no setting for the number of steps: each batch of its data is a step")
    if settings.has("async_samples"):
        group |= {"train_batch_size", "generation_batch_size"}  # 0 and 1: its prompts come one by one
    platform = "cpu" if program.trainer.on_cpu(environ) else None
    for rule in profile.rules:
        if rule.only_on in (None, platform) and rule.word not in group:
            _obey(settings, _as_many_as_the_node_has(rule, environ))
    program.trainer.fit_batches(program.name, settings)
    if sweeps := command.swept_keys():
        notes.append(f"the command sweeps {', '.join(sweeps)}: the small run is made once for each value")
    return settings


def _obey(settings: Settings, rule: SettingRule) -> None:
    """Apply one rule of a profile to the settings of a command."""
    if rule.kind == "unset":
        settings.unset(rule.word, rule.why, rule.saves)
    elif rule.kind == "set":
        settings.set(rule.word, rule.value, rule.why, rule.saves)
    else:
        assert isinstance(rule.value, int | float)
        settings.limit(rule.word, rule.value, rule.why, rule.saves)


def _choose_column(profile: Profile, program: Program, installed: Installed) -> tuple[str, Column, list[str]]:
    """Return the version whose keys are used, the keys, and notes about the choice."""
    found = column_of(program.name, installed.version) if installed.version else None
    if found is not None:
        return *found, []
    if installed.values is None:
        raise _unknown_version(profile, program, installed)
    version, column = nearest_column(program.name, installed.values)
    own = own_keys(column)
    if sum(is_in(key, installed.values) for key in own) < AGREES_AT_LEAST * len(own):
        raise _unknown_version(profile, program, installed)
    name = program.trainer.name
    called = f"{name} {installed.version}" if installed.version else f"a release of {name} that states no version"
    return (
        version,
        column,
        [f"{called} is not known; its config is most like that of {name} {version}, whose keys are used"],
    )


def _as_many_as_the_node_has(rule: SettingRule, environ: Mapping[str, str]) -> SettingRule:
    """Return a rule; the limit on ranks is the number given to `raydebug up --gpus`, if known."""
    gpus = environ.get(variables.NODE_GPUS, "")
    if rule.word != "gpus_per_node" or rule.kind != "at_most" or not gpus.isdigit():
        return rule
    return replace(rule, value=int(gpus), why="the logical GPUs that `raydebug up --gpus` gave each node")


def _check_spelling(command: Arguments, program: Program, installed: Installed) -> None:
    """Refuse an override of a key that the config does not have and that is nearly one that it has.

    Hydra refuses every key that is not there, after the trainer's imports and without a proposal. slime ignores it.
    """
    if installed.values is None:
        return
    for key in command.set_keys():
        nearest = command.mistaken_for(key, installed.values)
        if nearest is not None:
            raise UsageError(
                f"{program.module} has no setting '{key}'",
                cause=f"the config of {program.trainer.name} {installed.version or '(no version)'} has no such key; "
                f"the nearest is {nearest}",
                fix=command.spelling(key, nearest),
                code="profile.typo",
            )


def _check_version(command: Arguments, program: Program, installed: Installed, version: str, column: Column) -> None:
    """Refuse a version that was asked for where the command has options of another: its argparse takes no others."""
    if installed.values is not None or not isinstance(program.trainer, ArgparseTrainer):
        return
    given, own = set(command.set_keys()), {key.path for key in column.values()}
    of_others = {
        name: [(key.path, column[word].path) for word, key in other.items() if key.path in given and word in column]
        for name, other in columns()[program.name].items()
    }
    foreign = {name: [pair for pair in pairs if pair[0] not in own] for name, pairs in of_others.items()}
    name, pairs = max(reversed(foreign.items()), key=lambda it: len(it[1]))
    if pairs:
        raise UsageError(
            f"the command is not for {program.trainer.name} {installed.version}",
            cause=f"--{pairs[0][0]} is an option of release {name}; that of {version} is --{pairs[0][1]}",
            fix=f"name the release that the command is for: raydebug run --dry-run --verl {name} ...",
            code="profile.version",
        )


def _unknown_version(profile: Profile, program: Program, installed: Installed) -> RaydebugError:
    known = known_versions(program.name)
    older = [release for release in known if installed.version and numbers(release) <= numbers(installed.version)]
    nearest = older[-1] if older else known[0] if installed.version and numbers(installed.version) else known[-1]
    again = f"raydebug run --dry-run --verl {nearest} ..."
    if installed.version is None and installed.values is None:
        cause = f"{installed.unread}, and its version is not known"
        fix = f"run it where {program.trainer.name} is installed, or name the version: {again}"
    else:
        name = program.trainer.name
        why = f", and its config cannot be read: {installed.unread}" if installed.unread else ""
        cause = (
            f"{name} {installed.version or '(no version)'} is installed{why}; the keys of these versions are"
            f" known: {', '.join(known)}"
        )
        fix = f"name the version that it is like: {again}, or run without --profile"
    return UsageError(
        f"the profile '{profile.name}' cannot be applied to {program.module}",
        cause=cause,
        fix=fix,
        code="profile.version",
    )


def _not_for(profile: Profile, program: Program) -> RaydebugError:
    return UsageError(
        f"the profile '{profile.name}' is not for {program.module}",
        cause=f"{profile.summary}: that is for {', '.join(profile.trainers)}, and this is {program.name}",
        fix="docs/15-profiles.md says what each profile makes of a run; `debug` is for all of these programs",
        code="profile.not-for",
    )
