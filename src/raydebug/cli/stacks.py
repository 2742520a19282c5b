"""`raydebug stacks`: where every process of the cluster's jobs is, and what a hanging job waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydebug import render
from raydebug.cli.options import Json, Name, no_process
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol import records
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.questions import TrainingWords
from raydebug.settings.files import NotPlainText, read_json

if TYPE_CHECKING:
    from raydebug.stacks.collect import Observation


def stacks(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Submission id of a job. Default: all jobs.")
    ] = None,
    name: Name = "default",
    as_json: Json = False,
    samples: Annotated[
        int,
        typer.Option("--samples", min=1, max=10, metavar="N", help="Take N samples, 2 s apart, to see what moves."),
    ] = 1,
    native: Annotated[
        bool,
        typer.Option("--native", help="Add C frames, read by py-spy on the nodes; each process is stopped for 0.1 s."),
    ] = False,
    whole: Annotated[bool, typer.Option("--all", help="Show whole stacks, of all threads.")] = False,
    of: Annotated[str | None, typer.Option("--locals", metavar="PID[@IP]", help="One process with its locals.")] = None,
    saved: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Read the output of --json from a file instead.", exists=True),
    ] = None,
) -> None:
    """Show the Python stacks of all processes, in groups, and say what a hanging job waits for.

    \b
    Examples:
      raydebug stacks
      raydebug stacks --samples 2       is it slow, or does it hang?
      raydebug stacks --native          C frames too
      raydebug stacks --locals 7311     one that waits: its frames with their locals
    """
    from raydebug.cluster.find import load_cluster
    from raydebug.stacks.collect import observe, take_locals
    from raydebug.stacks.slow_watch import slow_verdicts
    from raydebug.stacks.verdict import as_document

    if of is not None:
        _show_one(take_locals(load_cluster(name), job, of), as_json=as_json)
        return
    if job is not None and saved is not None:
        raise UsageError(
            "--from takes no job", cause="the file has the processes of one sample, and all of them are shown",
            fix="leave one of them out",
        )  # fmt: skip
    if saved is None:
        cluster = load_cluster(name)
        seen = observe(cluster, job, samples=samples, native=native)
        document = as_document(*seen, slow_verdicts(cluster, job))
    else:
        seen, document = _judge_saved(saved)
    if as_json:
        render.out_json(document)
        return
    processes = seen.samples[-1]
    if not processes and job is not None:
        raise no_process(job)
    if not processes:
        render.say("no process of a job runs")
        return
    _show(document, processes, whole=whole)


def _show(document: Mapping[str, Any], processes: Sequence[ListedStacks], *, whole: bool) -> None:
    from raydebug.stacks.show import group_lines, left_out_lines, silent_lines, whole_lines

    lines = whole_lines(processes) if whole else group_lines(document["groups"], processes)
    for line in chain(lines, left_out_lines(processes), silent_lines(processes)):
        render.out(render.visible(line))
    _show_verdicts(document["verdicts"])


def _judge_saved(path: Path) -> tuple[Observation, dict[str, Any]]:
    from raydebug.stacks.verdict import as_document

    seen = read_saved(path)
    try:
        return seen, as_document(*seen)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _no_stacks(path, error) from error


def _show_one(process: ListedStacks, *, as_json: bool) -> None:
    from raydebug.stacks.show import silent_lines, whole_lines

    if as_json:
        render.out_json({"version": 1, "process": process})
        return
    for line in chain(whole_lines([process]), silent_lines([process])):
        render.out(render.visible(line))


def _show_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> None:
    for verdict in verdicts:
        of_job = f" on job {render.visible(str(verdict['job']))}" if len(verdicts) > 1 else ""
        render.out(f"\nverdict{of_job} ({verdict['certainty']}): {render.visible(verdict['text'])}")
        if verdict["next"]:
            render.say(f"next: {verdict['next']}")


def read_saved(path: Path) -> Observation:
    """Return the one sample of processes, tasks and words, in a file that `raydebug stacks --json` has written.

    Raises:
        RaydebugError: it is no such file, or one of a newer version.
    """
    from raydebug.runs.folder import RECORD_BYTES_MAX
    from raydebug.stacks.collect import Observation

    try:
        document = read_json(path, bytes_max=RECORD_BYTES_MAX, what="a file of stacks")
        version, processes = document["version"], list(document["processes"])
        words = dict(document.get("training", {}))
        for process in processes:
            records.read(process, ListedStacks, "a process")  # somebody else may have written it
        for said_by in words.values():
            records.read(said_by, TrainingWords, "what a process says")
        seen = Observation([processes], list(document.get("tasks", [])), words)
    except (ValueError, LookupError, TypeError) as error:
        raise _no_stacks(path, error) from error
    if version != 1:
        raise UsageError(
            "the stacks in this file are of another version", code="stacks.version",
            cause=f"{path}: version {version!r}, this raydebug reads 1", fix="use the raydebug that has written it",
        )  # fmt: skip
    return seen


def _no_stacks(path: Path, error: Exception) -> RaydebugError:
    why = str(error) if isinstance(error, NotPlainText) else f"{type(error).__name__}: {error}"
    return UsageError(
        "this file has no stacks", cause=f"{path}: {why}", code="stacks.no-file",
        fix="give a file that `raydebug stacks --json` has written",
    )  # fmt: skip
