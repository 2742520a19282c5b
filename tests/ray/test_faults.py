"""Faults that end a paused task, and many simultaneous pauses, on a real cluster; F-numbers name the faults."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

from environments import without
from raydebug.cluster.state import Cluster
from runs import RAYDEBUG, Run, raydebug, wait_for

pytestmark = pytest.mark.timeout(120)

PROMPT = r"\(raydebug[^)]*\)"
TOLD_WITHIN_S = 2.0
SLOW_S = 20.0  # beside other tests; what is wanted is noted beside what was measured


@pytest.fixture
def prompt(cluster: Cluster) -> Iterator[Callable[[str], pexpect.spawn]]:
    """Open `raydebug attach ID` in a terminal and wait for its prompt."""
    opened: list[pexpect.spawn] = []

    def open_prompt(target: str) -> pexpect.spawn:
        plain = {"TERM": "xterm", "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1"}
        argv = ["attach", target, "--name", cluster.name]
        opened.append(pexpect.spawn(str(RAYDEBUG), argv, env={**os.environ, **plain}, encoding="utf-8", timeout=30))
        opened[-1].expect(PROMPT)
        return opened[-1]

    yield open_prompt
    for one in opened:
        one.close(force=True)


def returns_to_the_shell(child: pexpect.spawn) -> float:
    """Wait for the end of a session that lost its process; return the elapsed time."""
    begin = time.monotonic()
    child.expect(r"error: the session ended: (process \d+ is gone|pause \d+ is over)", timeout=20)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 4
    return time.monotonic() - begin


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param("cancel", "TaskCancelledError", id="F8"),
        pytest.param("cancel_by_force", "TaskCancelledError", id="F8-force", marks=pytest.mark.long),
        pytest.param("kill", "ActorDiedError", id="F9"),
    ],
)
def test_ended_while_paused(run, prompt, took, tmp_path: Path, fault: str, error: str) -> None:
    """F8, F9: the prompt of a cancelled task, or of a killed actor, ends within 2 s; the driver gets Ray's error."""
    job: Run = run("--", "python", "faults.py", fault, str(tmp_path / "strike"))
    (pause,) = job.pauses(1)
    child = prompt(pause["id"])
    (tmp_path / "strike").touch()
    span = returns_to_the_shell(child)
    took("the prompt ended after", span, TOLD_WITHIN_S)
    assert span <= SLOW_S
    assert job.listed() == []
    assert error in job.end().partition("failed as it should: ")[2].partition("\n")[0]


def by_ctrl_c(job: Run) -> None:
    job.process.send_signal(signal.SIGINT)


