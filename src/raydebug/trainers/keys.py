"""The columns of keys of every trainer, and the choice of the one for an installed version.

A column maps our setting words to the keys of one version; a trainer's table has a column for each version that
differs. tests/wheels compares each key and default with the config in the wheel of each verl release (`nox -s wheels`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from raydebug.trainers.recognise import TRAINERS
from raydebug.trainers.trainer import GONE, Column


def columns() -> dict[str, Mapping[str, Column]]:
    """Return every column: program -> version from which it holds -> our words -> keys."""
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
    """Return the column that agrees most with a config of unknown version, and its version.

    Args:
        program: whose columns.
        known: every key of the config, and its value.
    """
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
