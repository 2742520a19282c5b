"""Apply findings' own fixes to a command and its environment, where a fix is an override or a variable. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raydebug.check.finding import Finding
from raydebug.check.subject import Subject

if TYPE_CHECKING:
    from raydebug.check.ladder import Outcome

ROUNDS = 5  # a fix may bring to light what it covered


@dataclass(frozen=True)
class Mended:
    """A subject with fixes applied.

    Args:
        subject: the new one.
        changes: what was changed, in words.
        unset: variables that were taken out of the environment.
        exported: variables that were given a value.
    """

    subject: Subject
    changes: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    exported: tuple[tuple[str, str], ...] = ()

    def as_command(self) -> str:
        """Return the shell line that runs the mended command with the mended environment."""
        words = [*(f"-u{name}" for name in self.unset), *(f"{name}={value}" for name, value in self.exported)]
        line = shlex.join(self.subject.command)
        return f"env {shlex.join(words)} {line}" if words else line


def mend_until_done(
    subject: Subject, attempt: Callable[[Subject], list[Outcome]], on_change: Callable[[str], None]
) -> tuple[Mended, list[Outcome]]:
    """Check, apply the fixes, and check again, until no finding has a fix left.

    Args:
        subject: what is checked first.
        attempt: checks a subject.
        on_change: told each change as it is made, in words.

    Returns:
        The mended subject, and how its last check went.
    """
    mended, outcomes = Mended(subject), attempt(subject)
    for _ in range(ROUNDS):
        after = mend(mended, [finding for outcome in outcomes for finding in outcome.findings])
        if after == mended:
            break
        for change in after.changes[len(mended.changes) :]:
            on_change(change)
        mended, outcomes = after, attempt(after.subject)
    return mended, outcomes


def mend(before: Mended, findings: Sequence[Finding]) -> Mended:
    """Return what findings make of a subject; the same where none has a fix that can be applied."""
    after = before
    for finding in findings:
        if finding.severity == "note":
            continue
        for name, value in finding.variables.items():
            after = _with_variable(after, name, value)
        for key, value in finding.overrides.items():
            after = _with_override(after, key, value)
    return after


def _with_variable(before: Mended, name: str, value: str | None) -> Mended:
    subject = before.subject
    if subject.environ is None:
        return before  # containers have an environment of their own: `.env` and `raydebug up` make it
    change = f"{name}: {subject.environ.get(name, subject.caller.get(name, '(not set)'))} -> {value or '(not set)'}"
    environ, caller = ({**one, name: value or ""} for one in (subject.environ, subject.caller))
    if value is None:
        environ.pop(name)
        caller.pop(name)
        unset, exported = (*before.unset, name), before.exported
    else:
        unset, exported = before.unset, (*before.exported, (name, value))
    subject = replace(subject, environ=environ, caller=caller)
    return Mended(subject, (*before.changes, change), unset, exported)


def _with_override(before: Mended, key: str, value: str | None) -> Mended:
    subject = before.subject
    if subject.trainer is None:
        return before
    plain = key.lstrip("+")
    head, own = subject.command[: subject.trainer.overrides_at], subject.command[subject.trainer.overrides_at :]
    old = [one for one in own if one.lstrip("+").partition("=")[0] == plain]
    kept = [one for one in own if one not in old]
    new = kept if value is None else [*kept, f"{key}={value}"]
    said = old[-1].partition("=")[2] if old else "(not given)"
    change = f"{plain}: {said} -> {'(taken out)' if value is None else value}"
    return replace(
        before,
        subject=replace(subject, command=(*head, *new)),
        changes=(*before.changes, change),
    )
