"""`raydebug memory`: who has the memory of a job's processes, and what grows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json, Name, finite, no_process
from raydebug.errors import RaydebugError, UsageError

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster
    from raydebug.memory.look import Look
    from raydebug.runs.record import Run


def memory(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB|OLDER]", help="Submission id of a job; with --snapshot: an earlier file."),
    ] = None,
    growth: Annotated[
        int | None,
        typer.Option(
            "--growth", min=1, metavar="STEPS", help="Count who holds what for this many steps, best 4 or more."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=0.1,
            metavar="SECONDS",
            callback=finite,
            help="With --growth: how long a step is, of a program that says none.",
        ),
    ] = None,
    pid: Annotated[
        str | None, typer.Option("--pid", metavar="PID[@IP]", help="One process, and who holds its memory.")
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option("--snapshot", metavar="FILE", help="Read a snapshot of torch's GPU allocator.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Of --snapshot: write a page, too.")
    ] = None,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Show the memory of all processes; say what grows, and who keeps it.

    \b
    Examples:
      raydebug memory
      raydebug memory --growth 4                     what grows, and who keeps it
      raydebug memory --pid 22961                    what one process holds
      raydebug memory --snapshot new.pickle old.pickle -o change.html
    """
    _check_options(growth=growth, seconds=seconds, pid=pid, snapshot=snapshot, output=output)
    if snapshot is not None:
        _show_snapshot(snapshot, Path(job) if job else None, output, as_json=as_json)
        return
    from raydebug.cluster.find import load_cluster

    cluster = load_cluster(name)
    from raydebug.memory.look import look

    looks = [look(cluster, job, pid=pid, census=growth is not None or pid is not None)]
    if not looks[0].processes and not as_json:
        if job is not None:
            raise no_process(job)
        render.say("no process of a job runs")
        return
    if growth is not None and looks[0].processes:
        looks += _later_looks(cluster, job, looks[0], pid, growth, seconds)
    _show(looks, as_json=as_json, name=name)


def _check_options(
    *, growth: int | None, seconds: float | None, pid: str | None, snapshot: Path | None, output: Path | None
) -> None:
    together = [option for option, value in (("--growth", growth), ("--pid", pid)) if snapshot and value is not None]
    needed = {"--seconds": (seconds, growth), "--output": (output, snapshot)}
    alone = [option for option, (value, beside) in needed.items() if value is not None and beside is None]
    if together or alone:
        raise UsageError(
            f"{together[0]} and --snapshot do not go together" if together else f"{alone[0]} does not stand alone",
            cause="--seconds goes with --growth, --output with --snapshot; one question at a time",
            fix="raydebug memory --help has an example of each", code="memory.options",
        )  # fmt: skip


def _later_looks(
    cluster: Cluster, job: str | None, first: Look, pid: str | None, steps: int, seconds: float | None
) -> list[Look]:
    """Return looks at the ends of the steps, of many at four of them: what comes and goes rarely grows four times."""
    from raydebug.memory.look import ended_error, look, wait_for_step

    if first.step is None and seconds is None:
        raise UsageError(
            "no process of this job says its step", cause="this program is no training that raydebug knows",
            fix=f"say how long a step is: raydebug memory --growth {steps} --seconds 30", code="memory.no-step",
        )  # fmt: skip
    looks = []
    for after in sorted({round(steps * part / 4) for part in range(1, 5)} - {0}):
        if seconds is not None:
            render.say(f"counts again in {after * seconds:g} s from the first time")
            time.sleep(max(0.0, first.at_s + after * seconds - time.monotonic()))
        else:
            render.say(f"counts again in step {(first.step or 0) + after}")
            wait_for_step(cluster, job, (first.step or 0) + after)
        looks.append(look(cluster, job, pid=pid, census=True))
    if not looks[-1].census:  # its processes have ended before they had counted
        raise ended_error()
    return looks


def _show(looks: list[Look], *, as_json: bool, name: str) -> None:
    from raydebug.memory.growth import find_growth
    from raydebug.memory.screen import COLUMNS, document, gpu_line, holder_text, node_line, per_step, process_row

    grown = find_growth(looks) if len(looks) > 1 else []
    shown = document(looks[-1], per_step(_record_of(looks[-1])), grown)
    if as_json:
        render.out_json(shown)
        return
    for node in shown["nodes"]:
        render.out(render.visible(node_line(node)))
        for gpu in shown["gpus"]:
            if gpu["node"] == node["node"]:
                render.out(render.visible(gpu_line(gpu)))
        rows = [process_row(process) for process in shown["processes"] if process["node"] == node["node"]]
        used = [at for at in range(len(COLUMNS)) if any(row[at] for row in rows)]
        render.table([COLUMNS[at] for at in used], [[row[at] for at in used] for row in rows])
    if len(shown["processes"]) == 1:
        for holder in shown["processes"][0]["holders"][:10]:
            render.out(render.visible(f"  {holder_text(holder)}"))
    for process in shown["processes"]:
        if process["cut"]:
            render.say(f"pid {process['pid']} has more objects than could be counted in time")
    for growth in grown[:5]:
        render.out(render.visible(f"grows: {growth.text()}"))
    if first := next((growth for growth in grown if growth.kind != "child"), None):
        from raydebug.protocol.names import pid_option

        process = pid_option({"pid": first.pid, "ip": first.ip})
        render.say(f"next: raydebug memory --pid {process}        (what else it holds)")
    if len(looks) > 1 and not grown:
        render.out("grows: nothing")


def _record_of(look: Look) -> Run | None:
    from raydebug.runs.folder import load_run

    jobs = {process["process"]["job"] for process in look.processes} - {None}
    try:
        return load_run(jobs.pop() or "") if len(jobs) == 1 else None
    except RaydebugError:  # it was started elsewhere, or without `raydebug run`
        return None


def _show_snapshot(path: Path, before: Path | None, output: Path | None, *, as_json: bool) -> None:
    from raydebug.snapshot.gpu_memory import gpu_memory_lines, read_gpu_snapshot

    now = read_gpu_snapshot(path)
    old = None if before is None else read_gpu_snapshot(before)
    if as_json:
        render.out_json({"version": 1, "snapshot": now, "before": old})
    else:
        for text in gpu_memory_lines(now, old):
            render.out(render.visible(text))
    if output is not None:
        from raydebug.report.gpu_memory import gpu_memory_page
        from raydebug.report.write import write_page

        page = gpu_memory_page(path.name, now, old, before.name if before else "")
        fix = "name another file: `raydebug memory --snapshot FILE -o OUT`"
        render.say(f"page: {write_page(output, page, named=True, fix=fix)}")
