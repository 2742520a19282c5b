"""Makes docs/contributing/faults.md from docs/faults.toml, the tests' docstrings and bench/stock_faults.json."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "support"))

from fault_names import Proof, proofs  # noqa: E402

PAGE = ROOT / "docs" / "contributing" / "faults.md"
CASES = ROOT / "docs" / "faults.toml"
SEEN = ROOT / "bench" / "stock_faults.json"
SCOPE = [
    *(f"F{number}" for number in (*range(8, 33), 57, 58, 61, 62, 63)),
    *(f"S{number}" for number in (3, 4, *range(7, 11), 31)),
]
SOURCES = ("measured", "observed", "measured, observed", "not measured")
HEAD = """\
# Faults

Made by `python docs/generate.py` from docs/faults.toml, from the docstrings of the tests and from
[bench/stock_faults.json](../../bench/stock_faults.json).

These are faults during a pause: the task ends, a client or a network fails, or a peer sends invalid data. The cases
have the names of raydebug's requirements. Beside each case: the behaviour of stock Ray and debugpy
({stock}), and the sentences that raydebug's tests prove, with the tests.

Sources of the stock results: *measured* was taken by a program, without raydebug
({machine}, and busy: its times are not benchmarks); *observed*: by hand, with the same
versions; *not measured* means that neither source has a result.

For a case with a limit in seconds, a run of the tests notes the measured time beside the limit
(tests/support/fault_lines.py).

| case | what happens | stock Ray and debugpy | raydebug | tests |
|---|---|---|---|---|
"""


class Unproven(SystemExit):
    """A case has neither a test nor a reason, or its stock result has no source; the text names the case."""


def page() -> str:
    """Return the page.

    Raises:
        Unproven: a case in scope is incomplete.
    """
    cases = tomllib.loads(CASES.read_text(encoding="utf-8"))
    seen = json.loads(SEEN.read_text(encoding="utf-8"))
    tests: dict[str, list[Proof]] = {name: [] for name in SCOPE}
    for proof in proofs():
        for name in proof.cases:
            if name in tests:
                tests[name].append(proof)
    wrong = [word for name in SCOPE for word in lacking(name, cases.get(name), tests[name], seen["cases"])]
    wrong += [f"{name} is not in scope" for name in cases if name not in SCOPE]
    if wrong:
        raise Unproven("docs/faults.toml and the tests do not fit: " + "; ".join(wrong))
    machine = "{machine}, {cores} cores, Python {python}".format(**seen["machine"])
    stock = "Ray {ray} and debugpy {debugpy}".format(**seen["machine"])
    rows = [row(name, cases[name], tests[name]) for name in SCOPE]
    return HEAD.format(stock=stock, machine=machine) + "\n".join(rows) + "\n"


def lacking(name: str, case: dict[str, Any] | None, tests: list[Proof], seen: dict[str, Any]) -> list[str]:
    """Return the defects of a case."""
    if case is None:
        return [f"{name} is missing in docs/faults.toml"]
    wrong = [f"{name} has no '{key}'" for key in ("title", "stock", "source") if not case.get(key)]
    if not tests and not case.get("reason"):
        wrong.append(f"{name} has no test, and no 'reason' why not")
    if tests and case.get("reason"):
        wrong.append(f"{name} has a test now: remove its 'reason'")
    source = case.get("source", "")
    if source == "measured" and "not measured" in seen.get(name, {"not measured": "no such case"}):
        wrong.append(f"{name} is said to be measured, and bench/stock_faults.json has no result")
    if source not in SOURCES:
        wrong.append(f"{name} has an unknown source: {source!r}")
    return wrong


def row(name: str, case: dict[str, Any], tests: list[Proof]) -> str:
    """Return a case's row of the table."""
    shown = " ".join(case["stock"].split())
    stock = shown if case["source"] == "not measured" else f"{shown} *({case['source']})*"
    sentences = [_capital(proof.sentence) for proof in tests] or [f"No test: {case['reason']}"]
    sentences += [f"Not so: {' '.join(case['gap'].split())}"] if "gap" in case else []
    ids = [f"`{proof.test_id.removeprefix('tests/')}`" for proof in tests]
    return (
        " | ".join([f"| {name}", case["title"], _cell(stock), _cell("<br>".join(sentences)), "<br>".join(ids)]) + " |"
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
