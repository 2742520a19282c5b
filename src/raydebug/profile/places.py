"""Files and folders by names that somebody else wrote: too long, with a user that is not there, anything."""

from __future__ import annotations

import os
from pathlib import Path


def is_file(path: Path) -> bool:
    """Say whether there is such a file; a name that no file system takes names none."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for a name that is too long


def at_home(text: str) -> Path:
    """Return a path with its leading `~` or `~user` followed, where there is such a user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises where there is none
