"""What the command line does when its output, its narration or its input fails; and JSON, wherever it is asked for."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import runs
from ray_dashboard import JOB, RayDashboard
from raydebug.cli import main
from raydebug.cli.app import whole_app

RAYDEBUG = f"{sys.executable} -m raydebug"
PRINTING = [f"job logs {JOB}", "job list --json", "job list", "--help"]  # our lines, JSON, a table, what click prints
GONE = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.execvp(sys.argv[1], sys.argv[1:])"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayDashboard]:
    """A cluster with one job; it is the cluster around this test."""
    with RayDashboard(tmp_path) as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started


def run(words: str) -> tuple[int, str, str]:
    done = runs.raydebug(*shlex.split(words))
    return done.returncode, done.stdout, done.stderr


def shell(line: str) -> tuple[int, str, str]:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_a_pipe_that_is_closed(dashboard: RayDashboard) -> None:
    """A verb whose reader has gone says nothing and exits 141, as a program that SIGPIPE has ended."""
    dashboard.print("line\n" * 20)
    for verb in PRINTING:
        argv = [sys.executable, "-c", GONE, sys.executable, "-m", "raydebug", *verb.split()]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (141, ""), verb


@pytest.mark.parametrize(
    ("where", "cause"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_an_output_that_takes_nothing(dashboard: RayDashboard, where: str, cause: str) -> None:
    """A verb whose output cannot be written says so in three lines and exits 1."""
    dashboard.print("line\n")
    for verb in PRINTING:
        code, _, said = shell(f"{RAYDEBUG} {verb} {where}")
        assert code == 1, verb
        assert said.splitlines()[-3:] == [
            "error: standard output cannot be written",
            f"cause: {cause}",
            "fix: write it to a file or a program that takes all of it",
        ]


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", "<&-"])
def test_a_narration_that_nobody_reads(dashboard: RayDashboard, where: str) -> None:
    """Standard error that is full or closed changes neither output nor exit code; closed input neither."""
    dashboard.print("line\n")
    for verb in ("report --list", f"job logs {JOB}", "ps --name nosuch"):
        whole = run(verb)
        assert shell(f"{RAYDEBUG} {verb} {where}")[:2] == whole[:2], verb


def test_a_follower_whose_reader_leaves(dashboard: RayDashboard) -> None:
    """`job logs --follow --grep W | head -1` ends with 141 at the next line: the job does not have to end before."""
    dashboard.print("line 1\n")
    argv = [sys.executable, "-m", "raydebug", "job", "logs", JOB, "--follow", "--grep", "line"]
    follower = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "line 1\n"
    follower.stdout.close()
    dashboard.print("line 2\n")
    assert follower.wait() == 141


@pytest.mark.parametrize("body", ["", "<html>hello</html>", "{}", "[1]", "null", '{"data": {"result": 7}}', '"x"'])
def test_another_program_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A program that answers 200 and is no Ray dashboard is named as that, with the beginning of its answer."""
    with RayDashboard(tmp_path, body) as other:
        for name, value in other.environment.items():
            monkeypatch.setenv(name, value)
        url = f"http://127.0.0.1:{other.port}"
        for verb in (f"paused --address {url}", "job list", "job stop x"):
            code, _, said = run(verb)
            error, cause, _ = said.splitlines()[-3:]
            assert (code, error) == (1, f"error: no Ray dashboard is at {url}")
            assert cause.endswith("is empty" if not body else f"is answered with {body!r}")


def test_words_that_say_nothing(dashboard: RayDashboard) -> None:
    """Words and options that would be ignored are usage errors."""
    for verb, error in (
        ("logs bogus", "there is no service 'bogus'"),
        ("logs", "the logs of this cluster's programs are not here"),
        ("logs head --audit", "--audit takes no service and no --follow"),
        ("report --list bogus", "--list takes no run"),
        (f"stacks bogus --from {__file__}", "--from takes no job"),
    ):
        code, out, said = run(verb)
        assert (code, out, said.splitlines()[0]) == (2, "", f"error: {error}"), verb
    code, out, said = run("logs --json")
    assert (code, json.loads(out)["error"]["message"], said) == (2, "--json is for --audit", "")


# Words and JSON

WRONG = {"integer": "x", "float": "x", "integer range": "x", "float range": "x", "choice": "bogus"}


def all_verbs(group: Any, *before: str) -> Iterator[tuple[list[str], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from all_verbs(command, *before, name)
        else:
            yield [*before, name], command


VERBS = {" ".join(words): command for words, command in all_verbs(typer.main.get_command(whole_app()))}


def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[object, str, str]:
    """Call the program in this process: hundreds of command lines take a second."""
    capfd.readouterr()
    with monkeypatch.context() as changed:
        changed.setattr(sys, "argv", ["raydebug", *words])
        for stream in ("stdin", "stdout", "stderr"):
            changed.setattr(sys, stream, getattr(sys, stream))
        with pytest.raises(SystemExit) as left:
            main()
    shown = capfd.readouterr()
    return left.value.code, shown.out, shown.err


def required_of(command: Any) -> list[str]:
    return ["x" for one in command.params if one.param_type_name == "argument" and one.required]


def wrong_lines(name: str) -> Iterator[list[str]]:
    """Yield command lines with --json, each with one mistake: a word or a value too many, a wrong one, no cluster."""
    words, command = name.split(), VERBS[name]
    yield [*words, "--json", "--nosuch"]
    takes_many = any(one.param_type_name == "argument" and one.nargs == -1 for one in command.params)
    yield [*words, "--json", *(["bogus"] if takes_many else ["bogus"] * 9)]
    for one in command.params:
        if one.param_type_name == "option" and not one.is_flag:
            yield [*words, "--json", one.opts[0]]
            if one.type.name in WRONG:
                yield [*words, "--json", one.opts[0], WRONG[one.type.name]]
    if any("--name" in one.opts for one in command.params):
        yield [*words, "--json", "--name", "Bad Name", *required_of(command)]
        if name not in ("up", "check"):  # they need no cluster that runs
            yield [*words, "--json", "--name", "nosuch", *required_of(command)]


def test_options_of_the_command_are_its_own(capfd, monkeypatch) -> None:
    """`run --nosuch -- python x.py --json` answers in text: what follows `--` belongs to the command."""
    code, out, err = call(capfd, monkeypatch, "run", "--nosuch", "--", "python", "x.py", "--json")
    assert (code, out, err.splitlines()[0]) == (2, "", "error: No such option: --nosuch")


@pytest.mark.parametrize("name", VERBS)
def test_json_of_a_wrong_command_line(name: str, capfd, monkeypatch) -> None:
    """With --json every verb answers a mistake with one JSON document, and no other text on stdout."""
    for line in wrong_lines(name):
        code, out, err = call(capfd, monkeypatch, *line)
        assert code != 0, line
        if out:
            assert set(json.loads(out)["error"]) == {"code", "message", "cause", "fix"}, line
        else:
            assert (code, [one.partition(": ")[0] for one in err.splitlines()[-3:]]) == (2, ["error", "cause", "fix"])
