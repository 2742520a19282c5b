"""The file of a page: where it is, and who can read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from raydebug.errors import UsageError
from raydebug.jobs.run_folder import SNAPSHOTS
from raydebug.report.run import run_page
from raydebug.settings.files import atomic_write, write_named
from raydebug.snapshot.load import describe_groups, find_snapshots

PAGE = "report.html"


def write_report(run: Mapping[str, object], output: Path | None = None, *, reload_s: float | None = None) -> Path:
    """Write the page of a run, by default into its folder, and return its path, which is absolute.

    With `reload_s` the page reads itself again after so many seconds.

    Raises:
        RaydebugError: the file cannot be written.
    """
    folder = Path(str(run["folder"])).absolute()
    path = (output or folder / PAGE).absolute()
    crashes = describe_groups(find_snapshots(str(folder))) if (folder / SNAPSHOTS).is_dir() else []
    page = run_page({**run, "crashes": crashes}, seen_from(path.parent, folder), reload_s=reload_s)
    fix = "name a file that can be: `raydebug report --output FILE`"
    return write_page(path, page, named=output is not None, fix=fix)


def write_page(path: Path, page: str, *, named: bool, fix: str) -> Path:
    """Write a page, which only its owner can read, and return its path, which is absolute.

    Unless the user has `named` this file, its place is a folder that may be somebody else's.

    Raises:
        RaydebugError: it cannot be written.
    """
    path = path.absolute()
    try:
        (write_named if named else atomic_write)(path, page)
    except OSError as error:
        raise UsageError(
            f"the {'report' if 'report' in fix else 'page'} cannot be written",
            cause=f"{path}: {error.strerror or error}",
            fix=fix,
            code="report.unwritable",
        ) from error
    return path


def seen_from(place: Path, folder: Path) -> str:
    """Return the relative path between two folders with a final slash; empty if they are the same."""
    way = os.path.relpath(folder.resolve(), place.resolve())
    return "" if way == "." else f"{way}/"
