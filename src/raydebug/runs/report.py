"""Writes the page of a run, or of two, into a file for its owner only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raydebug.errors import Exit, RaydebugError
from raydebug.runs.page import comparison_page, run_page

PAGE = "report.html"


def write_report(runs: Sequence[dict[str, Any]], output: Path | None = None) -> Path:
    """Write the page and return its path, which is absolute.

    Args:
        runs: documents of `load_run`; one, or two that are compared.
        output: where to; by default into the folder of the run, of the second one where there are two.

    Raises:
        RaydebugError: the file cannot be written.
    """
    folders = [Path(run["folder"]).absolute() for run in runs]
    name = PAGE if len(runs) == 1 else f"against-{folders[0].name}.html"
    path = (output or folders[-1] / name).absolute()
    seen = [seen_from(path.parent, folder) for folder in folders]
    page = run_page(runs[0], seen[0]) if len(runs) == 1 else comparison_page(runs[0], runs[1], (seen[0], seen[1]))
    try:
        _write(path, page)
    except OSError as error:
        raise RaydebugError(
            "the report cannot be written",
            cause=f"{path}: {error.strerror or error}",
            fix="name a file that can be: `raydebug report --output FILE`",
            code="report.unwritable",
            exit_code=Exit.USAGE,
        ) from error
    return path


def seen_from(place: Path, folder: Path) -> str:
    """Return the way from one folder to another with a slash at its end; empty where they are the same."""
    way = os.path.relpath(folder.resolve(), place.resolve())
    return "" if way == "." else f"{way}/"


def _write(path: Path, page: str) -> None:
    """Write a file whole or not at all: a browser that shows an older one may load it again at any moment."""
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    if path.exists() and not path.is_file():  # a device or a pipe is written to, never replaced
        with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(page)
        return
    path = path.resolve()  # of a link the file behind it, and not the link, becomes the page
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(page)
        fresh.replace(path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()
