"""The known trainers: the program that a command runs, and the columns of its keys.

`recognise` is called at the start of every Python of a job, so this module must be cheap to import. A column maps our
setting words to the keys of one version; a trainer's table has a column for each version that differs. tests/wheels
compares each key and default with the config in the wheel of each verl release (`nox -s wheels`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raydebug.protocol import variables
from raydebug.trainers.keys import GONE, Column, Key
from raydebug.trainers.openrlhf import OPENRLHF
from raydebug.trainers.slime import SLIME
from raydebug.trainers.trainer import Program, Trainer
from raydebug.trainers.verl.trainer import VERL

if TYPE_CHECKING:
    from raydebug.trainers.checks import Checks

TRAINERS: tuple[Trainer, ...] = (VERL, OPENRLHF, SLIME)
# Options of the interpreter that take the next argument. Source: python --help, CPython 3.11 and 3.12.
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
# torchrun's options that take none; every other one does. Source: torch 2.13.0 distributed/run.py:425-721.
_WITHOUT_VALUE = {"--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank"}
_CONFIGURED = re.compile(r"[+~]*[A-Za-z_][\w./@]*=|--config-(name|path|dir)\b|-c[npd]$")  # by Hydra
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True)
class Started:
    """What a command starts, whether or not it is a training: a Python module, or the path of a program.

    Args:
        module: its name; of a file, the last three parts of its path as one.
        arguments_at, launcher_at: as `Program` has them.
    """

    module: str
    arguments_at: int
    launcher_at: int | None = None


def recognise(argv: Sequence[str], *, folder: Path | None = None, search: Sequence[str] = ()) -> Program | None:
    """Return the program that a command runs; None if it is no known training.

    A program is a training by its name, by the keys that its arguments set, or by the config that its source names.

    Args:
        argv: the whole command, as `sys.orig_argv` has it: interpreter, its options, -m MODULE or a file, arguments;
            or torchrun and its options in place of the interpreter.
        folder: its working directory; None: its source is not looked at.
        search: where its Python looks for modules, in order.
    """
    started = started_by(argv)
    if started is None:
        return None
    module, arguments = started.module, argv[started.arguments_at :]
    if (
        module.rpartition(".")[2].removeprefix("main_").startswith("eval")
    ):  # it has a training's config, and trains nothing
        return None
    for trainer in TRAINERS:
        name = trainer.program_of(module) or trainer.program_of_arguments(module, arguments)
        if name is not None:
            return Program(trainer, name, module, started.arguments_at, started.launcher_at)
    asked = next((it for it in TRAINERS if it.name == os.environ.get(variables.TRAINER)), None)
    if asked is not None and asked.may_take(arguments):
        return Program(asked, asked.programs()[0], module, started.arguments_at, started.launcher_at)
    if folder is None or not any(map(_CONFIGURED.match, arguments)):
        return None
    for trainer in TRAINERS:
        program = Program(trainer, "", module, started.arguments_at, started.launcher_at)
        if name := trainer.program_of_source(program, argv, folder=folder, search=search):
            return replace(program, name=name)
    return None


def started_by(argv: Sequence[str]) -> Started | None:
    """Return what a command starts; None for code that is given by an option."""
    if argv and _is_torchrun(argv[0]):
        return _launched(argv, 1)
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        option = argv[at]
        if option.startswith("-m"):
            module = option[2:] or (argv[at + 1] if at + 1 < len(argv) else "")
            at += 1 if option[2:] else 2
            return _launched(argv, at) if module in _TORCHRUN else Started(module, at)
        if option in ("-c", "-"):
            return None
        at += 2 if option in _WITH_VALUE else 1
    if at < len(argv) and _is_torchrun(argv[at]):
        return _launched(argv, at + 1)
    return _of_file(argv[at], at + 1) if at < len(argv) else None


def _is_torchrun(program: str) -> bool:
    return program == "torchrun" or program.endswith("/torchrun")


def _launched(argv: Sequence[str], launcher_at: int) -> Started | None:
    """Return the program that torchrun starts: the first argument that is neither an option nor an option's value."""
    at, by_module = launcher_at, False
    while at < len(argv) and argv[at].startswith("-"):
        option = argv[at].replace("_", "-")
        by_module = by_module or option in ("-m", "--module")
        at += 1 if option in _WITHOUT_VALUE or "=" in option else 2
    if at >= len(argv):
        return None
    return Started(argv[at], at + 1, launcher_at) if by_module else _of_file(argv[at], at + 1, launcher_at)


