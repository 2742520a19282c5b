"""Stage `train`: the command really trains two steps in the size of the profile `debug`, on a cluster as `run` does."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from raydebug import process
from raydebug.check import config as config_rules
from raydebug.check.target import StageResult, Target
from raydebug.diagnose.answer import headline, origin
from raydebug.diagnose.cause import diagnose
from raydebug.diagnose.inputs import read_text
from raydebug.diagnose.read import last_words
from raydebug.errors import RaydebugError
from raydebug.findings import Finding, finding, is_code
from raydebug.process import SAFE_PATH
from raydebug.protocol.secrets import without_secret_arguments
from raydebug.runs.folder import load_run
from raydebug.runs.record import Run
from raydebug.trainers.trainer import StepMetrics

BUDGET_S = 180.0
LIMIT_S = 3 * BUDGET_S
END_S = 40.0  # what `run` may take to end its job and its cluster
LOG_BYTES_MAX = 8 * 1024 * 1024
# Losses and gradients that are no numbers have spoilt the weights; other metrics may have nothing to divide by.
SPOILT = re.compile(r"loss|grad_norm|kl|entropy")
JOB = re.compile(r"^job (raydebug-\S+): ", re.MULTILINE)  # cli/launch.py, when the job is submitted
# What `raydebug run` prints last when it refuses or ends the job itself (errors.py).
REFUSED = re.compile(r"^error: (.+)\ncause: (.+)\nfix: (.+)\s*\Z", re.MULTILINE)

NOT_RECORDED = Run()


def check(target: Target) -> StageResult:
    """Run the command small, and judge its log."""
    planned = config_rules.plan(target, "debug", with_files=True)
    if refused := config_rules.refused(target, planned):
        return StageResult(refused)
    code, log = _run(target)
    return StageResult(judge(code, log, target, recorded_run(log)), tuple(planned["read"]))


def judge(code: int | None, log: str, target: Target, run: Run = NOT_RECORDED) -> list[Finding]:
    """Return the findings about a run. Pure.

    Args:
        code: its exit code; None where it was ended for its time.
        log: what it printed.
        target: whose it is.
        run: its record, with the diagnosis and what its metrics show.
    """
    assert target.program is not None
    lines = log.splitlines()
    steps = [step for line in lines if (step := target.program.trainer.step_of(line)) is not None]
    shown = shlex.join(without_secret_arguments(target.command))
    again = f"raydebug run --profile debug --debugger post-mortem -- {shown}"
    recorded, keys = run.findings, target.checks.keys
    if code == 0 and steps:
        return _not_a_number(steps, target) or [
            Finding(row["code"], row["severity"], row["what"], row["why"], row["fix"])
            for row in recorded
            if is_code(row["code"])
        ]
    if code == 0:
        return [finding("train.no-step", last=last_words(log), epochs=keys.get("epochs", "the number of steps"))]
    if code is None:
        cause = first_error(log, run)
        last = last_words(log) + (f"; first cause: {''.join(headline(cause))[:200]}" if cause else "")
        return [finding("train.out-of-time", limit_s=LIMIT_S, count=len(steps), last=last, again=again)]
    if refused := REFUSED.search(log):
        return [finding("train.not-run", refused=refused, fix=refused[3].strip())]
    failed = f"the training fails after {len(steps)} steps"
    if diagnosis := next((row for row in recorded if row.get("evidence")), None):
        what = f"{failed}: {diagnosis['what']} ({diagnosis['code']})"
        why = "; ".join(filter(None, (diagnosis["why"], diagnosis.get("evidence"))))
        return [finding("train.failed.diagnosed", what=what, why=why, diagnosis=diagnosis)]
    cause = first_error(log, run)
    what, place = ("".join(headline(cause)), origin(cause)) if cause else (last_words(log), "")
    return [finding("train.failed.named", failed=failed, what=what, place=place, code=code, again=again)]


def _not_a_number(steps: list[StepMetrics], target: Target) -> list[Finding]:
    for step in steps:
        bad = [name for name, value in step["metrics"].items() if not math.isfinite(value) and SPOILT.search(name)]
        if bad:
            key = target.checks.keys.get("rollouts_to")
            written = f" ({key}=DIR writes them)" if key else ""
            return [finding("train.not-a-number", step=step, metrics=bad[:4], written=written)]
    return []


def recorded_run(log: str) -> Run:
    """Return the record that `raydebug run` has left, or NOT_RECORDED."""
    started = JOB.search(log)
    try:
        return NOT_RECORDED if started is None else load_run(started[1])
    except RaydebugError:
        return NOT_RECORDED


def first_error(log: str, run: Run) -> Mapping[str, str] | None:
    """Return what `run` has recorded as the first error, else what its output says; None if nothing failed."""
    if run.first_error is not None:
        return run.first_error
    first = diagnose(read_text(log, "the log")).first
    return None if first is None else first.as_first_error()


def _run(target: Target) -> tuple[int | None, str]:
    """Run the command as `raydebug run` does, on the running cluster or on one of its own, and return code and log."""
    cluster = target.cluster
    name = cluster.name if cluster else f"check-{os.getpid()}"
    argv = [sys.executable, SAFE_PATH, "-m", "raydebug", "run", "--name", name, "--profile", "debug"]
    argv += ["--debugger", "off", "--keep-watchdogs", "--", *target.command]
    with tempfile.TemporaryDirectory(prefix="raydebug-check-") as folder:
        log = Path(folder) / "log"
        # RAY_DEBUG would clash with --debugger.
        environ = {name: value for name, value in target.caller.items() if not name.startswith("RAY_DEBUG")}
        with log.open("wb") as output:
            running = process.start(argv, env=environ, output=output, cwd=target.folder)
            try:
                code: int | None = running.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(running)
        text = log.read_bytes()
    return code, text[-LOG_BYTES_MAX:].decode(errors="replace")


def _end(running: subprocess.Popen[bytes]) -> None:
    """End a running `raydebug run` as Ctrl-C does: it stops its job and the cluster that it started."""
    deadline = time.monotonic() + END_S
    while running.poll() is None and time.monotonic() < deadline:
        running.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(10)
    if running.poll() is None:
        running.kill()
        running.wait()
