"""What a job says of itself reaches no terminal as control characters, and no suggested command as words of a shell."""

from __future__ import annotations

import itertools
import json
import shlex
import unicodedata
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from raydebug import cli, render
from raydebug.cli import up
from raydebug.client import gateway_client
from raydebug.cluster import find
from raydebug.cluster.dashboard import Dashboard, JobInfo
from raydebug.cluster.state import Cluster, Remote
from raydebug.console.commands import ranks
from raydebug.console.frames import is_own_source
from raydebug.console.view import heading
from raydebug.errors import RaydebugError
from raydebug.jobs import follow
from raydebug.protocol.listings import ListedBreakpoint, ListedPause, ListedProcess, ListedStacks
from raydebug.protocol.questions import CollectiveTimes, ProcessMemory, TrainingWords
from raydebug.protocol.records import Comparison, Id, PauseRecord
from raydebug.runs.folder import RunFolder
from raydebug.runs.record import Run
from raydebug.worker import frames

EVIL = "x\x1b]0;PWN\x07\x1b[31m\u202e\r\x9b\n; touch MARK #"


def hostile(hint: Any, *, ids: str = EVIL) -> Any:
    """Return a value of a type whose every text is hostile.

    Args:
        hint: a TypedDict or the type of a field.
        ids: of pauses, where a reader checks their form.
    """
    if is_typeddict(hint):
        return {name: hostile(one, ids=ids) for name, one in get_type_hints(hint, include_extras=True).items()}
    if hint in (Id, Comparison):
        return ids if hint is Id else [">=", 1]
    if get_origin(hint) in (Annotated, NotRequired):
        return hostile(get_args(hint)[0], ids=ids)
    if get_origin(hint) in (Union, UnionType):
        return hostile(next(one for one in get_args(hint) if one is not NoneType), ids=ids)
    if get_origin(hint) is list:
        return [hostile(get_args(hint)[0], ids=ids)]
    return EVIL if hint is str else {int: 7, float: 1.5, bool: True}.get(hint, {})


def check(shown: str, least: int = 1) -> None:
    """Fail on characters that a terminal obeys, and on a suggested command that has words of EVIL."""
    assert len(shown) >= least
    odd = {c for c in shown if c not in "\n\t" and (unicodedata.category(c) == "Cc" or c in "\u202e")}
    assert odd == set()
    commands = [line.partition("next: ")[2] for line in shown.splitlines() if "next: " in line]
    assert [line for line in commands if "touch" in shlex.split(line)] == []


ANSWERS = {"training": TrainingWords, "collective-times": CollectiveTimes, "memory": ProcessMemory}


def answered(answer: Any) -> dict[str, Any]:
    """Return the answer of one process to a question."""
    process = {"process": hostile(ListedProcess), "instance": hostile(ListedStacks)["instance"], "state": "answered"}
    return {"processes": [{**process, "answer": hostile(answer), "problem": None}]}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster whose gateway and dashboard give hostile answers."""
    (tmp_path / "token").write_text("t")
    remote = Remote("http://127.0.0.1:1", "127.0.0.1:1", str(tmp_path / "token"))
    made = Cluster("here", "1", "joined", tmp_path, tmp_path, "", {}, 1, 0, "breakpoint", "core", 0.0, remote=remote)
    pause = {**hostile(ListedPause), "state": "waiting"}
    stacks = hostile(ListedStacks)
    frames = {thread["digest"]: thread.pop("frames") for thread in stacks["threads"]}
    answers = {
        "/pauses": {"pauses": [pause, {**pause, "state": EVIL}]},
        "/processes": {"processes": [hostile(ListedProcess), {**hostile(ListedProcess), "pauses": []}]},
        "/stacks": {"processes": [{**stacks, "state": "answered"}], "frames": frames},
        "/breaks": {"breaks": [hostile(ListedBreakpoint)]},
        **{f"/processes/{name}": answered(answer) for name, answer in ANSWERS.items()},
    }
    job = {**hostile(JobInfo), "status": "RUNNING", "runtime_env": {"env_vars": {"RAY_DEBUG": EVIL}}}
    monkeypatch.setattr(find, "load_cluster", lambda _: made)
    monkeypatch.setattr(gateway_client, "request", lambda _, __, path, *rest, **more: answers[path.partition("?")[0]])
    monkeypatch.setattr(Dashboard, "jobs", lambda _: [job])
    monkeypatch.setattr(Dashboard, "unfinished_tasks", lambda _: [])
    return made


VERBS = (
    ["paused"], ["paused", "--json"], ["ps", "--processes"], ["ps", "--processes", "--json"], ["break", "list"],
    ["break", "list", "--json"], ["stacks"], ["stacks", "--all"], ["stacks", "--json"], ["job", "list"],
    ["job", "list", "--json"], ["job", "stop", "nope"],
    ["memory"], ["memory", "--json"],
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_verbs(verb: list[str], cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """No verb prints a control character of a listing, and none suggests a command that runs its text."""
    try:
        cli._call(verb)
    except RaydebugError as failure:
        render.error(failure)
    shown = capsys.readouterr()
    check(shown.out + shown.err)
    assert "PWN" in shown.out + shown.err


def test_follower_and_debugger(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of `run` about a pause, heading and ranks of the debugger, show no control character of any field."""
    follow._announce(hostile(ListedPause))
    pause: Any = {**hostile(PauseRecord), "since_s": 1.0}
    text = heading(pause, exception=EVIL, function=EVIL, place=EVIL, depth="1", paint=render.Paint())
    frame = SimpleNamespace(path=EVIL, line=1, function=EVIL)
    stack = SimpleNamespace(frame=frame)
    session: Any = SimpleNamespace(
        pause=pause, stack=stack, running=False, post_mortem=False, stop={}, paused_for_s=1.0
    )
    row = ranks._row(SimpleNamespace(session=session, label="rank 0"), current=True)  # type: ignore[arg-type]
    check(capsys.readouterr().err + text + ranks.table([row]), least=100)


