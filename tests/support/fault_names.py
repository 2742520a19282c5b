"""Finds the cases of docs/faults.toml that a test proves: its docstring begins with their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
_NAMES = re.compile(r"((?:[FS]\d+(?:-[FS]\d+)?, )*[FS]\d+(?:-[FS]\d+)?): ")


class Proof(NamedTuple):
    """A test of some cases."""

    cases: list[str]
    sentence: str
    test_id: str


def cases_of(docstring: str | None) -> list[str]:
    """Return the cases at the beginning of a test's docstring.

    >>> cases_of("F27, S9: beside 500 idle connections ...")
    ['F27', 'S9']
    >>> cases_of("S11-S13: in every combination ...")
    ['S11', 'S12', 'S13']
    """
    match = _NAMES.match(docstring or "")
    found: list[str] = []
    for part in match[1].split(", ") if match else []:
        first, _, last = part.partition("-")
        found += [f"{first[0]}{number}" for number in range(int(first[1:]), int((last or first)[1:]) + 1)]
    return found


def proofs() -> Iterator[Proof]:
    """Yield every test of a case, parsed from the test files."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                if cases := cases_of(text):
                    sentence = _NAMES.sub("", text, count=1).split("\n\n")[0]
                    yield Proof(cases, " ".join(sentence.split()), f"{path.relative_to(TESTS.parent)}::{node.name}")
