"""`raydebug diagnose`: the first cause in the logs of a run, with its evidence and its fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json, NameIfNeeded
from raydebug.errors import Exit
from raydebug.protocol.secrets import scrubbed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raydebug.cluster.dashboard import Dashboard
    from raydebug.diagnose.answer import Answer, Diagnosis
    from raydebug.diagnose.scan import Kept

SHOWN_CHARS = 300  # of a line of evidence


def diagnose(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB|RUN|FILE...|-]",
            help="A job, a run of `report --list`, log files, a folder of them, or - for standard input.",
        ),
    ] = None,
    name: NameIfNeeded = "",
    as_json: Json = False,
) -> None:
    """Say what went wrong, from logs: the first cause, the line that shows it, and the fix.

    \b
    Examples:
      raydebug diagnose                  the last run
      raydebug diagnose worker-*.err raylet.out
    """
    from raydebug.diagnose.answer import NO_FAILURE
    from raydebug.diagnose.run_diagnosis import diagnose_words
    from raydebug.runs.folder import LAST

    answer, kept = diagnose_words(given or [LAST], name)
    if as_json:
        render.out_json(answer.as_json())
    else:
        _show(answer, kept)
    raise typer.Exit(Exit.OK if answer.status == NO_FAILURE else Exit.FAILED)


def explain(dashboard: Dashboard, job: str) -> tuple[list[str], dict[str, str] | None, list[dict[str, str]]]:
    """Return why a job failed, as `follow_job` asks for it."""
    from raydebug.diagnose.run_diagnosis import explain_failure  # google-re2 and the rules: 0.2 s, after a failure only

    return explain_failure(dashboard, job)


def _show(answer: Answer, kept: Kept) -> None:
    if answer.diagnoses:
        _show_diagnoses(answer.diagnoses)
    else:
        words = "no failure found" if answer.status == "no-failure" else "it failed, and no rule explains it"
        render.out(f"{words} in {kept.read_lines} lines")
    for note in answer.notes:
        render.out(render.visible(f"note: {note}", keep=""))
    for related in answer.related:
        _out(f"{related.kind}: {related.command}  ({related.text})")


def _out(line: str) -> None:
    render.out(render.visible(scrubbed(render.suggested(line))))


def _show_diagnoses(found: Sequence[Diagnosis]) -> None:
    first = found[0]
    _out(f"{first.title}  [{first.name}, {first.confidence}]")
    for at in first.evidence:
        _out(f"  {at.source}:{at.number}: {at.text.strip()[:SHOWN_CHARS]}")
    _out(f"cause: {first.cause}")
    if first.fix:
        _out(f"fix: {first.fix}")
    if first.command is not None:
        _out(f"command: {first.command}")
    for other in found[1:4]:
        at = other.evidence[0]
        _out(f"also: {other.title}  [{other.name}] {at.source}:{at.number}")