def test_errors_and_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files and runs are quoted and without control characters, in `report` and `open`."""
    evil = EVIL.replace("/", "")
    RunFolder("job").write(Run(status="run", id=evil, command=[evil, evil]))
    cli._call(["report", "--list"])
    cli._call(["report", "--list", "--json"])
    for words in (["open", "--list", evil], ["open", evil], ["report", evil], ["diagnose", evil]):
        with pytest.raises(RaydebugError) as refused:
            cli._call(words)
        render.error(refused.value)
    shown = capsys.readouterr()
    check(shown.out + shown.err, least=100)


def saved(**changes: Any) -> dict[str, Any]:
    """Return saved stacks of a process that stopped."""
    one = {**hostile(ListedStacks, ids="3"), "state": "silent", **changes}
    return {"version": 1, "processes": [one], "tasks": []}


@pytest.mark.parametrize(
    "changes",
    [{"pauses": []}, {}, {"pauses": [], "stopped": False}, {"pauses": [], "stopped": False, "state": "answered"}],
    ids=("stopped", "paused", "silent", "answered"),
)
def test_saved_stacks(changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stacks that somebody else has saved print no control character, in each verdict."""
    path = tmp_path / "stacks.json"
    path.write_text(json.dumps(saved(**changes)))
    for options in ([], ["--all"], ["--json"]):
        cli._call(["stacks", "--from", str(path), *options])
    shown = capsys.readouterr()
    check(shown.out + shown.err, least=100)


@pytest.mark.parametrize("changes", [{"pid": "1; id"}, {"pauses": ["1; id"]}, {"role": 5}, {"threads": "x"}], ids=str)
def test_saved_stacks_of_another_form(changes: dict[str, Any], tmp_path: Path) -> None:
    """Saved stacks whose ids are no ids, or whose fields have other types, are refused."""
    path = tmp_path / "stacks.json"
    path.write_text(json.dumps(saved(**changes)))
    with pytest.raises(RaydebugError, match="this file has no stacks") as refused:
        cli._call(["stacks", "--from", str(path)])
    assert "; id" not in str(refused.value)


def test_stacks_read_no_file_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A frame shows the source line that its process sent, and no line of a file that it names."""
    (tmp_path / "keys.py").write_text("planted = 'line of the host'\n")
    frames = [{"file": str(tmp_path / "keys.py"), "line": 1, "function": "f"},
              {"file": "/job/train.py", "line": 2, "function": "g", "text": "time.sleep(1)"}]  # fmt: skip
    threads = [{"name": "MainThread", "frames": frames}]
    (tmp_path / "s.json").write_text(json.dumps(saved(pauses=[], stopped=False, state="answered", threads=threads)))
    for options in ([], ["--all"], ["--json"]):
        cli._call(["stacks", "--from", str(tmp_path / "s.json"), *options])
    shown = capsys.readouterr().out
    assert "line of the host" not in shown
    assert "    /job/train.py:2 g    time.sleep(1)" in shown


def test_source_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process reads source lines of regular files only; a debugger on the host those of its own folder only."""
    import os

    (tmp_path / "train.py").write_text("def f():\n    login(password='abcdef')\n")
    os.mkfifo(tmp_path / "pipe.py")
    assert frames.line_at(str(tmp_path / "train.py"), 2) == "login(password='(hidden)')"
    found = [frames.lines_of(one) for one in ("/dev/zero", str(tmp_path / "pipe.py"), str(tmp_path), "no\0file")]
    assert found == [[], [], [], []]
    assert not is_own_source(str(tmp_path / "train.py"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    named = ("train.py", "link.py", "../x.py", ".env", "/etc/passwd")
    assert [is_own_source(str(tmp_path / one)) for one in named] == [True, False, False, False, False]


@pytest.mark.parametrize(("count", "says"), [(1, "1 pause waits; it resumes"), (2, "2 pauses wait; they resume")])
def test_pauses_that_down_leaves(count: int, says: str, cluster: Cluster, monkeypatch, capsys) -> None:
    """`down` of a cluster that runs on says how many pauses wait there."""
    monkeypatch.setattr(gateway_client, "fetch_pauses", lambda _: [{}] * count)
    up._name_pauses(cluster)
    assert capsys.readouterr().err == f"note: {says} after RAYDEBUG_PATIENCE_S (3600 s) without a gateway\n"


def test_command_words() -> None:
    """A suggested command is quoted as a shell needs it, and stays on one line."""
    assert render.command("raydebug", "open", "a b") == "raydebug open 'a b'"
    assert render.command("raydebug", "open", "x\n\x1b;") == "raydebug open 'x\\x0a\\x1b;'"
    assert len(list(itertools.chain(render.command("a").splitlines()))) == 1
