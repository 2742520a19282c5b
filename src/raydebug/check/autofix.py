"""Apply findings' own fixes to a command and its environment, where a fix is an override or a variable. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from raydebug.check.stages import Outcome
from raydebug.check.target import Target
from raydebug.findings import Finding

ROUNDS = 5  # a fix may bring to light what it covered


@dataclass(frozen=True)
class Fixed:
    """A target with fixes applied.

    Args:
        target: the new one.
        changes: what was changed, in words.
        unset: variables that were taken out of the environment.
        exported: variables that were given a value.
    """

    target: Target
    changes: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    exported: tuple[tuple[str, str], ...] = ()

    def as_command(self) -> str:
        """Return the shell line that runs the fixed command in the fixed environment."""
        words = [*(f"-u{name}" for name in self.unset), *(f"{name}={value}" for name, value in self.exported)]
        line = shlex.join(self.target.command)
        return f"env {shlex.join(words)} {line}" if words else line


def fix_until_done(
    target: Target, attempt: Callable[[Target], list[Outcome]], on_change: Callable[[str], None]
) -> tuple[Fixed, list[Outcome]]:
    """Check, apply the fixes, and check again, until no finding has a fix left.

    Args:
        target: what is checked first.
        attempt: checks a target.
        on_change: called with a description of each change.

    Returns:
        The fixed target, and how its last check went.
    """
    fixed, outcomes = Fixed(target), attempt(target)
    for _ in range(ROUNDS):
        after = apply_fixes(fixed, [finding for outcome in outcomes for finding in outcome.findings])
        if after == fixed:
            break
        for change in after.changes[len(fixed.changes) :]:
            on_change(change)
        fixed, outcomes = after, attempt(after.target)
    return fixed, outcomes


def apply_fixes(before: Fixed, findings: Sequence[Finding]) -> Fixed:
    """Return a target with the fixes of findings applied; unchanged if none can be applied."""
    after = before
    for finding in findings:
        if finding.severity == "note":
            continue
        for name, value in finding.variables.items():
            after = _with_variable(after, name, value)
        for key, value in finding.overrides.items():
            after = _with_override(after, key, value)
    return after


def _with_variable(before: Fixed, name: str, value: str | None) -> Fixed:
    target = before.target
    if target.environ is None:
        return before  # containers have an environment of their own: `.env` and `raydebug up` make it
    change = f"{name}: {target.environ.get(name, target.caller.get(name, '(not set)'))} -> {value or '(not set)'}"
    environ, caller = ({**one, name: value or ""} for one in (target.environ, target.caller))
    if value is None:
        environ.pop(name)
        caller.pop(name)
        unset, exported = (*before.unset, name), before.exported
    else:
        unset, exported = before.unset, (*before.exported, (name, value))
    target = replace(target, environ=environ, caller=caller)
    return Fixed(target, (*before.changes, change), unset, exported)


def _with_override(before: Fixed, key: str, value: str | None) -> Fixed:
    target = before.target
    if target.program is None:
        return before
    plain = key.lstrip("+")
    head, own = target.command[: target.program.arguments_at], target.command[target.program.arguments_at :]
    old = [one for one in own if one.lstrip("+").partition("=")[0] == plain]
    kept = [one for one in own if one not in old]
    new = kept if value is None else [*kept, f"{key}={value}"]
    said = old[-1].partition("=")[2] if old else "(not given)"
    change = f"{plain}: {said} -> {'(taken out)' if value is None else value}"
    return replace(
        before,
        target=replace(target, command=(*head, *new)),
        changes=(*before.changes, change),
    )
