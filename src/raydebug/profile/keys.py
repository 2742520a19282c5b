"""Our setting words, and what each trainer calls them in each of its versions.

One table per trainer: a column per version that differs, and in it only what differs from the one before
(`keys_ppo`, `keys_sft`, `keys_generation`). tests/wheels holds every key and default against the config in the wheel of
each verl release; `nox -s wheels` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Value: TypeAlias = int | float | bool | str | tuple[str, ...] | None
Column: TypeAlias = dict[str, "Key"]


GONE: Column = {}  # from this version on the trainer is no more


@dataclass(frozen=True)
class Key:
    """What a trainer calls a setting.

    Args:
        path: its Hydra key; `--nproc_per_node` for an option of torchrun.
        default: what the trainer takes when nobody says; `${a.b}` where that is another setting's value.
        added: not in the trainer's own config, so that Hydra must be told to add it.
        instead_of: keys for the same thing that may not stand beside it.
        also: keys that have to have the same value.
        only_with: the part of the training that must be in use: `critic`, `whole weights` (no LoRA).
        values: what the trainer calls our value, where its own name for it is another.
    """

    path: str
    default: Value = None
    added: bool = False
    instead_of: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    only_with: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_launcher_option(self) -> bool:
        """Whether it is torchrun's, and no setting of the trainer."""
        return self.path.startswith("--")


def columns() -> dict[str, dict[str, Column]]:
    """Return every column: trainer -> version from which it holds -> our words."""
    from raydebug.profile.keys_generation import GENERATION, GENERATION_SERVER
    from raydebug.profile.keys_ppo import PPO
    from raydebug.profile.keys_sft import FSDP_SFT, SFT, SFT_RAY

    return {
        "ppo": PPO,
        "sft": SFT,
        "sft_ray": SFT_RAY,
        "fsdp_sft": FSDP_SFT,
        "generation": GENERATION,
        "generation_server": GENERATION_SERVER,
    }


def words() -> frozenset[str]:
    """Return every setting word that some trainer has a key for."""
    return frozenset(word for table in columns().values() for column in table.values() for word in column)


def later(before: Column, *gone: str, **changed: Key) -> Column:
    """Return a version's column: the one before, without what is gone and with what changed or is new."""
    return {word: key for word, key in before.items() if word not in gone} | changed


def column_of(trainer: str, version: str) -> tuple[str, Column] | None:
    """Return the column for a release such as `0.9.1`, and the version it is of; None for a version we do not know.

    A later patch of a known release has that release's keys; `0.7` means the newest 0.7.
    """
    wanted = _numbers(version)
    if wanted is None:
        return None
    same = [(number, name) for number, name in _releases(trainer) if number[:2] == wanted[:2]]
    fitting = [name for number, name in same if len(wanted) == 2 or number <= wanted]
    column = columns()[trainer][fitting[-1]] if fitting else GONE
    return (fitting[-1], column) if column else None


def nearest_column(trainer: str, known: Mapping[str, object]) -> tuple[str, Column]:
    """Return the column that most agrees with a config whose version says nothing, and the version that it is of.

    Args:
        trainer: whose columns.
        known: every key of the config, and its value.
    """

    def agreement(name: str) -> int:
        keys = [key for key in columns()[trainer][name].values() if not key.is_launcher_option and not key.added]
        here = [key for key in keys if key.path in known]
        same = [key for key in here if key.default == (tuple(v) if isinstance(v := known[key.path], list) else v)]
        return 2 * len(here) - 2 * (len(keys) - len(here)) + len(same)

    names = [name for _, name in _releases(trainer) if columns()[trainer][name]]
    return max(((name, columns()[trainer][name]) for name in reversed(names)), key=lambda pair: agreement(pair[0]))


def known_versions(trainer: str) -> str:
    """Return the versions that there are columns for, as an error names them: `0.4, 0.5`."""
    return ", ".join(dict.fromkeys(f"{number[0]}.{number[1]}" for number, _ in _releases(trainer)))


def _releases(trainer: str) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield each column's version, oldest first."""
    for name in columns()[trainer]:
        yield tuple(int(part) for part in name.split(".")), name


def _numbers(version: str) -> tuple[int, ...] | None:
    """Return a release's numbers; None for a development version, which may be anything between two releases."""
    found = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.post\d+)?(?:\+.*)?", version.strip())
    return tuple(int(part) for part in found.groups() if part is not None) if found else None
