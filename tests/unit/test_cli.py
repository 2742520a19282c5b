"""The command line itself: help with examples, usage errors in three lines, JSON errors."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import runs
from raydebug import cli
from raydebug.cli import options
from raydebug.cli.app import app_for, whole_app
from raydebug.protocol import variables

VERBS = Path(__file__).parent / "verbs.txt"


def verbs(group: Any, *before: str) -> Iterator[str]:
    """Yield every verb of the program, those of groups with the group's word."""
    for name, command in group.commands.items():
        yield from verbs(command, *before, name) if hasattr(command, "commands") else [" ".join((*before, name))]


def raydebug(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return runs.raydebug(*arguments, env={**os.environ, **variables})


@pytest.mark.parametrize("verb", [*verbs(typer.main.get_command(whole_app()))])
def test_help(verb):
    """Every verb has help with an example to copy."""
    done = raydebug(*verb.split(), "--help")
    assert done.returncode == 0
    assert re.search(rf"Examples?:\s+raydebug {verb.split()[0]}", done.stdout)
    assert "\\b" not in done.stdout  # how click is told to keep lines: a control character, not a backslash


def interface(name: str, command: Any) -> str:
    """Return a verb with its arguments and options on one line, those that help does not show in brackets."""
    words = [name.removeprefix("raydebug ")]
    for one in command.params:
        if one.param_type_name == "argument":
            words.append(one.metavar or one.name.upper())
        elif one.name != "help":
            spelling = "|".join((*one.opts, *one.secondary_opts))
            shown = spelling if one.is_flag else f"{spelling} {one.metavar or one.type.name.upper()}"
            words.append(f"({shown})" if one.hidden else shown)
    return " ".join(words)


def test_the_interface_is_the_committed_one():
    """Every verb has the arguments and options that verbs.txt lists: a change of the interface is a change there."""

    def walk(command: Any, name: str) -> Iterator[str]:
        for word, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{name} {word}")
        if not hasattr(command, "commands"):
            yield interface(name, command)

    found = [*walk(typer.main.get_command(whole_app()), "raydebug")]
    assert found == VERBS.read_text().splitlines()


def test_help_without_a_verb():
    """`raydebug` alone prints the help and exits 0, as does a group alone; each verb is below one heading."""
    alone, asked = raydebug(), raydebug("--help")
    assert (alone.returncode, alone.stderr, alone.stdout) == (0, "", asked.stdout)
    headings = re.findall(r"^(\w.*):$", alone.stdout, re.MULTILINE)
    assert headings == ["Options", "Cluster", "Run", "Debug", "Check first", "After a run", "Editors", "Make"]
    listed = re.findall(r"^  ([a-z]+) +", alone.stdout.partition("Cluster:")[2], re.MULTILINE)
    commands = typer.main.get_command(whole_app()).commands
    assert sorted(listed) == sorted(name for name, command in commands.items() if not command.hidden)
    assert {name for name, command in commands.items() if command.hidden} == {"node", "adapter"}
    group = raydebug("job")
    assert (group.returncode, group.stderr, group.stdout) == (0, "", raydebug("job", "--help").stdout)


def test_the_variable_of_a_cluster():
    """Help names the variable that is read."""
    assert options.CLUSTER == variables.CLUSTER


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("group", ["", "job", "tiny"])
def test_one_liners_are_whole(columns, group):
    """In a narrow terminal the line about a verb is wrapped, and not cut."""
    done = raydebug(*group.split(), "--help", COLUMNS=str(columns))
    assert max(len(line) for line in done.stdout.splitlines()) <= columns
    assert "..." not in done.stdout.partition("COMMAND [ARGS]...")[2]
    flat = " ".join(done.stdout.split())
    of = typer.main.get_command(app_for([group] if group else []))
    of = of.commands[group] if group else of
    for command in (command for command in of.commands.values() if not command.hidden):
        assert " ".join(command.get_short_help_str(10_000).split()) in flat


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["report", "--list"], ["nosuch\u2026"]])
def test_a_locale_without_utf8(arguments, tmp_path):
    """In a locale that cannot show a character, it is replaced; nothing else changes."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "XDG_STATE_HOME": str(tmp_path)}
    done = raydebug(*arguments, **plain)
    assert done.returncode == (2 if "nosuch" in arguments[0] else 0)
    assert "Traceback" not in done.stderr
    assert (done.stdout + done.stderr).isascii()


@pytest.mark.parametrize("verb", [*verbs(typer.main.get_command(whole_app()))])
def test_only_the_asked_verb_is_built(verb):
    """A command line that names a verb makes no other verb's parser: that takes 20 ms of each command."""
    built = typer.main.get_command(app_for(["--debug", *verb.split(), "--json"]))
    assert {one.split()[0] for one in verbs(built)} == {verb.split()[0]}
    assert verb in verbs(built)


