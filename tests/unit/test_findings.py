"""Findings as data: each text of `raydebug/findings` is used, and gets the facts that it names."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydebug.findings import AREAS, SEVERITIES, Finding, finding, meanings, texts

SOURCE = Path(__file__).parents[2] / "src" / "raydebug"
OWN = {"severity", "overrides", "variables"}  # arguments that are no facts


def tables() -> dict[str, dict[str, Any]]:
    """Return the texts of each finding, by its name."""
    found = {}
    for area in AREAS:
        for code, table in texts(area).items():
            cases = {f"{area}.{code}.{case}": row for case, row in table.items() if isinstance(row, dict)}
            found.update(cases or {f"{area}.{code}": table})
    return found


def calls() -> Iterator[tuple[str, set[str]]]:
    """Yield a pattern of the names, and the facts, of each call of `finding`."""
    for file in (*SOURCE.glob("check/*.py"), *SOURCE.glob("trainers/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "finding":
                yield pattern_of(node.args[0]), {str(keyword.arg) for keyword in node.keywords} - OWN


def pattern_of(name: ast.expr) -> str:
    if isinstance(name, ast.Constant):
        return re.escape(str(name.value))
    if isinstance(name, ast.JoinedStr):
        return "".join(pattern_of(part) if isinstance(part, ast.Constant) else r"[\w-]+" for part in name.values)
    if isinstance(name, ast.IfExp):
        return f"({pattern_of(name.body)}|{pattern_of(name.orelse)})"
    return r"engine\..*" if isinstance(name, ast.Subscript) else r"train\..*"  # of a table in the code


def test_each_text_gets_its_facts() -> None:
    """A finding names texts that are there and gives them all their facts and no others; no text is left over."""
    used = set[str]()
    literal = {pattern.replace("\\", "") for pattern, _ in calls()}
    for pattern, facts in calls():
        names = [name for name in tables() if re.fullmatch(pattern, name)]
        if len(names) > 1:
            names = [name for name in names if name not in literal]
        assert names, pattern
        used.update(names)
        if "None" in facts:  # a mapping of them
            continue
        wanted = {name: fields_of(tables()[name]) for name in names}
        assert all(fields <= facts for fields in wanted.values()), (pattern, wanted, facts)
        assert facts <= set[str]().union(*wanted.values()), (pattern, facts)
    assert used == tables().keys()


def fields_of(table: dict[str, Any]) -> set[str]:
    text = " ".join(table[part] for part in ("what", "why", "fix"))
    fields = (re.split(r"[.\[]", field)[0] for _, field, _, _ in string.Formatter().parse(text) if field)
    return {*fields} - {"settings"}


def test_each_code_has_a_meaning() -> None:
    """Each code has one line for the docs, and each finding a severity and texts in full."""
    assert all(meaning and not meaning.endswith(".") for _, meaning in meanings())
    for name, table in tables().items():
        assert table["severity"] in SEVERITIES, name
        assert table["what"], name
        assert table["why"], name


def test_a_finding() -> None:
    """A list is written with commas; without a fix of its own, its overrides are the fix."""
    found = finding("check.not-run.values", count=2, are="s are", unknown=["a", "b"])
    assert found.what == "2 settings are known to the shell alone: a, b"
    with pytest.raises(KeyError):
        finding("env.no-such-code")
    with pytest.raises(AssertionError):
        Finding("env.no-such-code", "error", "", "", "")
