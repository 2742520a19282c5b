"""`run --stop-when` and `--stop-on`: check the options before the job starts, and set the variables of the job."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from raydebug.commands.trainings import Reading
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol import variables
from raydebug.protocol.tripwires import MEMORY, BadCondition, Condition, parse
from raydebug.trainers.registry import modules_known
from raydebug.trainers.trainer import Program

NONFINITE = "nonfinite"
WITH_PAUSES = ("breakpoint", "post-mortem")  # the debugger's modes in which a process pauses for the gateway
_STATISTIC = re.compile(r"/(mean|max|min|std)$")
EXAMPLE = "--stop-when 'actor/grad_norm > 100', --stop-when 'nan(actor/pg_loss)', --stop-when 'a == 0 for 5 steps'"


def tripwire_variables(
    stop_when: Sequence[str], stop_on: str | None, reading: Reading, mode: str
) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a job with tripwires in this debugger mode, and notes for the user. Pure.

    Raises:
        RaydebugError: a condition has a syntax error, the command is no known training, or nothing pauses in this mode.
    """
    if stop_on not in (None, NONFINITE):
        raise _refused(f"--stop-on {stop_on} is unknown", f"there is only {NONFINITE}", f"--stop-on {NONFINITE}")
    conditions = [_parsed(text) for text in stop_when]
    if (stop_when or stop_on) and mode not in WITH_PAUSES:
        raise _refused(
            f"{'--stop-when' if stop_when else '--stop-on'} cannot stop with the debugger '{mode}'",
            "a tripwire pauses like a breakpoint, and no process pauses for the gateway in this mode",
            "add --debugger breakpoint or --debugger post-mortem, and do not set RAY_DEBUG*",
        )
    found = {variables.STOP_ON: stop_on} if stop_on else {}
    if not conditions:
        return found, []
    programs = _programs(reading)
    loggers = dict.fromkeys(logger for program in programs for logger in program.trainer.step_loggers(program))
    found |= {variables.STOP_WHEN: json.dumps([*stop_when]), variables.STEP_LOGGERS: " ".join(loggers)}
    return found, _notes(conditions, programs)


def _parsed(text: str) -> Condition:
    try:
        return parse(text)
    except BadCondition as error:
        raise _refused(f"--stop-when {text!r} cannot be read", str(error), f"for example: {EXAMPLE}") from error


def _programs(reading: Reading) -> list[Program]:
    """Return the programs of known trainers that a command runs and that report the metrics of their steps."""
    programs = [it.program for it in reading.trainings if it.program.trainer.step_loggers(it.program)]
    if programs:
        return programs
    why = reading.unreadable.cause if reading.unreadable else f"{shlex.join(reading.command)[:100]} runs none"
    raise _refused(
        "--stop-when needs a training that raydebug knows",
        f"{why}; metrics are read from {modules_known()}",
        "give the training command itself; in other programs: --break 'train.py:120,if=loss > 100'",
    )


def _notes(conditions: Sequence[Condition], programs: Sequence[Program]) -> list[str]:
    """Return a line for each metric that looks misspelt; a trainer may log more metrics than raydebug knows."""
    import difflib

    known = {MEMORY}.union(*(program.trainer.log.metrics for program in programs))
    families = {_STATISTIC.sub("", name) for name in known}
    notes = []
    for name in dict.fromkeys(name for condition in conditions for name in condition.names):
        if name not in known and _STATISTIC.sub("", name) not in families:
            near = [metric for metric in sorted(known) if metric.endswith(f"/{name}")]
            near = near or difflib.get_close_matches(name, known, cutoff=0.9)
            if near:
                notes.append(f"note: metric '{name}' is unknown; similar: {', '.join(near)}; step 1 logs all names")
    return notes


def _refused(what: str, cause: str, fix: str) -> RaydebugError:
    return UsageError(what, cause=cause, fix=fix, code="run.tripwire")