def _of_file(path: str, arguments_at: int, launcher_at: int | None = None) -> Started:
    """Return the program of a file by its path: `python .../verl/trainer/main_ppo.py`, or a console script's."""
    module = ".".join(path.removesuffix(".py").split("/")[-3:])
    return Started(module, arguments_at, launcher_at)


def checks_of(trainer: Trainer, program: str) -> Checks:
    """Return what `raydebug check` knows of a trainer's program."""
    if trainer is VERL and program == "ppo":
        from raydebug.trainers.verl.checks import PpoChecks

        return PpoChecks(trainer)
    from raydebug.trainers.checks import Checks

    return Checks(trainer, program, trainer.files)


def columns() -> dict[str, Mapping[str, Column]]:
    """Return every column: program -> version from which it holds -> our setting names -> keys."""
    return {program: trainer.keys(program) for trainer in TRAINERS for program in trainer.programs()}


def words() -> frozenset[str]:
    """Return every setting word for which some trainer has a key."""
    return frozenset(word for table in columns().values() for column in table.values() for word in column)


def column_of(program: str, version: str) -> tuple[str, Column] | None:
    """Return the column for a release such as `0.9.1`, and its version; None for an unknown version.

    A later patch of a known release has that release's keys; `0.7` means the newest 0.7.
    """
    release = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.post\d+)?(?:\+.*)?", version.strip())
    if release is None:  # a development version, which may lie between two releases
        return None
    wanted = tuple(int(part) for part in release.groups() if part is not None)
    table = columns()[program]
    same = [(number, name) for number, name in _releases(table) if number[:2] == wanted[:2]]
    fitting = [name for number, name in same if len(wanted) == 2 or number <= wanted]
    column = table[fitting[-1]] if fitting else GONE
    return (fitting[-1], column) if column else None


def nearest_column(program: str, known: Mapping[str, object]) -> tuple[str, Column]:
    """Return the column that agrees most with a config of unknown version, and its version."""
    table = columns()[program]

    def agreement(name: str) -> int:
        keys = own_keys(table[name])
        here = [key for key in keys if is_in(key, known)]
        same = [key for key in here if key.default == (tuple(v) if isinstance(v := known.get(key.path), list) else v)]
        return 2 * len(here) - 2 * (len(keys) - len(here)) + len(same)

    names = [name for _, name in _releases(table) if table[name]]
    return max(((name, table[name]) for name in reversed(names)), key=lambda pair: agreement(pair[0]))


def own_keys(column: Column) -> list[Key]:
    """Return the keys that every config of a column's version has."""
    return [key for key in column.values() if not key.is_launcher_option and not key.added and not key.listed_only]


def is_in(key: Key, known: Mapping[str, object]) -> bool:
    """Return whether a config has a key, or an older one for the same setting."""
    return any(path in known for path in (key.path, *key.instead_of))


def newest_column(program: str) -> Column:
    """Return the column of the newest version that has the program."""
    return next(column for column in reversed(list(columns()[program].values())) if column)


def known_versions(program: str) -> list[str]:
    """Return the versions that have the program, oldest first, as an error names them: `0.4`, `0.5`."""
    table = columns()[program]
    return list(dict.fromkeys(f"{number[0]}.{number[1]}" for number, name in _releases(table) if table[name]))


def modules_known() -> str:
    """Return the modules of all trainers, as a message lists them."""
    return "; ".join(trainer.modules for trainer in TRAINERS)


def _releases(table: Mapping[str, Column]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the version of each column, oldest first."""
    for name in table:
        yield tuple(int(part) for part in name.split(".")), name
