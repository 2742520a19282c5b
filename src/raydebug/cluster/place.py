"""Where a cluster's programs and files are, seen from this machine: the same machine, or containers."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raydebug import process


class Place(Protocol):
    """What `run` has to know of where a job will run."""

    def folder(self, here: Path) -> str:
        """Return what a folder of this machine is called there.

        Raises:
            RaydebugError: it is not there.
        """

    def has_program(self, name: str, working_dir: Path) -> bool:
        """Say whether a job started in this folder finds the program."""

    def run_python(self, arguments: list[str], working_dir: Path) -> str:
        """Run the cluster's Python there and return what it printed."""


@dataclass(frozen=True)
class LocalPlace:
    """This machine.

    Args:
        python: the cluster's interpreter.
    """

    python: str

    def folder(self, here: Path) -> str:
        """Return the folder itself."""
        return str(here)

    def has_program(self, name: str, working_dir: Path) -> bool:
        """Look on the PATH that the cluster has: its interpreter's folder comes first."""
        if "/" in name:
            return (working_dir / name).is_file()
        path = os.pathsep.join([str(Path(self.python).parent), os.environ.get("PATH", "")])
        return shutil.which(name, path=path) is not None

    def run_python(self, arguments: list[str], working_dir: Path) -> str:
        """Run the cluster's Python in a folder."""
        return process.run([self.python, *arguments], cwd=working_dir, timeout_s=30)
