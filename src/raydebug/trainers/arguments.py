"""The arguments of a training command, which change as a profile is applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Arguments:
    """The arguments of a command; as most trainers have them, each with one value that is read as it is.

    Args:
        arguments: the program's own.
        launcher: torchrun's options.
    """

    def __init__(self, arguments: list[str], launcher: list[str] | None = None) -> None:
        self.arguments = arguments
        self.launcher = launcher or []

    def set_keys(self) -> Iterator[str]:
        """Yield the key of each argument that sets an existing key."""
        raise NotImplementedError

    def get(self, path: str) -> str | None:
        """Return the value that the command gives a key; None if it gives none."""
        raise NotImplementedError

    def replace(self, path: str, value: str | None, *, added: bool) -> None:
        """Set a key, or remove it if the value is None.

        Args:
            path: the key; `--nproc_per_node` for an option of torchrun.
            value: as text.
            added: whether the key is not in the config, so that Hydra needs `++`.
        """
        raise NotImplementedError

    def mistaken_for(self, path: str, known: Iterable[str]) -> str | None:
        """Return the one of the known keys that a key is nearly; None if the trainer has the key, or none like it."""
        raise NotImplementedError

    def spelling(self, path: str, nearest: str) -> str:
        """Return how to write a key that was misspelled, if the nearest one is meant, or if it is not."""
        raise NotImplementedError

    def is_sweep(self, path: str) -> bool:
        """Return whether the command gives a key several values, to try one after the other."""
        return False

    def swept_keys(self) -> list[str]:
        """Return the keys with several values, for each of which the trainer makes a run."""
        return []

    def quoted(self, path: Path) -> str:
        """Return a path as a value that the trainer reads as this path."""
        return str(path)
