"""Stage `train`: the command really trains two steps in the size of the profile `debug`, on a cluster as `run` does."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from raydebug import process
from raydebug.check import command
from raydebug.check.ask import ask
from raydebug.check.finding import Finding, error
from raydebug.check.stage import Checked
from raydebug.check.subject import Subject
from raydebug.joblog.errors import find_errors, judge_errors, last_words

BUDGET_S = 180.0
LIMIT_S = 3 * BUDGET_S
PLAN_BUDGET_S = 10.0
END_S = 40.0  # what `run` may take to end its job and its cluster
LOG_BYTES_MAX = 8 * 1024 * 1024
STEP = re.compile(r"\bstep:(\d+) - (.*)")  # verl 0.9.1 utils/logger/aggregate_logger.py, concat_dict_to_str
NOT_A_NUMBER = re.compile(r"([\w/@.-]+):(?:np\.\w+\()?(nan|-?inf)\b")
# Losses and gradients that are no numbers have spoilt the weights; other metrics may have nothing to divide by.
SPOILT = re.compile(r"loss|grad_norm|kl|entropy")


def check(subject: Subject) -> Checked:
    """Run the command small, and judge its log."""
    plan = _plan(subject)
    if "config_error" in plan:
        return Checked([command.refused(plan["config_error"], subject.overrides)])
    code, log = _run(subject, plan["gpus"])
    return Checked(judge(code, log, subject), tuple(plan["read"]))


def gpus_of(subject: Subject) -> int:
    """Return how many GPUs the command asks for in the size of the profile; 0 where its config cannot be read."""
    return int(_plan(subject).get("gpus", 0))


def _plan(subject: Subject) -> dict[str, Any]:
    return ask(subject, "plan", budget_s=PLAN_BUDGET_S, **{**subject.as_request(), "profile": "debug"})


def judge(code: int | None, log: str, subject: Subject) -> list[Finding]:
    """Return the findings about a run. Pure.

    Args:
        code: its exit code; None where it was ended for its time.
        log: what it printed.
        subject: whose it is.
    """
    steps = STEP.findall(log)
    again = f"raydebug run --profile debug --debugger post-mortem -- {shlex.join(subject.command)}"
    cause = judge_errors(find_errors("the log", log.splitlines())).first
    if code == 0 and steps:
        return _numbers(steps)
    if code == 0:
        return [
            error(
                "train.no-step",
                "the training ended well, and made no step",
                why=f"no line 'step:1 - ...' is in its log; it said last: {last_words(log)}",
                fix="trainer.total_epochs must be 1 or more, and the data hold a batch",
            )
        ]
    if code is None:
        return [
            error(
                "train.out-of-time",
                f"the training was ended after {LIMIT_S:.0f} s, {len(steps)} steps were made",
                why=f"it said last: {last_words(log)}" + (f"; first cause: {cause.title[:200]}" if cause else ""),
                fix=f"`{again}`, then `raydebug paused` or py-spy shows what it waits for",
            )
        ]
    what, where = (cause.title, cause.place) if cause else (last_words(log), "")
    return [
        error(
            "train.failed",
            f"the training fails after {len(steps)} steps: {what[:300]}",
            why=f"{where or 'its log'} says so; exit code {code}",
            fix=f"stop where it is raised: {again}",
        )
    ]


def _numbers(steps: list[tuple[str, str]]) -> list[Finding]:
    for number, metrics in steps:
        bad = [name for name, _ in NOT_A_NUMBER.findall(metrics) if SPOILT.search(name)]
        if bad:
            return [
                error(
                    "train.not-a-number",
                    f"step {number} has no number for {', '.join(bad[:4])}",
                    why="the weights are spoilt from then on; rewards that are nan or a learning rate too high do it",
                    fix="look at the rewards (trainer.rollout_data_dir=DIR writes them), or lower the rate",
                )
            ]
    return []


def _run(subject: Subject, gpus: int) -> tuple[int | None, str]:
    """Run the command as `raydebug run` does, on the running cluster or on one of its own, and return code and log."""
    cluster = subject.cluster
    where = ["--name", cluster.name] if cluster else ["--name", f"check-{os.getpid()}", "--gpus", str(gpus)]
    argv = [
        sys.executable,
        "-m",
        "raydebug",
        "run",
        *where,
        "--profile",
        "debug",
        "--debugger",
        "off",
        "--keep-watchdogs",
    ]
    with tempfile.TemporaryDirectory(prefix="raydebug-check-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            running = process.start(
                [*argv, "--", *subject.command], env=_environ(subject), output=output, cwd=subject.folder
            )
            try:
                code: int | None = running.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(running)
        text = log.read_bytes()
    return code, text[-LOG_BYTES_MAX:].decode(errors="replace")


def _environ(subject: Subject) -> dict[str, str]:
    """Return the environment of `raydebug run`: the caller's; RAY_DEBUG would clash with --debugger."""
    return {name: value for name, value in subject.caller.items() if not name.startswith("RAY_DEBUG")}


def _end(running: subprocess.Popen[bytes]) -> None:
    """End a run that goes on, as Ctrl-C does: it ends its job, and the cluster that it brought up."""
    deadline = time.monotonic() + END_S
    while running.poll() is None and time.monotonic() < deadline:
        running.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(10)
    if running.poll() is None:
        running.kill()
        running.wait()
