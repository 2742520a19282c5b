"""A finding: what is wrong, why, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raydebug.check.codes import CODES

# error: the training would fail, or do something else than was asked; the stage fails. warning: it may. note: to know.
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    Args:
        code: a stable word of `codes`, such as `data.column-missing`.
        severity: `error`, `warning` or `note`.
        what: what is wrong, with the value; no full stop.
        why: what would come of it, and who says so.
        fix: one command or change that mends it.
        overrides: the fix as overrides of the command, where it is one: Hydra key -> value, None takes it out.
        variables: the fix as environment variables, where it is one: name -> value, None takes it out.
    """

    code: str
    severity: str
    what: str
    why: str
    fix: str
    overrides: Mapping[str, str | None] = field(default_factory=dict)
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.code in CODES, self.code
        assert self.severity in SEVERITIES, self.severity

    def as_json(self) -> dict[str, str]:
        """Return what `--json` prints of it."""
        return {name: getattr(self, name) for name in ("code", "severity", "what", "why", "fix")}

    def as_record(self) -> dict[str, Any]:
        """Return all of it, for the memory of earlier runs."""
        return {**self.as_json(), "overrides": dict(self.overrides), "variables": dict(self.variables)}


def error(code: str, what: str, *, why: str, fix: str, **mend: Mapping[str, str | None]) -> Finding:
    """Return a finding that fails its stage."""
    return Finding(code, "error", what, why, fix, **mend)


def warning(code: str, what: str, *, why: str, fix: str, **mend: Mapping[str, str | None]) -> Finding:
    """Return a finding that lets its stage pass."""
    return Finding(code, "warning", what, why, fix, **mend)


def note(code: str, what: str, *, why: str, fix: str) -> Finding:
    """Return a finding that is only to know."""
    return Finding(code, "note", what, why, fix)