def by_ray_job_stop(job: Run) -> None:
    """Stop a job with Ray's own command, which waits until it has ended."""
    (job_id,) = re.findall(r"^job (\S+): ", job.text, re.MULTILINE)
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(job.cluster.token_file)}
    argv = [sys.executable, "-m", "ray.scripts.scripts", "job", "stop", "--no-wait", job_id]
    subprocess.run([*argv, "--address", job.cluster.dashboard], env=environment, check=True, timeout=60, text=True,
                   stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip


@pytest.mark.parametrize("stop", [by_ctrl_c, by_ray_job_stop])
def test_job_stopped_while_paused(run, prompt, took, dashboard, stop: Callable[[Run], None]) -> None:
    """F10: when a job with two paused tasks is stopped, both prompts end with exit code 4, and no worker is left."""
    job: Run = run("--", "python", "faults.py", "stop", "-")
    first, second = job.pauses(2)
    children = [prompt(first["id"]), prompt(second["id"])]
    stop(job)
    for child in children:
        span = returns_to_the_shell(child)
        took("a prompt ended after", span, TOLD_WITHIN_S)
        assert span <= SLOW_S
    assert job.listed() == []
    wait_for(lambda: dashboard.paused_workers() == [], "no paused worker")
    for pause in (first, second):
        wait_for(lambda pid=pause["pid"]: not _alive(pid), "the end of the workers")


def test_worker_without_debugpy(run, tmp_path: Path) -> None:
    """F16: a task in a worker without debugpy runs past its breakpoints, with one warning."""
    python = without(tmp_path / "bare", "debugpy")
    said = run("--", "python", "other_python.py", python).end()
    assert f"went on: 41 {python}" in said
    assert said.count("not paused: debugpy cannot be loaded (No module named 'debugpy')") == 1
    assert "Ray Debugpy Debugger will not work" not in said, "Ray's own warning, one for each breakpoint that is passed"


@pytest.mark.long
def test_s7_worker_of_another_python(run, tmp_path: Path) -> None:
    """S7: a worker without raydebug in its environment pauses like any other: listed, without an adapter of Ray."""
    python = without(tmp_path / "bare", "raydebug")
    (found,) = (tmp_path / "bare").rglob("raydebug.pth")
    found.unlink()
    job: Run = run("--", "python", "other_python.py", python)
    for _ in range(3):
        (pause,) = job.pauses(1)
        worker = psutil.Process(pause["pid"])
        assert worker.children(recursive=True) == [], "debugpy's adapter, which listens"
        assert "40" in job.attach(pause["id"], "p x", "c")
    assert f"went on: 41 {python}" in job.end()


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_attempts_of_a_retried_task(run, cluster: Cluster) -> None:
    """F11: a task that crashes under post-mortem and is retried is listed twice, the second time with its attempt."""
    job: Run = run("--debugger", "post-mortem", "--", "python", "faults.py", "retry", "-")
    (first,) = job.pauses(1)
    assert (first["kind"], first["task"], first["attempt"]) == ("post-mortem", "retried", 1)
    assert "attempt" not in raydebug("paused", "--name", cluster.name).stdout.replace("attempt at 41", "")
    job.attach(first["id"], "c")
    wait_for(lambda: [p["id"] for p in job.listed()] not in ([], [first["id"]]), "the second attempt", run=job)
    (second,) = job.pauses(1)
    assert second["id"] != first["id"]
    assert (second["task_id"], second["attempt"]) == (first["task_id"], 2)
    assert f"retried attempt 2 pid {second['pid']}" in raydebug("paused", "--name", cluster.name).stdout
    opened = raydebug("attach", second["id"], "--name", cluster.name)
    assert "task retried, attempt 2, pid" in opened.stdout, opened
    job.attach(second["id"], "c")
    assert "failed as it should: RayTaskError(ValueError)" in job.end()


@pytest.mark.long
def test_two_threads_of_one_worker(run) -> None:
    """F12: of two pauses in one worker, steps and evaluations in one do not change the other."""
    job: Run = run("--", "python", "cases.py", "two_threads")
    first, second = job.pauses(2)
    assert first["pid"] == second["pid"]
    assert "return secret" in job.attach(first["id"], "n", "p secret")
    (left,) = [pause for pause in job.pauses(2) if pause["id"] == second["id"]]
    assert left["line"] == second["line"]
    job.attach("all", "@* c")
    assert "done: two_threads" in job.end()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_32_at_one_prompt(run, cluster: Cluster) -> None:
    """F13: 32 simultaneous pauses are all listed, each can be attached, and one prompt shows the values of all."""
    job: Run = run("--", "python", "cases.py", "many")
    pauses = job.pauses(32, timeout_s=240)
    assert len({pause["pid"] for pause in pauses}) == 32
    done = raydebug("attach", "all", "--name", cluster.name, "-x", "diff kind_of(1)", "-x", "p 1")
    assert done.returncode == 0
    assert done.stdout.count("NameError") == 1, "32 equal answers are one line"
    done = raydebug("attach", "all", "--name", cluster.name, "-x", "@* p secret")
    assert done.returncode == 0
    values = sorted(int(line.rpartition(" ")[2]) for line in done.stdout.splitlines())
    assert values == list(range(1, 33))
    for pause in pauses[:4]:
        job.attach(pause["id"], "p secret", "c")
    assert len(job.pauses(28)) == 28
    done = raydebug("attach", "all", "--name", cluster.name, "-x", "@* c")
    assert done.returncode == 0
    assert "done: many" in job.end()
