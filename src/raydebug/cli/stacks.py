"""`raydebug stacks`: where every process of the cluster's jobs is, and what a hanging job waits for."""

from __future__ import annotations

import json
import linecache
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json, Name
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raydebug.protocol.listings import ListedStacks
    from raydebug.protocol.records import StackFrame, ThreadStack
    from raydebug.stacks.groups import Group
    from raydebug.stacks.verdict import Task

SAMPLES_APART_S = 2.0
SHOWN_FRAMES = 5
SHOWN_NATIVE = 12


def stacks(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Submission id of a job. Default: all jobs.")
    ] = None,
    name: Name = "default",
    as_json: Json = False,
    samples: Annotated[
        int, typer.Option("--samples", min=1, max=10, help="Take this many samples, 2 s apart, to see what moves.")
    ] = 1,
    native: Annotated[
        bool,
        typer.Option("--native", help="Add C frames, read by py-spy on the nodes; each process is stopped for 0.1 s."),
    ] = False,
    whole: Annotated[bool, typer.Option("--all", help="Show whole stacks, of all threads.")] = False,
    saved: Annotated[
        Path | None, typer.Option("--from", help="Read the output of --json from a file instead.", exists=True)
    ] = None,
) -> None:
    """Show the Python stacks of all processes, in groups, and say what a hanging job waits for.

    \b
    Examples:
      raydebug stacks
      raydebug stacks --samples 2       is it slow, or does it hang?
      raydebug stacks --native          C frames too
    """
    from raydebug.stacks.collect import as_document

    taken, tasks = read_saved(saved) if saved is not None else _sample(name, job, samples, native=native)
    try:
        document = as_document(taken, tasks)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if saved is None:
            raise
        raise _no_stacks(saved, error) from error
    if as_json:
        render.out_json(document)
        return
    groups, verdict = document["groups"], document["verdict"]
    if not taken[-1]:
        render.say("no process of a job runs" if job is None else f"no process of job '{job}' runs")
        raise typer.Exit(Exit.OK if job is None else Exit.FAILED)
    if whole:
        _show_whole(taken[-1])
    else:
        _show_groups(groups, taken[-1])
    for one in taken[-1]:
        if one["state"] != "answered":
            age = f", its stack is {one['age_s']:.0f} s old" if one["age_s"] else ""
            render.out(render.visible(f"{one['state']}  {_name(one)}{age}"))
    render.out(f"\nverdict ({verdict['certainty']}): {render.visible(verdict['text'])}")
    if verdict["next"]:
        option = "" if saved is not None or name == "default" else f" --name {name}"
        render.say(f"next: {verdict['next']}{option if verdict['next'].startswith('raydebug ') else ''}")


def _sample(name: str, job: str | None, samples: int, *, native: bool) -> tuple[list[list[ListedStacks]], list[Task]]:
    """Return the stacks of a job at several moments, and Ray's tasks where a process waits for one."""
    from raydebug.cluster.find import load_cluster
    from raydebug.stacks.collect import fetch_tasks, take

    cluster = load_cluster(name)
    taken = [take(cluster, job, native=native and samples == 1)]
    for number in range(2, samples + 1):
        render.say(f"sample {number} of {samples} in {SAMPLES_APART_S:g} s")
        time.sleep(SAMPLES_APART_S)
        taken.append(take(cluster, job, native=native and number == samples))
    return taken, fetch_tasks(cluster, taken[-1])


def read_saved(path: Path) -> tuple[list[list[ListedStacks]], list[Task]]:
    """Return the one sample of processes, and the tasks, in a file that `raydebug stacks --json` has written.

    Raises:
        RaydebugError: it is no such file, or one of a newer version.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version, found = document["version"], ([list(document["processes"])], list(document.get("tasks", [])))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _no_stacks(path, error) from error
    if version != 1:
        raise RaydebugError(
            "the stacks in this file are of another version", code="stacks.version", exit_code=Exit.USAGE,
            cause=f"{path}: version {version!r}, this raydebug reads 1", fix="use the raydebug that has written it",
        )  # fmt: skip
    return found


def _no_stacks(path: Path, error: Exception) -> RaydebugError:
    return RaydebugError(
        "this file has no stacks", cause=f"{path}: {type(error).__name__}: {error}", code="stacks.no-file",
        fix="give a file that `raydebug stacks --json` has written", exit_code=Exit.USAGE,
    )  # fmt: skip


def _show_groups(groups: Sequence[Group], processes: Sequence[ListedStacks]) -> None:
    native = {(one["role"], one["pid"]): one.get("native", []) for one in processes}
    for one in groups:
        who = (
            f"ranks {','.join(render.runs(one['ranks']))}"
            if one["ranks"]
            else f"pid {', '.join(map(str, one['pids'][:8]))}"
        )
        count = f"  {len(one['pids'])} processes" if len(one["pids"]) > 1 else ""
        mark = "  differs from the others" if one["outlier"] else ""
        render.out(render.visible(f"{one['role']}  {who}{count}{mark}"))
        _show_native(native.get((one["role"], one["pids"][0]), []), one["frames"])
        _show_frames(one["frames"], SHOWN_FRAMES)


def _show_whole(processes: Sequence[ListedStacks]) -> None:
    for process in processes:
        render.out(render.visible(_name(process)))
        for thread in process["threads"]:
            render.out(render.visible(f"  thread {thread['name']}"))
            _show_native([one for one in process.get("native", []) if one["name"] == thread["name"]], thread["frames"])
            _show_frames(thread.get("frames", []), len(thread.get("frames", [])))


def _show_native(threads: Sequence[ThreadStack], frames: Sequence[StackFrame]) -> None:
    """Show the native frames that a Python stack has called: those of the thread with the same innermost frame."""
    from raydebug.stacks.collect import is_python

    def at(frame: StackFrame) -> tuple[object, object]:
        return frame.get("file"), frame.get("function")

    for thread in threads:
        python = [one for one in thread["frames"] if is_python(one["file"])]
        if python and frames and at(python[0]) == at(frames[0]):
            for one in thread["frames"][: min(thread["frames"].index(python[0]), SHOWN_NATIVE)]:
                render.out(render.visible(f"    {one['function']} in {Path(one['file']).name}"))
            return


def _show_frames(frames: Sequence[StackFrame], count: int) -> None:
    from raydebug.stacks.groups import place, users_frames

    own = users_frames(frames)
    shown = frames[:count]
    if own and count < len(frames):  # the frames between the innermost and the user's belong to libraries
        shown = [*(frames[:1] if frames[0] not in own else []), *own[: count - 1]]
    for frame in shown:
        source = linecache.getline(frame.get("file", ""), frame.get("line", 0)).strip() if frame in own else ""
        render.out(render.visible(f"    {place(frame)}" + (f"    {source[:80]}" if source else "")))


def _name(process: ListedStacks) -> str:
    from raydebug.stacks.waits import name_process

    return f"{name_process(process)}  pid {process['pid']} on {process['ip']}"
