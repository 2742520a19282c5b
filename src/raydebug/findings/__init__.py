"""Findings: what is wrong, why, and how to fix it. Their texts are data: AREA.toml of this folder, a table a code.

A table has these keys:
    meaning: of the code, for the table in docs/reference/codes.md.
    severity: `error` (the training would fail, or do something else than was asked; the stage fails), `warning` (it
        may) or `note` (to know).
    what: what is wrong, with the value; no full stop.
    why: the consequence, and the source of this rule.
    fix: one command or change that fixes it.

Where a code has several findings, each of them is a table below it. In a text {fact} is what the judge found; a list is
written with commas, {fact:GiB} as a number of bytes, {fact:|text} as the text where there is nothing. {settings} is the
fix as words of the command; it also stands where the fix is empty.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, TypeAlias

AREAS = ("env", "command", "data", "model", "engine", "train", "cluster", "check")
SEVERITIES = ("error", "warning", "note")
Changes: TypeAlias = Mapping[str, str | None]
_NONE: Changes = MappingProxyType({})


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    Args:
        code: a stable word for scripts, such as `data.column-missing`.
        severity: `error`, `warning` or `note`.
        what: what is wrong.
        why: the consequence, and the source of this rule.
        fix: what to do.
        overrides: the fix as overrides of the command, where it is one: Hydra key -> value, None takes it out.
        variables: the fix as environment variables, where it is one: name -> value, None takes it out.
    """

    code: str
    severity: str
    what: str
    why: str
    fix: str
    overrides: Changes = field(default_factory=dict)
    variables: Changes = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert is_code(self.code), self.code
        assert self.severity in SEVERITIES, self.severity

    def as_json(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("code", "severity", "what", "why", "fix")}


def finding(
    name: str, /, *, severity: str = "", overrides: Changes = _NONE, variables: Changes = _NONE, **facts: object
) -> Finding:
    """Return a finding.

    Args:
        name: its code, and where the code has several its table below that: `data.file-missing.absent`.
        severity: another one than its table has.
        overrides: the fix as overrides of the command.
        variables: the fix as environment variables.
        **facts: what its texts name.
    """
    area, code, *case = name.split(".")
    table = texts(area)[code][case[0]] if case else texts(area)[code]
    settings = facts["settings"] = " ".join(f"{key}={value}" for key, value in overrides.items())
    what, why, fix = (_WRITER.vformat(table[part], (), facts) for part in ("what", "why", "fix"))
    severity = severity or table["severity"]
    return Finding(f"{area}.{code}", severity, what, why, fix or settings, dict(overrides), dict(variables))


@cache
def texts(area: str) -> dict[str, Any]:
    """Return the tables of an area."""
    return tomllib.loads(resources.files("raydebug.findings").joinpath(f"{area}.toml").read_text(encoding="utf-8"))


def is_code(code: str) -> bool:
    """Return whether there is a code of this name."""
    area, _, name = code.partition(".")
    return area in AREAS and name in texts(area)


def meanings() -> Iterator[tuple[str, str]]:
    """Yield each code and its meaning."""
    for area in AREAS:
        for code, table in texts(area).items():
            yield f"{area}.{code}", table["meaning"]


class _Writer(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        form, _, nothing = format_spec.partition("|")
        if form == "GiB":
            return f"{value / 1024**3:.1f} GiB" if value >= 1024**3 / 10 else f"{value / 1024**2:.1f} MiB"
        text: str = super().format_field(", ".join(map(str, value)) if isinstance(value, list) else value, form)
        return text or nothing


_WRITER = _Writer()


def in_a_line(failure: BaseException) -> str:
    """Return an exception and the first line of what it says."""
    return f"{type(failure).__name__}: {str(failure).partition(chr(10))[0][:200]}"


def describe_exception(failure: BaseException) -> dict[str, str]:
    """Return an exception as data: its first cause and the line that raised it."""
    import traceback

    first = failure
    while (before := first.__cause__ or (None if first.__suppress_context__ else first.__context__)) is not None:
        first = before
    frames = traceback.extract_tb(first.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    if isinstance(first, SyntaxError):
        where = f"{first.filename}:{first.lineno}"
    return {
        "type": type(first).__name__,
        "message": str(first),
        "where": where,
        "traceback": "".join(traceback.format_exception(failure))[-8000:],
    }
