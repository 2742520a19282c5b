"""What `raydebug try` prints at its end: the result, and the next commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raydebug.check.output import Tried, next_steps
from raydebug.check.stages import FAILED, PASSED, Outcome
from raydebug.findings import Finding

WELL = Tried("bash train.sh", [Outcome("env", PASSED, 0.1, 0.3)], 0, 61.4, None, cluster=True)


def refused(finding: Finding) -> Tried:
    """A try that a finding of stage `data` ended."""
    return replace(WELL, outcomes=[*WELL.outcomes, Outcome("data", FAILED, 1.0, 10.0, [finding])], code=None)


def test_well() -> None:
    """After a small run that ended well come the check and the run at full size."""
    assert list(next_steps(WELL)) == [
        "tried: the checks passed, the small run ended well in 61 s",
        "next: raydebug check -- bash train.sh",
        "      raydebug run -- bash train.sh",
        "      the same at its full size; `raydebug report` shows what the small run spent its time on",
    ]


AGAIN = "next: fix that and try again; stages that passed are not run twice"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        # Warnings about the run's numbers are counted in the result; they are printed above it.
        ({"warnings": 1}, "tried: the checks passed, the small run ended with 1 warning (above) in 61 s"),
        ({"warnings": 2}, "tried: the checks passed, the small run ended with 2 warnings (above) in 61 s"),
        # After a run on a cluster of its own: the command that keeps a cluster up.
        (
            {"cluster": False},
            "      raydebug up: a cluster that stays up saves the next try its start",
        ),
        # A run that failed without stopping is to be tried with post-mortem; one that could stop is to be fixed.
        ({"code": 1}, "tried: the checks passed, the small run failed with code 1 after 61 s"),
        ({"code": 1}, "next: raydebug try --debugger post-mortem -- bash train.sh"),
        ({"code": 1, "debugger": "post-mortem"}, AGAIN),
        # Forty overrides are not repeated.
        ({"command": "python train.py " + "x=1 " * 40}, "next: raydebug check -- COMMAND"),
    ],
)
def test_other_ends(changes: dict[str, Any], line: str) -> None:
    """The result of a try, and the next command, for each way in which it can end."""
    assert line in list(next_steps(replace(WELL, **changes)))


def test_failed_check() -> None:
    """A failed stage names `--fix` where a fix is a setting, and the user's hands where it is not."""
    setting = Finding("command.batch", "error", "9 rows", "they do not divide", "8", {"data.train_batch_size": "8"})
    lines = list(next_steps(refused(setting)))
    assert lines[0] == "tried: stage data failed; nothing was run"
    assert lines[1] == "next: raydebug check data --fix --profile debug -- bash train.sh"
    by_hand = Finding("data.file-missing", "error", "no file", "it is not there", "make it")
    assert list(next_steps(refused(by_hand)))[1] == AGAIN


def test_interrupted() -> None:
    """After Ctrl-C the output names no next command."""
    assert list(next_steps(replace(WELL, code=130))) == ["tried: interrupted"]