@pytest.mark.parametrize("arguments", [[], ["--help", "paused"], ["nosuch"], ["--version"], ["-h"]])
def test_all_verbs_are_there_where_none_is_named(arguments):
    """Help, and what to say of a word that is no verb, know all of them."""
    assert app_for(arguments) is whole_app()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["nosuch"], "`raydebug` has no verb 'nosuch'"),
        (["up", "--unheard"], "No such option: --unheard"),
        (["run"], "there is no command to run"),
        (["run", "--gpus", "-1", "--", "x"], "Invalid value for '--gpus': -1 is not in the range x>=0"),
        (["up", "--gpus", "-1"], "Invalid value for '--gpus': -1 is not in the range x>=0"),
        (["job", "wait", "--timeout", "nan"], "Invalid value for '--timeout': nan is not a number of seconds"),
        (["run", "--hang-after", "inf", "--", "x"], "Invalid value for '--hang-after': inf is not a number of seconds"),
        (["up", "--cluster", "moon"], "there is no kind of cluster 'moon'"),
        (
            ["up", "--cluster", "local", "--workers", "0", "--flavour", "cpu"],
            "--flavour and --workers are for --cluster compose",
        ),
        (["up", "--cluster", "local", "--yes"], "--yes is for --cluster compose"),
        (
            ["up", "--dashboard-port", "65536"],
            "Invalid value for '--dashboard-port': 65536 is not in the range 0<=x<=65535",
        ),
        (["up", "--cluster", "local", "--name", "Bad Name"], "'Bad Name' cannot be a cluster's name"),
        (["up", "--cluster", "local", "--debugger", "on"], "there is no debugger 'on'"),
        (["run", "--profile", "debgu", "--", "x"], "there is no profile 'debgu'"),
        (["run", "--model", "small", "--", "x"], "there is no model 'small' to swap in"),
        (["run", "--data", "big", "--", "x"], "there is no data 'big' to swap in"),
    ],
)
def test_usage_error(arguments, what, tmp_path):
    """A wrong command line is an error of three lines with exit code 2."""
    done = raydebug(*arguments, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()[-3:]
    assert lines[0] == f"error: {what}"
    assert [line.partition(": ")[0] for line in lines] == ["error", "cause", "fix"]


def test_run_is_not_a_place_for_options_of_the_command(tmp_path):
    """What follows `--` belongs to the command, whatever it looks like."""
    done = raydebug("run", "--name", "x", "--", "no-such-program", "--json", "--debug", XDG_STATE_HOME=str(tmp_path))
    assert done.stderr.splitlines()[-3] == "error: the command 'no-such-program' was not found"


def test_run_refuses_a_tiny_model_that_cannot_be_made(tmp_path):
    """Where the cluster's Python has no torch, `run --model tiny` ends before a cluster starts."""
    if importlib.util.find_spec("torch"):
        pytest.skip("torch is here")
    done = raydebug("run", "--model", "tiny", "--", "python", "-c", "pass", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-3:] == [
        "error: a tiny model cannot be made on this cluster",
        "cause: its Python has no torch and no transformers (the core flavour has none)",
        "fix: run it on a cluster of the flavour cpu or cuda: docs/contributing/pins.md",
    ]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("atach 3", "`raydebug attach`, or see `raydebug --help`"),
        ("profile debug", "see `raydebug --help`"),
        ("status", "`raydebug ps`, or see `raydebug --help`"),
        ("job lst", "`raydebug job list`, or see `raydebug job --help`"),
    ],
)
def test_a_verb_that_there_is_not(words, fix):
    """A mistyped verb, or one of another program, leads to the one that is meant; `--` is no part of the fix."""
    *group, word = [word for word in words.split() if word not in ("3", "debug")]
    said = raydebug(*words.split()).stderr.splitlines()
    assert said[0] == f"error: `{' '.join(['raydebug', *group])}` has no verb '{word}'"
    assert said[-1] == f"fix: {fix}"


@pytest.mark.parametrize("words", [[], ["up"], ["job", "logs"]])
def test_help_is_a_verb(words):
    """`raydebug help` shows what `--help` does, of a verb too."""
    assert raydebug("help", *words).stdout == raydebug(*words, "--help").stdout != ""


def test_down_of_a_cluster_that_there_is_not(tmp_path):
    """What is not there need not be ended: `down` proposes no start of it."""
    fix = raydebug("down", "--name", "x", XDG_STATE_HOME=str(tmp_path)).stderr.splitlines()[-1]
    assert fix == "fix: nothing is to be ended; --name NAME names another one"


@pytest.mark.parametrize("verb", ["run", "try", "check"])
def test_command_without_dashes(verb, tmp_path):
    """Where the command's options were taken for ours, the fix shows the `--`; no word of the command is repeated."""
    argv = [*verb.split(), "python", "-m", "secret"]
    fix = raydebug(*argv, XDG_STATE_HOME=str(tmp_path)).stderr.splitlines()[-1]
    assert fix.startswith(f"fix: put the command after `--`: `raydebug {verb} -- python ...`; ")
    assert "secret" not in fix
    after = raydebug(*verb.split(), "--unheard", "--", "x", XDG_STATE_HOME=str(tmp_path)).stderr
    assert after.splitlines()[-1] == f"fix: see `raydebug {verb} --help`"


@pytest.mark.parametrize("verb", ["run", "try", "check"])
def test_usage_ends_with_the_command(verb):
    """The usage line of a verb shows what follows `--`, once."""
    usage = raydebug(*verb.split(), "--help", COLUMNS="200").stdout.splitlines()[0]
    assert re.search(r"-- COMMAND\.\.\.\]?$", usage)
    assert usage.count(" -- ") + usage.count("[-- ") == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EFBIG, errno.ENOMEM])
def test_a_limit_of_the_machine_is_no_fault_of_ours(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """No more files, room or memory: the error says so, with what to do, whatever the verb was at."""
    assert cli._code_of(OSError(number, os.strerror(number), "/proc/net/tcp"), debug=False, as_json=False) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: this machine gives raydebug no more of what it needs\ncause: [Errno ")
    assert "itself" not in said
