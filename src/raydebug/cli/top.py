"""`raydebug top`: a run as it goes, in the terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydebug import render
from raydebug.cli.options import Json
from raydebug.errors import RaydebugError

if TYPE_CHECKING:
    from raydebug.runs.record import Run

EVERY_S = 2.0
LOG_BYTES = 32 * 1024  # of the end of the log


def top(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Its id, the beginning of it, or folder; default: the last.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end; so it does in a pipe.")] = False,
    as_json: Json = False,
) -> None:
    """Show a run as it goes: what stops it, step, metrics, memory, slow ranks, findings, the end of its log.

    It reads the record that `raydebug run` writes, and asks the gateway for the phase. Ctrl-C leaves it.

    \b
    Examples:
      raydebug top
      raydebug top raydebug-0629 --once
    """
    from raydebug.report.screen import LINES, draw
    from raydebug.runs.folder import LAST, find_folder

    folder = find_folder(run or LAST)
    picture = _picture(folder)
    if as_json:
        render.out_json(picture)
        return
    console = render.console()
    if not sys.stdout.isatty():
        console.width = render.PIPE_WIDTH
    if picture["status"] == "running" and sys.stdout.isatty() and not once:
        from rich.live import Live

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which restores the terminal too
        with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while picture["status"] == "running":
                live.update(draw(picture, console.height, console.width), refresh=True)
                time.sleep(EVERY_S)
                picture = _picture(folder)
    console.print(draw(picture, console.height if sys.stdout.isatty() else LINES, console.width))


def _picture(folder: Path) -> dict[str, Any]:
    from raydebug.report.screen import take_picture
    from raydebug.runs.folder import DOCUMENT, LOG, read_run

    run = read_run(folder)
    log, written_s = "", time.time()
    with contextlib.suppress(OSError):  # no log, or the folder has just been removed
        written_s = (folder / DOCUMENT).stat().st_mtime
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            log = file.read().decode("utf-8", errors="replace")
    training = _training(run) if run.status == "running" else ""
    return take_picture(run, log, time.time(), age_s=max(0.0, time.time() - written_s), training=training)


def _training(run: Run) -> str:
    """Return what the training says of itself; empty where its cluster does not answer."""
    from raydebug.cluster.find import find_cluster
    from raydebug.stacks.training_words import describe, fetch_words

    with contextlib.suppress(RaydebugError):
        if (cluster := find_cluster(run.cluster.get("name", ""))) is not None:
            return describe(fetch_words(cluster, run.id, []), []) or ""
    return ""
