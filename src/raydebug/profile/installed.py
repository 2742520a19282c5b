"""What can be read of a trainer where its command runs: which version it is, and the config that it will begin with.

Files are read and nothing is imported: this runs at the start of the driver, and for `raydebug profile show`.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydebug.profile.command import Command, key_of
from raydebug.profile.compose import NotComposed, compose
from raydebug.profile.places import is_file
from raydebug.profile.recognise import Trainer

_MAIN = re.compile(r"@hydra\.main\((?P<options>[^)]*)\)")
_OPTION = re.compile(r"(config_path|config_name)\s*=\s*[\"']([^\"']+)[\"']")


@dataclass(frozen=True)
class Installed:
    """A trainer as it was found.

    Args:
        version: its package's version; None where it does not say.
        values: every key of its config with the value that it has before any override; None where it was not read.
        unread: why the config was not read.
    """

    version: str | None
    values: Mapping[str, Any] | None
    unread: str = ""


def look(trainer: Trainer, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
    """Read a trainer's version and config.

    Args:
        trainer: what was recognised in the command.
        argv: the command; Hydra's options in it say which config.
        folder: where it runs.
        search: where Python looks for modules, in order; the folder itself when it does.
    """
    package = trainer.module.partition(".")[0]
    file = next(_files(trainer, argv[trainer.overrides_at - 1], folder, search), None)
    if file is None:
        return Installed(_distribution_version(package), None, f"{trainer.module} is not installed here")
    version = _version_of(file.parent.parent) or _distribution_version(package)
    try:
        return Installed(version, _read(file, Command(list(argv[trainer.overrides_at :])), folder))
    except (NotComposed, OSError) as failure:
        return Installed(version, None, str(failure))


def _files(trainer: Trainer, program: str, folder: Path, search: Sequence[str]) -> Iterator[Path]:
    """Yield the files that the trainer may be, the first that exists being the one."""
    if program.endswith(".py"):
        candidates = [folder / program]
    else:
        inner = Path(*trainer.module.split(".")).with_suffix(".py")
        candidates = [folder / place / inner for place in search]
        try:  # an editable install is found by its own finder; a package's own __init__ is not run
            spec = importlib.util.find_spec(trainer.module.partition(".")[0])
        except (ImportError, ValueError):
            spec = None
        for place in (spec.submodule_search_locations or []) if spec else []:
            candidates.append(Path(place).parent / inner)
    yield from (file for file in candidates if is_file(file))


def _version_of(package: Path) -> str | None:
    """Return what a package's own file says. Source: verl setup.py, 0.4 to 0.9: version/version."""
    file = package / "version" / "version"
    try:
        return file.read_text(encoding="utf-8").strip()[:40] or None
    except (OSError, UnicodeDecodeError):
        return None


def _distribution_version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read(file: Path, command: Command, folder: Path) -> dict[str, Any]:
    main = _MAIN.search(file.read_text(encoding="utf-8", errors="replace"))
    said = dict(_OPTION.findall(main["options"])) if main else {}
    name = command.option("--config-name", "-cn") or said.get("config_name")
    if name is None:
        raise NotComposed(f"{file} names no config of Hydra's")
    at = command.option("--config-path", "-cp") or said.get("config_path", ".")
    folders = [(file.parent / at).resolve()]  # relative to the program's file. Source: Hydra 1.3, --config-path
    more = command.option("--config-dir", "-cd")
    if more:
        folders.append(folder / more)
    choices = {}
    for argument in command.arguments:
        group = (key_of(argument) or "").partition("@")[0]
        if group and "." not in group and any((place / group).is_dir() for place in folders):
            choices[str(key_of(argument))] = argument.partition("=")[2].strip("'\"")
    return compose(name, folders, choices)
