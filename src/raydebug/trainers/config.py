"""A trainer's config as data, read by raydebug's setting words instead of the trainer's keys."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def value_at(config: Any, path: str, default: Any = None) -> Any:
    """Return the value at a dotted path of nested mappings, or the default if there is none."""
    for part in path.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return default
        config = config[part]
    return config


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
        return value_at(self.values, self.keys[word], default)

    @property
    def ranks(self) -> int:
        return int(self.get("gpus_per_node") * self.get("nodes"))


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
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def is_number(text: str) -> bool:
    """Return whether a text is a number, as Python reads one."""
    try:
        float(text)
    except ValueError:
        return False
    return True
