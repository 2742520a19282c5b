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
    from collections.abc import Mapping, Sequence


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
    """Write a page of a run: what failed first, where time and memory went, pauses, findings; or compare two runs.

    One HTML file that fetches nothing. Runs are recorded by `raydebug run`.

    \b
    Examples:
      raydebug report                      the last run
      raydebug report raydebug-0629 --open
      raydebug report --follow --open      while it runs
      raydebug report raydebug-0629 raydebug-0712 --output compared.html
    """
    from raydebug.jobs.run_folder import LAST, list_runs, load_run

    if follow and (lists or as_json or len(runs or ()) > 1):
        raise UsageError(
            "--follow is for the page of one run",
            cause="it writes that page again until the run ends",
            fix="leave out --list, --json and the second run",
        )
    if lists and runs:
        raise UsageError(
            "--list takes no run",
            cause=f"'{runs[0]}' is one; --list shows all",
            fix="leave one of them out",
        )
    if lists:
        _list(list_runs(), as_json=as_json)
        return
    names = runs or [LAST]
    if len(names) > 2:
        raise UsageError(
            f"{len(names)} runs cannot be compared",
            cause="a report is of one run, or of two",
            fix=f"raydebug report {names[0]} {names[1]}",
            code="report.too-many",
        )
    documents = [load_run(name) for name in names]
    if as_json:
        render.out_json(_document(documents))
        return
    from raydebug.report.write import write_report

    if len(documents) == 1:
        documents = [{**documents[0], "slow_step": _slow_step(documents[0])}]
    is_live = follow and documents[0].get("status") == "running"
    with render.waiting(
        f"making the page of {' and '.join(render.visible(str(one.get('id')), keep='') for one in documents)}"
    ):
        path = write_report(documents, output, reload_s=FOLLOWS_EVERY_S if is_live else None)
    render.out(render.visible(str(path), keep=""))
    if opens:
        _open(path)
    else:
        render.say("next: open it in a browser, here or anywhere: it is one file; --open does that")
    if is_live:
        _follow(Path(str(documents[0]["folder"])), output)


def _open(path: Path) -> None:
    import webbrowser

    if not webbrowser.open(path.as_uri()):
        render.say("no browser could be opened here; the file can be copied to where there is one")


def _slow_step(document: Mapping[str, object]) -> str:
    """Return why the slowest step of a run was slow; empty if none was, or its spans cannot be read."""
    from raydebug.trace.record import read_recorded
    from raydebug.trace.why import slowest

    try:
        found = slowest(read_recorded(document))
    except RaydebugError:
        return ""
    return found.text if found is not None else ""


def _follow(folder: Path, output: Path | None) -> None:
    """Write the page of a run again and again, until the run ends, nobody records it any more, or Ctrl-C."""
    from raydebug.jobs.run_folder import DOCUMENT, read_run
    from raydebug.report.write import write_report

    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(FOLLOWS_EVERY_S)
            document = read_run(folder)
            if document.get("status") != "running" or time.time() - (folder / DOCUMENT).stat().st_mtime > STALE_S:
                break
            write_report([document], output, reload_s=FOLLOWS_EVERY_S)
    document = read_run(folder)
    write_report([{**document, "slow_step": _slow_step(document)}], output)
    render.say("the page is written for the last time, and stays as it is")


def _document(documents: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    if len(documents) == 1:
        return documents[0]
    from dataclasses import asdict

    from raydebug.report.compare import find_differences
    from raydebug.report.document import read_run

    found = find_differences(*(read_run(document) for document in documents))
    return {"version": 1, "runs": documents, "differences": [asdict(one) for one in found]}


def _list(documents: Sequence[Mapping[str, object]], *, as_json: bool) -> None:
    from raydebug.report.document import read_run

    runs = [read_run(document) for document in documents]
    if as_json:
        kept = ("id", "kind", "status", "exit_code", "started", "ended", "command", "folder")
        render.out_json({"version": 1, "runs": [{key: one.get(key) for key in kept} for one in documents]})
        return
    if not runs:
        render.say("no run is recorded: `raydebug run -- COMMAND` records one")
        return
    rows = [[r.id, r.status, moment(r.started), duration(r.took_s), " ".join(r.command)[:80]] for r in runs]
    render.table(None, ["id", "status", "started", "took", "command"], rows)
    render.say(f"next: {render.command('raydebug', 'report', runs[-1].id)}")
