"""`raydebug trace`: the timeline of a run as one file, and why a step was slow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json
from raydebug.errors import UsageError

if TYPE_CHECKING:
    from raydebug.runs.record import Run
    from raydebug.runs.timeline import Recorded


_Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Default: trace.json.gz in the run's folder. A name in .gz is compressed.",
        metavar="FILE",
    ),
]


def trace(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Its id, the beginning of it, or its folder; default: the newest."),
    ] = None,
    output: _Output = None,
    opens: Annotated[
        bool, typer.Option("--open", help="Show it in the browser, with the viewer of the extra `viewer`.")
    ] = False,
    why: Annotated[
        int | None, typer.Option("--why", help="Say where this step took longer than its neighbours.", metavar="STEP")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the timeline of a run as one file for Perfetto: phases, ranks, samples, requests, tasks, pauses, memory.

    Works while the run goes on, after it, and after it was killed.

    \b
    Examples:
      raydebug trace                       the newest run
      raydebug trace raydebug-0629 --open
      raydebug trace --why 14              where step 14 lost time
    """
    if why is not None and (output is not None or opens):
        raise UsageError(
            f"--why does not go with {'--output' if output is not None else '--open'}", cause="it writes no trace",
            fix="ask twice: `raydebug trace --why STEP`, and `raydebug trace` for the file", code="trace.options",
        )  # fmt: skip
    from raydebug.protocol import variables
    from raydebug.runs.folder import LAST, load_run
    from raydebug.runs.timeline import read_recorded

    found = load_run(run or LAST, checks=False)
    if found.status == "running" and found.variables.get(variables.SPANS) != "0":
        _read_tasks(found)
    recorded = read_recorded(found)
    if why is None:
        _write(recorded, output, opens=opens, as_json=as_json)
        return
    from raydebug.trace.why import explain

    answer = explain(recorded, why)
    if as_json:
        render.out_json({"version": 1, "run": found.id, **answer._asdict()})
    else:
        render.out(render.visible(answer.text, keep=""))


def _write(recorded: Recorded, output: Path | None, *, opens: bool, as_json: bool) -> None:
    from raydebug.trace.write import write_trace

    began = time.monotonic()
    with render.waiting(f"making the trace of {render.visible(recorded.run.id, keep='')}"):
        written = write_trace(recorded, output)
    if as_json:
        about = {**written._asdict(), "path": str(written.path)}
        render.out_json({"version": 1, "run": recorded.run.id, **about, "notes": recorded.notes})
    else:
        for note in recorded.notes:
            render.say(f"note: {render.visible(note, keep='')}")
        took_s = time.monotonic() - began
        render.say(f"{written.events:,} events in {written.lanes} lanes, {written.bytes / 1e3:,.0f} kB, {took_s:.1f} s")
        render.out(render.visible(str(written.path), keep=""))
    if opens:
        _open(written.path)
    elif not as_json:
        from raydebug.trace.viewer import PUBLIC

        shows = "`raydebug trace --open` shows it" if output is None else f"{PUBLIC} opens it"
        render.say(f"next: {shows}; `raydebug trace --why STEP` says why a step was slow")


def _read_tasks(run: Run) -> None:
    """Bring the tasks of a run that goes on up to date: its recorder reads Ray's table seldom, as that takes long."""
    import contextlib

    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.find import load_cluster
    from raydebug.errors import RaydebugError
    from raydebug.jobs.span_log import keep_tasks

    with contextlib.suppress(RaydebugError, OSError), render.waiting("reading the tasks that Ray knows"):
        cluster = load_cluster(str(run.cluster.get("name")))
        keep_tasks(Dashboard(cluster), run.id, run.folder)


def _open(path: Path) -> None:
    """Serve the installed viewer until Ctrl-C, or say where the public one is."""
    from raydebug.trace.viewer import PUBLIC, Viewer, find_viewer

    folder = find_viewer()
    if folder is None:
        from raydebug.settings.flavours import install_raydebug

        line = f"in raydebug's checkout: {install_raydebug('viewer')}"
        render.say(f"no viewer is installed ({line}): open {PUBLIC}, and there the file {path}")
        return
    import threading
    import webbrowser

    with Viewer(folder, path) as server:
        render.say(f"the viewer is at {server.url} until Ctrl-C")
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()  # first: a browser in the terminal is waited for
        try:
            webbrowser.open(server.url)
            serving.join()
        except KeyboardInterrupt:
            render.say("the viewer has ended; the file stays")
        server.shutdown()
