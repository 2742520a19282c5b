"""Failures made with the real programs (tests/failures): `raydebug diagnose` names what each log shows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from raydebug.diagnose.answer import FAILURE, NO_FAILURE, Answer
from raydebug.diagnose.cause import diagnose
from raydebug.diagnose.inputs import read_words

FAILURES = Path(__file__).parent.parent / "failures"
CASES = tomllib.loads((FAILURES / "cases.toml").read_text(encoding="utf-8"))
HEALTHY = "none"


def logs_of(name: str) -> list[Path]:
    """Return the log of a case, or the folder of its logs."""
    return [path for path in (FAILURES / "logs").glob(f"{name}*") if path.name.partition(".")[0] == name]


def say(name: str) -> Answer:
    """Return what the rules say of a case."""
    return diagnose(read_words([str(path) for path in logs_of(name)], "default").lines)


def test_all_are_recorded() -> None:
    """Each case has its log, and each log its case."""
    assert [name for name in CASES if len(logs_of(name)) != 1] == []
    assert {path.name.partition(".")[0] for path in (FAILURES / "logs").iterdir()} == set(CASES)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["class"] != HEALTHY])
def test_failure(name: str) -> None:
    """The first diagnosis is the class of the failure, and of several processes it names the one that failed."""
    case, answer = CASES[name], say(name)
    assert answer.status == FAILURE, answer
    first = answer.diagnoses[0]
    assert first.name in (case["class"], *case.get("also", ())), answer
    assert re.search(case.get("process", ""), first.process), first


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["class"] == HEALTHY])
def test_healthy(name: str) -> None:
    """A run that ends well is no failure."""
    assert say(name).status == NO_FAILURE, say(name)
