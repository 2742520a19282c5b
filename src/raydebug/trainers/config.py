"""A trainer's config as data, read by raydebug's setting words instead of the trainer's keys."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NONE = object()
# Of one number, by its type's name in a config; `auto` is that of the model.
BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "auto": 2}


def value_at(config: Any, path: str, default: Any = None) -> Any:
    """Return the value at a dotted path of nested mappings, or the default if there is none."""
    for part in path.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return default
        config = config[part]
    return config


def key_in(values: Mapping[str, Any], paths: Sequence[str]) -> str:
    """Return the first of these keys that a config has; the first of all, if it has none."""
    return next((path for path in paths if value_at(values, path, _NONE) is not _NONE), paths[0])


@dataclass(frozen=True)
class TrainingConfig:
    """A composed config.

    Args:
        keys: raydebug's setting words and the dotted keys that the trainer has for them.
    """

    values: Mapping[str, Any]
    keys: Mapping[str, str]

    def get(self, word: str, default: Any = None) -> Any:
        """Return the value of a setting, or the default if the config has no such key."""
        key = self.keys.get(word)
        return default if key is None else value_at(self.values, key, default)

    def whole(self, word: str) -> int | None:
        """Return a setting that is a whole number; None if the config has none."""
        value = self.get(word)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def ranks(self) -> int | None:
        """The number of processes that train; None if the config does not say it."""
        each, nodes = self.whole("gpus_per_node"), self.whole("nodes")
        return None if each is None or nodes is None else each * nodes


@dataclass(frozen=True)
class Composed:
    """The config of a command.

    Args:
        live: as the trainer's library has it; None if that is not installed.
        values: as plain values, without those that cannot be known.
        unread: why the files of the config were not read, so that it has only what the command says.
        unknown: overrides that depend on the shell, which no rule looks at.
    """

    live: Any
    values: Mapping[str, Any]
    unread: str = ""
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class RewardFunction:
    """The reward function that a config names.

    Args:
        path: its file or `pkg://` module; None for the trainer's own.
        manager: the trainer's class that calls it.
        by_model: whether a reward model scores instead.
    """

    path: str | None
    name: str
    manager: str
    options: Mapping[str, Any]
    by_model: bool


class CannotCompose(Exception):
    """The trainer's config library refused the command.

    Args:
        keys: every key that the config has.
    """

    def __init__(self, kind: str, message: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.keys = keys

    def as_facts(self) -> dict[str, object]:
        """Return what a probe answers instead of facts."""
        return {"config_error": {"kind": self.kind, "message": self.message, "keys": self.keys}}


def is_file(path: Path) -> bool:
    """Return whether a file exists; False for a name that no file system accepts."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for a name that is too long


def expand_home(text: str) -> Path:
    """Return a path with its leading `~` or `~user` expanded, if there is such a user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises if there is none


def find_program_file(module: str, program: str, folder: Path, search: Sequence[str]) -> Path | None:
    """Return the file of a program that Python would run; None if it is not installed.

    Args:
        module: the program's module.
        program: as the command has it: the module, or a file.
        folder: the command's working directory.
        search: where its Python looks for modules, in order.
    """
    if program.endswith(".py"):
        candidates = [folder / program]
    else:
        inner = Path(*module.split(".")).with_suffix(".py")
        candidates = [folder / place / inner for place in search]
        try:  # an editable install is found by its own finder; a package's own __init__ is not run
            spec = importlib.util.find_spec(module.partition(".")[0])
        except (ImportError, ValueError):
            spec = None
        for place in (spec.submodule_search_locations or []) if spec else []:
            candidates.append(Path(place).parent / inner)
    return next((file for file in candidates if is_file(file)), None)


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package, without importing it; None if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def first_missing(*packages: str) -> str | None:
    """Return the first of these modules that is not installed, without importing one; None if all are."""
    return next((name for name in packages if name not in sys.modules and importlib.util.find_spec(name) is None), None)


def is_number(text: str) -> bool:
    """Return whether a text is a number, as Python reads one."""
    try:
        float(text)
    except ValueError:
        return False
    return True
