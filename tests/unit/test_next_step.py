"""What `raydebug try` prints at its end: the result, and the next commands."""

from __future__ import annotations

from dataclasses import replace

from raydebug.check.output import Tried, next_steps
from raydebug.check.stages import FAILED, PASSED, Outcome
from raydebug.findings import Finding

WELL = Tried("bash train.sh", [Outcome("env", PASSED, 0.1, 0.3)], 0, 61.4, None, cluster=True, name="default")


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


def test_warnings_of_the_run() -> None:
    """Warnings about the run's numbers are counted in the result; they are printed above it."""
    first, *_ = next_steps(replace(WELL, warnings=1))
    assert first == "tried: the checks passed, the small run ended with 1 warning (above) in 61 s"
    first, *_ = next_steps(replace(WELL, warnings=2))
    assert "ended with 2 warnings (above) in" in first


def test_cluster_of_its_own() -> None:
    """After a run on a cluster of its own, the output names the command that keeps a cluster up."""
    *_, last = next_steps(replace(WELL, cluster=False, name="blue"))
    assert last == "      raydebug up --name blue: a cluster that stays up saves the next try its start"


def test_failed_run() -> None:
    """A run that failed without stopping is to be tried with post-mortem; one that could stop is to be fixed."""
    lines = list(next_steps(replace(WELL, code=1)))
    assert lines[0] == "tried: the checks passed, the small run failed with code 1 after 61 s"
    assert lines[1] == "next: raydebug try --debugger post-mortem -- bash train.sh"
    lines = list(next_steps(replace(WELL, code=1, debugger="post-mortem")))
    assert lines[1] == "next: fix that and try again; stages that passed are not run twice"


def test_failed_check() -> None:
    """A failed stage names `--fix` where a fix is a setting, and the user's hands where it is not."""
    setting = Finding("command.batch", "error", "9 rows", "they do not divide", "8", {"data.train_batch_size": "8"})
    lines = list(next_steps(refused(setting)))
    assert lines[0] == "tried: stage data failed; nothing was run"
    assert lines[1] == "next: raydebug check data --fix --profile debug -- bash train.sh"
    by_hand = Finding("data.file-missing", "error", "no file", "it is not there", "make it")
    assert list(next_steps(refused(by_hand)))[1] == "next: fix that and try again; stages that passed are not run twice"


def test_long_command_is_named() -> None:
    """Forty overrides are not repeated."""
    lines = list(next_steps(replace(WELL, command="python train.py " + "x=1 " * 40)))
    assert lines[1] == "next: raydebug check -- COMMAND"


def test_interrupted() -> None:
    """After Ctrl-C the output names no next command."""
    assert list(next_steps(replace(WELL, code=130))) == ["tried: interrupted"]
