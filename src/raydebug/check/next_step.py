"""What to do after a try. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raydebug.check.ladder import FAILED, Outcome
from raydebug.cluster.state import name_option
from raydebug.errors import Exit

COMMAND_CHARS_MAX = 120  # a longer one is named, not repeated


@dataclass(frozen=True)
class Tried:
    """How a try went.

    Args:
        command: the training command as one would type it.
        outcomes: of the checks.
        code: the run's exit code; None where it did not come to a run.
        seconds: how long the run took, with its cluster where it had one of its own.
        debugger: the mode asked for; None is the default.
        cluster: whether a cluster was there before.
        name: its name.
    """

    command: str
    outcomes: Sequence[Outcome]
    code: int | None
    seconds: float
    debugger: str | None
    cluster: bool
    name: str


def next_steps(tried: Tried) -> Iterator[str]:
    """Yield the lines that end a try: how it stands, and the commands that lead on."""
    named = name_option(tried.name)
    behind = tried.command if len(tried.command) <= COMMAND_CHARS_MAX else "COMMAND"
    failed = next((outcome for outcome in tried.outcomes if outcome.status == FAILED), None)
    if tried.code is None and failed is not None:
        yield f"tried: stage {failed.stage} failed; nothing was run"
        if any(finding.overrides or finding.variables for finding in failed.findings):
            yield f"next: raydebug check {failed.stage} --fix --profile debug{named} -- {behind}"
            yield "      applies the fixes that are settings or variables, and prints the mended command"
        else:
            yield "next: mend that, and try again; what has passed is not checked twice"
        return
    if tried.code == Exit.INTERRUPTED:
        yield "tried: interrupted"
        return
    if tried.code != 0:
        yield f"tried: the checks passed, the small run failed with code {tried.code} after {tried.seconds:.0f} s"
        if tried.debugger in (None, "off", "breakpoint"):
            yield f"next: raydebug try --debugger post-mortem{named} -- {behind}"
            yield "      stops at the frame that raises, for `raydebug attach`"
        else:
            yield "next: mend that, and try again; what has passed is not checked twice"
        yield "      raydebug report: what the run did until then"
    else:
        yield f"tried: the checks passed, the small run ended well in {tried.seconds:.0f} s"
        yield f"next: raydebug check{named} -- {behind}"
        yield f"      raydebug run{named} -- {behind}"
        yield "      the same at its full size; `raydebug report` shows what the small run spent its time on"
    if not tried.cluster:
        yield f"      raydebug up{named}: a cluster that stays spares the next try its start"
