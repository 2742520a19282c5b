"""How a recorded run is run again: with the fix that its logs ask for (`run --again`)."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raydebug.diagnose.answer import Diagnosis
from raydebug.diagnose.cause import diagnose
from raydebug.diagnose.fix import fix_run
from raydebug.diagnose.inputs import LIMIT_S, read_words, until
from raydebug.diagnose.read import read_line
from raydebug.diagnose.run_diagnosis import EVIDENCE_CHARS, diagnose_run, is_own
from raydebug.errors import UsageError
from raydebug.protocol import variables
from raydebug.protocol.secrets import HIDDEN
from raydebug.runs.folder import DOCUMENT, load_run
from raydebug.runs.record import Run


@dataclass(frozen=True)
class Again:
    """How a recorded run is run again."""

    command: list[str]
    folder: Path | None  # None if its record does not say
    profile: str | None
    tiny: list[str]  # what a tiny version replaced
    notes: list[str]  # for the user: what is run, and why


def plan_again(word: str, cluster: str) -> Again:
    """Return how to run a recorded run again: with the fix that its logs ask for, or the line that `run` has shown.

    The fix is computed from the command of the run. A command in a finding is text for people, and is never run.

    Raises:
        RaydebugError: there is no such run, it is of somebody else, its record has no command or not all of it, or its
            folder is not there.
    """
    run = load_run(word)
    name, command = run.id, run.command
    folder = Path(run.working_dir) if run.working_dir else None
    _check_again(name, command, folder, run)
    answer = diagnose_run(read_words([word], cluster, until(LIMIT_S), only_files=True).lines, run)
    first = answer.first
    causes = itertools.chain([first] if first is not None else [], _shown(run))
    fixes = ((cause, fixed) for cause in causes if (fixed := fix_run(cause, run)) is not None)
    if (applicable := next(fixes, None)) is not None:
        cause, fixed = applicable
        command = fixed.command
        notes = [f"again: {name} with a fix for {cause.name}: {cause.fix}; {', '.join(fixed.changes)}"]
    else:
        why = f"{first.title} ({first.name}): {first.fix}" if first is not None else "no failure is found in its logs"
        notes = [f"again: {name} as it was; there is no fix that can be applied: {why}"]
    tiny = run.variables.get(variables.TINY, "").split()
    return Again(command, folder, run.profile, tiny, [*notes, f"command: {shlex.join(command)}"])


def _shown(run: Run) -> Iterator[Diagnosis]:
    """Yield what the lines say that `run` has shown: the logs of workers may be gone."""
    for finding in run.findings:
        text = re.sub(r"^.*?:\d+: ", "", str(finding.get("evidence", "")), count=1)[:EVIDENCE_CHARS]
        first = diagnose(read_line(text, "", 1)).first
        if first is not None and first.name == finding.get("code"):
            yield first


def _check_again(name: str, command: Sequence[str], folder: Path | None, run: Run) -> None:
    """Refuse to run something else than the run's command.

    Raises:
        RaydebugError: the command or its folder is not known, or not there.
    """
    secret = next((word for word in command if HIDDEN in word), None)
    if not is_own(run):
        cause = f"{run.folder} is not among the runs of this account: its command may be anybody's"
        fix = f"read it, and give it yourself: raydebug run -- COMMAND; {run.folder}/{DOCUMENT} has it"
    elif not command:
        cause, fix = "its record has no command", "give the command: raydebug run -- COMMAND"
    elif secret is not None:
        cause = f"its record keeps no secrets: {secret}"
        fix = "give the command: raydebug run -- COMMAND, with the secret as a variable of `raydebug up`"
    elif folder is not None and not folder.is_dir():
        cause = f"it ran in {folder}, which is not on this machine"
        fix = "give the command where its files are: raydebug run -- COMMAND"
    else:
        return
    raise UsageError(f"run '{name}' cannot be run again", cause=cause, fix=fix, code="run.again")
