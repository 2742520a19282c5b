"""Our setting words in a trainer's keys, release by release: what a file `keys.toml` has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # the driver of each job imports this module at its start
    from pathlib import Path

Value: TypeAlias = int | float | bool | str | tuple[str, ...] | None
Column: TypeAlias = dict[str, "Key"]
ValueOf: TypeAlias = Callable[[str], Any]  # the value of one of the trainer's keys

GONE: Column = {}  # the program does not exist from this version on


@dataclass(frozen=True)
class Key:
    """A trainer's key for a setting.

    Args:
        path: the key; `--nproc_per_node` for an option of torchrun.
        default: the trainer's default; `${a.b}` if that is another setting's value.
        added: not in the trainer's own config, so that Hydra needs `++` to set it.
        instead_of: older keys for the same setting, that must not be given beside this one; a config without this key
            may have one of them.
        also: keys that must have the same value.
        only_with: the part of the training that must be in use, such as `critic`.
        listed_only: whether only some configs of this program have it: a recipe's, a fork's.
        read_anyway: whether versions read it whose config does not list it.
        values: the trainer's words for our values, if they differ.
    """

    path: str
    default: Value = None
    added: bool = False
    instead_of: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    only_with: str | None = None
    listed_only: bool = False
    read_anyway: bool = False
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_launcher_option(self) -> bool:
        """Whether it is an option of torchrun and not a setting of the trainer."""
        return self.path.startswith("--")


@cache
def read_columns(file: Path) -> dict[str, dict[str, Column]]:
    """Return what a file of keys has: program -> version from which a column holds -> our words -> keys, oldest first.

    A table `[PROGRAM."VERSION"]` changes the column before it, or the one that it is `like`. `without` has the words
    that are gone, `*` for all. A word has its key, `[KEY, DEFAULT]`, or the fields of `Key`.
    """
    import tomllib

    tables: dict[str, dict[str, Column]] = {}
    for program, versions in tomllib.loads(file.read_text(encoding="utf-8")).items():
        columns = tables[program] = {}
        column: Column = {}
        for version, changes in versions.items():
            if like := changes.pop("like", None):
                column = tables[like[0]][like[1]]
            gone = changes.pop("without", ())
            column = {word: key for word, key in column.items() if word not in gone and "*" not in gone}
            column |= {word: _key(value) for word, value in changes.items()}
            columns[version] = column
    return tables


def _key(value: Any) -> Key:
    if isinstance(value, str):
        return Key(value)
    if isinstance(value, list):
        value = {"path": value[0], "default": value[1]}
    fields: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
    return Key(**fields)
