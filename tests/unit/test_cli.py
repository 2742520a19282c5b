"""The command line itself: help with examples, usage errors in three lines, JSON errors."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from raydebug.cli.app import app, app_for


def verbs(group: Any, *before: str) -> Iterator[str]:
    """Yield every verb of the program, those of groups with the group's word."""
    for name, command in group.commands.items():
        yield from verbs(command, *before, name) if hasattr(command, "commands") else [" ".join((*before, name))]


def raydebug(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-m", "raydebug", *arguments], capture_output=True, text=True, env=environment
    )


@pytest.mark.parametrize("verb", [*verbs(typer.main.get_command(app))])
def test_help(verb):
    """Every verb has help with an example to copy."""
    done = raydebug(*verb.split(), "--help")
    assert done.returncode == 0
    assert re.search(rf"Examples?:\s+raydebug {verb.split()[0]}", done.stdout)
    assert "\\b" not in done.stdout  # how click is told to keep lines: a control character, not a backslash


@pytest.mark.parametrize("verb", [*verbs(typer.main.get_command(app))])
def test_only_the_asked_verb_is_built(verb):
    """A command line that names a verb makes no other verb's parser: that takes 20 ms of each command."""
    built = typer.main.get_command(app_for(["--debug", *verb.split(), "--json"]))
    assert {one.split()[0] for one in verbs(built)} == {verb.split()[0]}
    assert verb in verbs(built)


@pytest.mark.parametrize("arguments", [[], ["--help", "paused"], ["nosuch"], ["--version"], ["-h"]])
def test_all_verbs_are_there_where_none_is_named(arguments):
    """Help, and what to say of a word that is no verb, know all of them."""
    assert app_for(arguments) is app


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["up", "--nosuch"], "No such option: --nosuch"),
        (["run"], "Missing argument '-- COMMAND...'"),
        (["up", "--cluster", "moon"], "there is no kind of cluster 'moon'"),
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


def test_error_as_json(tmp_path):
    """With --json an error is one JSON document on stdout."""
    done = raydebug("ps", "--json", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "cluster.not-found"
    assert done.stderr == ""


def test_run_is_not_a_place_for_options_of_the_command(tmp_path):
    """What follows `--` belongs to the command, whatever it looks like."""
    done = raydebug("run", "--name", "x", "--", "no-such-program", "--json", "--debug", XDG_STATE_HOME=str(tmp_path))
    assert done.stderr.splitlines()[-3] == "error: the command 'no-such-program' was not found"


def test_run_says_that_no_training_is_in_sight(tmp_path):
    """A profile over a command that shows no training is noted before anything starts; one may start below it."""
    (tmp_path / "run.sh").write_text("exit 3\n")
    (tmp_path / "train.sh").write_text("python -m verl.trainer.main_ppo\n")
    for command, noted in ((["bash", "run.sh"], True), (["bash", "train.sh"], False), (["bash", "nosuch.sh"], False)):
        arguments = ("run", "--detach", "--profile", "debug", "--", *command)
        done = subprocess.run(
            [sys.executable, "-m", "raydebug", *arguments], capture_output=True, text=True, cwd=tmp_path,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        )  # fmt: skip
        assert ("note: no training command is in sight" in done.stderr) == noted
        assert "error: --detach needs a cluster that stays" in done.stderr


def test_run_refuses_a_tiny_model_that_cannot_be_made(tmp_path):
    """Where the cluster's Python has no torch, `run --model tiny` ends before a cluster starts."""
    if importlib.util.find_spec("torch"):
        pytest.skip("torch is here")
    done = raydebug("run", "--model", "tiny", "--", "python", "x.py", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-3:] == [
        "error: a tiny model cannot be made on this cluster",
        "cause: its Python has no torch and no transformers (the core flavour has none)",
        "fix: run it on a cluster of the flavour cpu or cuda: docs/04-pins.md",
    ]
