"""The commands that `next:` lines of stacks, run, diagnose, check and up name: the command line takes each of them."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from test_next_step import WELL, refused
from test_stack_verdicts import IDLE, RAY, collective, frame, process
from test_wait_graph import STUCK, actor, asks, driver, task

from raydebug import render
from raydebug.check.output import next_steps
from raydebug.cli.app import whole_app
from raydebug.cluster.kind import Kind
from raydebug.cluster.kinds import ByHandKind
from raydebug.diagnose import run_diagnosis
from raydebug.diagnose.answer import Related
from raydebug.diagnose.cause import diagnose
from raydebug.diagnose.inputs import read_text
from raydebug.findings import Finding
from raydebug.protocol.snapshot import SUFFIX
from raydebug.runs import folder
from raydebug.runs.folder import SNAPSHOTS
from raydebug.stacks.graph import QUEUED
from raydebug.stacks.verdict import judge
from raydebug.stacks.wait_kinds import LOGS

OTHERS = ("kill -CONT ", "py-spy dump ", "docker compose ")  # programs of other projects
_PROSE = re.compile(r"  \(.*\)$|: .*$")


def parse(command: str) -> None:
    """Parse a command as the program does, without doing anything."""
    assert command.startswith(("raydebug ", *OTHERS)), command
    if command.startswith(OTHERS):
        return
    group: Any = typer.main.get_command(whole_app())
    context = group.make_context("raydebug", shlex.split(command)[1:])
    while hasattr(group, "commands"):
        name, group, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        context = group.make_context(name, rest, parent=context)


@pytest.mark.parametrize("wrong", ["diagnose run-1 --pick 2", "stacks --bogus", "stacks --locals", "nothing"])
def test_the_parser_refuses(wrong: str) -> None:
    """A command with an option or a verb that is not there is no next command."""
    with pytest.raises(Exception, match=r"No such|requires an argument"):
        parse(f"raydebug {wrong}")


def commands(lines: Iterable[str]) -> Iterator[str]:
    """Yield the commands of `next:` lines, and of those indented below one."""
    for line in lines:
        text = line.removeprefix("next: ")
        if text.strip().startswith(("raydebug ", *OTHERS)) and (text != line or line.startswith("      ")):
            yield _PROSE.sub("", text.strip())


def silent(**facts: Any) -> Any:
    """Return a rank that does not answer."""
    return process(3, state="silent", actor_id="a3", **{"threads": [], **facts})


def asking(name: str, pid: int, wanted: str) -> Any:
    frames = frame(RAY, 1000, "Worker.get_objects"), frame(RAY, 3000, "get"), frame("/job/actors.py", 7, "ask")
    return actor(name, pid, *frames, thread={"objects": [wanted * 28]})


GIL = [{"name": "MainThread", "frames": [frame("/job/c.py", 5, "hold")], "gil": True}]
TRAINS = [task("a3", "Trainer.train", "a3")]
WAITING = [collective(rank) for rank in (0, 1, 3)]
LOOKS: dict[str, tuple[list[Any], list[Any]]] = {
    "network": ([driver("ab"), asks("Reward", 9)], [task("ab", "Reward.score", "Reward")]),
    "lock": ([driver("ab"), actor("Worker", 9, *STUCK)], [task("ab", "Worker.train", "Worker")]),
    "unknown": ([process(None, frame("/job/t.py", 3, "spin"), role="driver", pid=8, is_driver=True)], []),
    "paused": ([{**process(0, *STUCK), "pauses": ["p7"]}], []),
    "mismatch": ([collective(0), collective(1, "broadcast"), collective(2), collective(3)], []),
    "missing": ([*WAITING, process(2, frame("/job/data.py", 12, "load"))], []),
    "not there": (WAITING, []),
    "all inside": ([collective(rank) for rank in range(4)], []),
    "gone task": ([driver("ab")], [task("ab", "work", None, pid=55, node_id="n")]),
    "unplaced": ([driver("ab")], [task("ab", "work", None, "PENDING_NODE_ASSIGNMENT")]),
    "gone": ([driver("a3"), silent(gone=True)], TRAINS),
    "stopped": ([driver("a3"), silent(stopped=True)], TRAINS),
    "gil": ([driver("a3"), silent(threads=GIL)], TRAINS),
    "unread": ([driver("a3"), silent(unread="no right; give it")], TRAINS),
    "deadlock": ([asking("A", 9, "cd"), asking("B", 10, "ab")],
                 [task(code, f"{name}.answer", name, QUEUED[0]) for code, name in (("ab", "A"), ("cd", "B"))]),
    "idle": ([process(0, *IDLE)], []),
}  # fmt: skip


@pytest.mark.parametrize("cluster", ["default", "blue"])
@pytest.mark.parametrize("how", LOOKS)
def test_of_a_verdict(how: str, cluster: str) -> None:
    """What `stacks` and `run --hang-after` say to do next; the name of a cluster goes to commands of raydebug alone."""
    look, tasks = LOOKS[how]
    verdict = judge([look, look], tasks)
    if verdict["next"] is None:
        assert how == "idle"
        return
    render.suggest_for(cluster)
    try:
        command = render.suggested(f"next: {verdict['next']}").removeprefix("next: ")
    finally:
        render.suggest_for("default")
    is_ours = command.startswith("raydebug ") and command != LOGS
    assert (" --name blue" in command) == (cluster == "blue" and is_ours), command
    parse(command)


def test_stopped_process_is_woken() -> None:
    """The command for a stopped process wakes it."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        child.send_signal(signal.SIGSTOP)
        look = [driver("a3"), silent(stopped=True, pid=child.pid)]
        subprocess.run(shlex.split(judge([look, look], TRAINS)["next"] or ""), check=True)
        state = Path(f"/proc/{child.pid}/stat")
        while state.read_text().rpartition(") ")[2][0] == "T":
            time.sleep(0.01)
        child.kill()


