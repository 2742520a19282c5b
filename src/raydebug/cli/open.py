"""`raydebug open`: opens the snapshot of a crash on any machine; `raydebug snapshot`: makes one of a pause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Execute, Json, Name
from raydebug.errors import Exit, RaydebugError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raydebug.cluster.state import Cluster
    from raydebug.snapshot.load import SnapshotFile


def open_(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE|RUN [OUT]]", help="A snapshot, a run or its folder. Default: the last run."),
    ] = None,
    execute: Execute = None,
    pick: Annotated[
        str | None, typer.Option("--pick", metavar="ID", help="Its id, or its number in --list. Default: the first.")
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", help="Write one page to OUT instead. Default: beside the snapshot.")
    ] = False,
    lists: Annotated[bool, typer.Option("--list", help="List the snapshots of a run, equal crashes together.")] = False,
    as_json: Json = False,
) -> None:
    """Open the snapshot of a crash in the terminal debugger: frames, locals, tensors. Nothing runs, Ray is not needed.

    \b
    Examples:
      raydebug open                          the first crash of the last run
      raydebug open raydebug-0629 --pick 2   another one of `raydebug open --list raydebug-0629`
      raydebug open c1.snapshot.gz -x w -x "p batch.input_ids.shape"
      raydebug open raydebug-0629 --html crash.html
    """
    from raydebug.runs.folder import LAST
    from raydebug.snapshot.load import choose_snapshot, find_snapshots, read_document

    named = targets or [LAST]
    only_a_page = html and all(name.endswith(".html") for name in named)
    target, *output = [LAST, *named] if only_a_page else named
    if len(output) > (1 if html else 0) or (as_json and not lists):
        raise UsageError(
            "open takes one snapshot or run" if output else "--json is for --list",
            cause=f"'{output[0]}' is one too many" if output else "a snapshot is opened in the terminal, or as a page",
            fix="raydebug open FILE --html OUT" if output else "raydebug open --list --json",
        )  # fmt: skip
    found = find_snapshots(target)
    if lists:
        _list(found, target, as_json=as_json)
        return
    chosen = choose_snapshot(found, target, pick)
    document = read_document(chosen.path)
    if html:
        from raydebug.report.crash import write_crash_page

        page = write_crash_page(document, chosen.path, Path(output[0]) if output else None)
        render.out(render.visible(str(page), keep=""))
        return
    if len(found) > 1 and not execute:
        _show(found, to_stderr=True)
        render.say(f"opened: {chosen.id}; --pick opens another")
    import asyncio

    from raydebug.snapshot.console import converse

    raise typer.Exit(int(asyncio.run(converse(document, execute or ()))))


def _list(found: Sequence[SnapshotFile], target: str, *, as_json: bool) -> None:
    if as_json:
        kept = ("exception", "function", "line", "rank", "pid", "at", "same")
        rows = [{"file": str(file.path.absolute()), **{key: file.summary.get(key) for key in kept}} for file in found]
        render.out_json({"version": 1, "snapshots": rows})
    elif not found:
        render.say(f"'{target}' has no snapshot: none of its processes crashed")
    else:
        _show(found)
        render.say(f"next: {render.command('raydebug', 'open', target)}")


def _show(found: Sequence[SnapshotFile], *, to_stderr: bool = False) -> None:
    """Print a table with a row for each group of equal crashes; the first row has the first crash."""
    from raydebug.snapshot.load import describe_groups

    groups = describe_groups(found)
    groups[0]["at"] += " first"
    rows = [[group[name] for name in ("pick", "exception", "where", "who", "at", "id")] for group in groups]
    render.table(["", "exception", "where", "who", "at", "id"], rows, to_stderr=to_stderr)


# raydebug snapshot


def snapshot(
    target: Annotated[
        str | None, typer.Argument(metavar="[ID|all]", help="A pause of `raydebug paused`. Default: the only one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Instead of a file in the run's folder.")
    ] = None,
    pid: Annotated[
        str | None, typer.Option("--pid", metavar="PID[@IP]", help="A process that runs or waits; it is not paused.")
    ] = None,
    name: Name = "default",
) -> None:
    """Save frames, locals and tensor summaries of a pause in a file; the pause stays.

    Example:
      raydebug snapshot all
      raydebug snapshot --pid 7311      what its active thread does, also in a wait that no pause can reach
    """
    from raydebug.cli.pauses import process_target
    from raydebug.client.gateway_client import fetch_pauses
    from raydebug.cluster.find import load_cluster

    process = process_target(pid, None, None, others=(target,))
    cluster = load_cluster(name)
    if process is not None:
        _save(cluster, process, output)
        return
    ids = [pause["id"] for pause in fetch_pauses(cluster)]
    chosen = ids if target in (None, "all") else [str(target)]
    if not chosen:
        render.say("nothing is paused")
    elif len(chosen) > 1 and (target is None or output is not None):
        raise UsageError(
            f"{len(chosen)} pauses, and no ID says which one",
            cause=f"paused: {', '.join(chosen[:8])}" + ("; --output names one file" if output is not None else ""),
            fix=f"name one: {render.command('raydebug', 'snapshot', chosen[0])}; all: raydebug snapshot all",
            code="pause.ambiguous",
        )
    failed = False
    for pause_id in chosen:
        try:
            _save(cluster, pause_id, output)
        except RaydebugError as failure:
            if len(chosen) == 1:
                raise
            failed = True
            render.error(failure)
    if failed:
        raise typer.Exit(Exit.FAILED)


def _save(cluster: Cluster, pause_id: str, output: Path | None) -> None:
    """Save a pause in a file, and print its path."""
    from raydebug.client.gateway_client import fetch_snapshot, save_pause
    from raydebug.runs.folder import RunFolder
    from raydebug.settings.files import write_named

    saved = save_pause(cluster, pause_id)
    job = saved.get("job") or ""
    file = fetch_snapshot(cluster, job, saved["id"])
    try:
        path = output or RunFolder(job).add_snapshot(saved["id"], file)
        if output is not None:
            write_named(output, file)
    except OSError as error:
        raise RaydebugError(
            "the snapshot cannot be written",
            cause=str(error),
            fix="name another file: --output FILE",
            code="snapshot.not-written",
        ) from error
    render.out(render.visible(str(path), keep=""))
    render.say(f"next: {render.command('raydebug', 'open', str(path))}")
