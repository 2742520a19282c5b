"""The file of a page: where it is, and who can read it."""

from __future__ import annotations

import os
from pathlib import Path

from raydebug.errors import UsageError
from raydebug.report.run import run_page
from raydebug.runs.folder import SNAPSHOTS
from raydebug.runs.record import Phase, Run
from raydebug.runs.timeline import Recorded
from raydebug.settings.files import atomic_write, write_named
from raydebug.snapshot.load import describe_groups, find_snapshots

PAGE = "report.html"


def write_report(
    run: Run,
    output: Path | None = None,
    *,
    recorded: Recorded | None = None,
    slow_step: str = "",
    reload_s: float | None = None,
) -> Path:
    """Write the page of a run (run_page), by default into its folder, and return its path, which is absolute.

    Args:
        run: from its record.
        output: the file of the page.
        recorded: of a run without steps, whose tasks are shown.
        slow_step: why its slowest step was slow (trace/why.py).
        reload_s: for a page that is written again.

    Raises:
        RaydebugError: the file cannot be written.
    """
    folder = run.folder.absolute()
    path = (output or folder / PAGE).absolute()
    crashes = describe_groups(find_snapshots(str(folder))) if (folder / SNAPSHOTS).is_dir() else []
    way = os.path.relpath(folder.resolve(), path.parent.resolve())  # from the page to the folder of the run
    tasks: list[Phase] = []
    if recorded is not None and not run.steps:
        for task in sorted((task for one in recorded.processes for task in one.tasks), key=lambda task: task.start):
            start_s = max(0.0, task.start - recorded.start)
            tasks.append(Phase(name=task.name, start_s=start_s, end_s=task.end - recorded.start))
    page = run_page(
        run, "" if way == "." else f"{way}/", crashes=crashes, slow_step=slow_step, tasks=tasks, reload_s=reload_s
    )
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