@pytest.mark.parametrize("snapshot", ["raydebug open raydebug-101500-ab12", "raydebug open run-1 --pick 2", ""])
def test_of_a_failed_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snapshot: str) -> None:
    """What `run` says to do next after a failure: with a fix, and with a snapshot of the crash."""
    monkeypatch.setattr(folder, "runs_dir", lambda: tmp_path)
    snapshots = tmp_path / "raydebug-101500-ab12" / SNAPSHOTS
    snapshots.mkdir(parents=True)
    (snapshots / f"{'crash' if snapshot else 'none'}{SUFFIX if snapshot else ''}").touch()
    error = 'Traceback (most recent call last):\n  File "/w/t.py", line 1, in f\nValueError: odd\n'
    answer = diagnose(read_text(error, "job.log"))
    answer.diagnoses[0].command = "python t.py"
    answer.related += [Related("snapshot", snapshot, "ValueError")] if snapshot else []
    monkeypatch.setattr(run_diagnosis, "find_run", lambda _: None)
    monkeypatch.setattr(run_diagnosis, "diagnose_job", lambda *_: (answer, []))
    lines, _, _ = run_diagnosis.explain_failure(None, "raydebug-101500-ab12")  # type: ignore[arg-type]
    found = list(commands(lines))
    assert len(found) == 2, lines
    for command in found:
        parse(command)


TRIED = [
    WELL,
    replace(WELL, code=1),
    replace(WELL, code=1, cluster=False),
    refused(Finding("command.batch", "error", "9 rows", "they do not divide", "8", {"data.train_batch_size": "8"})),
]


@pytest.mark.parametrize("tried", TRIED, ids=["well", "failed", "failed on its own cluster", "refused"])
def test_of_a_try(tried: Any) -> None:
    """What `check` and `try` say to do next."""
    found = list(commands(next_steps(tried)))
    assert found
    for command in found:
        parse(command)


@pytest.mark.parametrize("kind", [Kind, ByHandKind])
def test_of_up(kind: type[Kind]) -> None:
    """What `up` says to do next."""
    parse(kind.next_step)
