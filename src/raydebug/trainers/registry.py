"""The known trainers: the program that a command runs, and the columns of its keys.

`recognise` is called at the start of every Python of a job, so this module must be cheap to import. A column maps our
setting words to the keys of one version; a trainer's table has a column for each version that differs. tests/wheels
compares each key and default with the config in the wheel of each verl release (`nox -s wheels`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from raydebug.trainers.openrlhf import OPENRLHF
from raydebug.trainers.trainer import GONE, Column, Program, Trainer
from raydebug.trainers.verl.trainer import VERL

TRAINERS: tuple[Trainer, ...] = (VERL, OPENRLHF)
# Options of the interpreter that take the next argument. Source: python --help, CPython 3.11 and 3.12.
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
# torchrun's options that take none; every other one does. Source: torch 2.13.0 distributed/run.py:425-721.
_WITHOUT_VALUE = {"--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank"}
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")


def recognise(argv: Sequence[str]) -> Program | None:
    """Return the program that a command runs; None if it is no known training.

    Args:
        argv: the whole command, as `sys.orig_argv` has it: interpreter, its options, -m MODULE or a file, arguments;
            or torchrun and its options in place of the interpreter.
    """
    if argv and _is_torchrun(argv[0]):
        return _launched(argv, 1)
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        option = argv[at]
        if option.startswith("-m"):
            module = option[2:] or (argv[at + 1] if at + 1 < len(argv) else "")
            at += 1 if option[2:] else 2
            return _launched(argv, at) if module in _TORCHRUN else _program(module, at)
        if option in ("-c", "-"):
            return None
        at += 2 if option in _WITH_VALUE else 1
    if at < len(argv) and _is_torchrun(argv[at]):
        return _launched(argv, at + 1)
    return _of_file(argv[at], at + 1) if at < len(argv) else None


def _is_torchrun(program: str) -> bool:
    return program == "torchrun" or program.endswith("/torchrun")


def _launched(argv: Sequence[str], launcher_at: int) -> Program | None:
    """Return the program that torchrun starts: the first argument that is neither an option nor an option's value."""
    at, by_module = launcher_at, False
    while at < len(argv) and argv[at].startswith("-"):
        option = argv[at].replace("_", "-")
        by_module = by_module or option in ("-m", "--module")
        at += 1 if option in _WITHOUT_VALUE or "=" in option else 2
    if at >= len(argv):
        return None
    return (_program if by_module else _of_file)(argv[at], at + 1, launcher_at)


def _of_file(path: str, arguments_at: int, launcher_at: int | None = None) -> Program | None:
    """Return the program of a file by its path: `python .../verl/trainer/main_ppo.py`."""
    if not path.endswith(".py"):
        return None
    module = ".".join(path.removesuffix(".py").split("/")[-3:])
    return _program(module, arguments_at, launcher_at)


def _program(module: str, arguments_at: int, launcher_at: int | None = None) -> Program | None:
    for trainer in TRAINERS:
        name = trainer.program_of(module)
        if name is not None:
            return Program(trainer, name, module, arguments_at, launcher_at)
    return None


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
    wanted = _numbers(version)
    if wanted is None:
        return None
    table = columns()[program]
    same = [(number, name) for number, name in _releases(table) if number[:2] == wanted[:2]]
    fitting = [name for number, name in same if len(wanted) == 2 or number <= wanted]
    column = table[fitting[-1]] if fitting else GONE
    return (fitting[-1], column) if column else None


def nearest_column(program: str, known: Mapping[str, object]) -> tuple[str, Column]:
    """Return the column that agrees most with a config of unknown version, and its version."""
    table = columns()[program]

    def agreement(name: str) -> int:
        keys = [key for key in table[name].values() if not key.is_launcher_option and not key.added]
        here = [key for key in keys if key.path in known]
        same = [key for key in here if key.default == (tuple(v) if isinstance(v := known[key.path], list) else v)]
        return 2 * len(here) - 2 * (len(keys) - len(here)) + len(same)

    names = [name for _, name in _releases(table) if table[name]]
    return max(((name, table[name]) for name in reversed(names)), key=lambda pair: agreement(pair[0]))


def newest_column(program: str) -> Column:
    """Return the column of the newest version that has the program."""
    return next(column for column in reversed(list(columns()[program].values())) if column)


def known_versions(program: str) -> str:
    """Return the versions that have columns, as an error names them: `0.4, 0.5`."""
    return ", ".join(dict.fromkeys(f"{number[0]}.{number[1]}" for number, _ in _releases(columns()[program])))


def modules_known() -> str:
    """Return the modules of all trainers, as a message lists them."""
    return "; ".join(trainer.modules for trainer in TRAINERS)


def _releases(table: Mapping[str, Column]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the version of each column, oldest first."""
    for name in table:
        yield tuple(int(part) for part in name.split(".")), name


def _numbers(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a release; None for a development version, which may lie between two releases."""
    found = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.post\d+)?(?:\+.*)?", version.strip())
    return tuple(int(part) for part in found.groups() if part is not None) if found else None
