"""`raydebug report`: a run as one page."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json
from raydebug.errors import RaydebugError, UsageError
from raydebug.render import duration, moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raydebug.runs.record import Run


FOLLOWS_EVERY_S = 5.0
STALE_S = 60.0  # a record is written every 5 s


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN | A B]", help="Its id, the beginning of it, or its folder; default: the last."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Default: report.html in the run's folder.")
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Write it again until the run ends; the open page reads itself again.")
    ] = False,
    lists: Annotated[bool, typer.Option("--list", help="List the runs that are recorded, oldest first.")] = False,
    as_json: Json = False,
) -> None:
    """Write a page of a run: what failed first, where time and memory went, pauses, findings. Two runs: a table.

    One HTML file that fetches nothing. Runs are recorded by `raydebug run`.

    \b
    Examples:
      raydebug report                      the last run
      raydebug report raydebug-0629 --open
      raydebug report --follow --open      while it runs
      raydebug report raydebug-0629 raydebug-0712
    """
    from raydebug.runs.folder import LAST, list_runs, load_run

    names = runs or [LAST]
    if follow and (lists or as_json or len(names) > 1):
        raise UsageError(
            "--follow is for the page of one run",
            cause="it writes that page again until the run ends",
            fix="leave out --list, --json and the second run",
        )
    if lists and runs:
        raise UsageError(
            "--list takes no run", cause=f"'{runs[0]}' is one; --list shows all", fix="leave one of them out"
        )
    if lists:
        _list(list_runs(), as_json=as_json)
        return
    is_page = output is not None or opens
    if len(names) > 2 or (len(names) == 2 and is_page):
        raise UsageError(
            "--output and --open are for the page of one run" if is_page else f"{len(names)} runs cannot be compared",
            cause="a report is of one run, or of two",
            fix=f"raydebug report {names[0]} {names[1]}",
            code="report.too-many",
        )
    recorded = [load_run(name) for name in names]
    if len(recorded) == 2:
        _compare(*recorded, as_json=as_json)
    elif as_json:
        render.out_json(recorded[0].document)
    else:
        _write(recorded[0], output, opens=opens, follow=follow)


def _compare(first: Run, second: Run, *, as_json: bool) -> None:
    from dataclasses import asdict

    from raydebug.report.compare import compare, find_differences

    if as_json:
        differences = [asdict(each) for each in find_differences(first, second)]
        render.out_json({"version": 1, "runs": [first.document, second.document], "differences": differences})
        return
    render.table(["", first.id, second.id, "change"], compare(first, second))


def _write(run: Run, output: Path | None, *, opens: bool, follow: bool) -> None:

    is_live = follow and run.status == "running"
    with render.waiting(f"making the page of {render.visible(run.id, keep='')}"):
        path = _write_page(run, output, reload_s=FOLLOWS_EVERY_S if is_live else None)
    render.out(render.visible(str(path), keep=""))
    if opens:
        import webbrowser

        if not webbrowser.open(path.as_uri()):
            render.say("no browser could be opened here; the file can be copied to where there is one")
    else:
        render.say("next: open it in a browser, here or anywhere: it is one file; --open does that")
    if is_live:
        _follow(run.folder, output)


def _write_page(run: Run, output: Path | None, reload_s: float | None = None) -> Path:
    """Write the page of a run with what its spans and tasks say, where they can be read."""
    from raydebug.report.write import write_report
    from raydebug.runs.timeline import read_recorded
    from raydebug.trace.why import slowest

    recorded = slow = None
    with contextlib.suppress(RaydebugError):
        recorded = read_recorded(run)
        slow = slowest(recorded)
    return write_report(run, output, recorded=recorded, slow_step=slow.text if slow else "", reload_s=reload_s)


def _follow(folder: Path, output: Path | None) -> None:
    """Write the page of a run again and again, until the run ends, nobody records it any more, or Ctrl-C."""
    from raydebug.report.write import write_report
    from raydebug.runs.folder import DOCUMENT, read_run

    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(FOLLOWS_EVERY_S)
            run = read_run(folder)
            if run.status != "running" or time.time() - (folder / DOCUMENT).stat().st_mtime > STALE_S:
                break
            write_report(run, output, reload_s=FOLLOWS_EVERY_S)
    run = read_run(folder)
    _write_page(run, output)
    render.say("the page is written for the last time, and stays as it is")


def _list(runs: Sequence[Run], *, as_json: bool) -> None:
    if as_json:
        kept = ("id", "kind", "status", "exit_code", "started", "ended", "command", "folder")
        render.out_json({"version": 1, "runs": [{key: run.document.get(key) for key in kept} for run in runs]})
        return
    if not runs:
        render.say("no run is recorded: `raydebug run -- COMMAND` records one")
        return
    rows = [[r.id, r.status, moment(r.started)[5:16], duration(r.took_s), " ".join(r.command)] for r in runs]
    render.table(["id", "status", "began (UTC)", "took", "command"], rows)
    render.say(f"next: {render.command('raydebug', 'report', runs[-1].id)}")
