"""What a job says reaches the terminal without reaching into it."""

from __future__ import annotations

import doctest
import io
import json
import math
import subprocess
import sys

import pytest

from raydebug import render
from raydebug.cli.app import whole_app
from raydebug.errors import Exit, RaydebugError
from raydebug.render import visible, visible_log


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Grüße 你好 \U0001f600", "Grüße 你好 \U0001f600"),
        ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"),
        ("a\x1b]52;c;ZWNobw==\x07", "a\\x1b]52;c;ZWNobw==\\x07"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("safe\u202etxt.exe", "safe\\u202etxt.exe"),
        ("a\x00b\x7f\x9b", "a\\x00b\\x7f\\x9b"),
        ("lone \ud800", "lone \\ud800"),
        ("tab\tnew\nline", "tab\tnew\nline"),
    ],
)
def test_control_characters_are_made_visible(text, shown):
    """No control, bidi or surrogate character passes; letters of any language do."""
    assert visible(text) == shown


def test_colours_of_a_log():
    """Colours pass where they are wanted and vanish where not; other sequences never pass; CR becomes a line end."""
    log = "\x1b[36m(task)\x1b[0m 50%\r100%\x1b]0;x\x07\r\n"
    assert visible_log(log, colour=True) == "\x1b[36m(task)\x1b[0m 50%\n100%\\x1b]0;x\\x07\n"
    assert visible_log(log, colour=False) == "(task) 50%\n100%\\x1b]0;x\\x07\n"


def test_error_in_three_lines():
    """An error says what failed, why, and what to do."""
    failure = RaydebugError("it failed", cause="that was it", fix="do this", code="x.y", exit_code=Exit.TAKEN)
    assert str(failure) == "error: it failed\ncause: that was it\nfix: do this"
    assert failure.as_json() == {
        "error": {"code": "x.y", "message": "it failed", "cause": "that was it", "fix": "do this"}
    }
    again = RaydebugError.of_json(failure.as_json(), Exit.TAKEN)  # as another process has printed it
    assert (str(again), again.code, again.exit_code) == (str(failure), failure.code, Exit.TAKEN)


# Name, columns, rows, room, and the lines with the ends of cells marked.
TABLES = [
    ("empty", ["id", "where"], [], 80, "          |id   where|──────────|          "),
    ("control", ["é"], [["a\nb"], ["\x1b[1m"]], 80, "       |é      |───────|a      |b      |\\x1b[1m|       "),
    ("wide", ["a", ""], [["你好", ""], ["[x]", "x"]], 80, "        |a       |────────|你好    |[x]    x|        "),
    ("folded", ["a", "b"], [["1", "one 12345"]], 10, "        |a   b   |────────|1   one |    1234|    5   |        "),
]  # fmt: skip


@pytest.mark.parametrize(("name", "columns", "rows", "width", "drawn"), TABLES)
def test_a_table(name, columns, rows, width, drawn, monkeypatch):
    """Columns are as wide as their cells, by what a terminal needs for them; what has no room is folded at a space."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(render, "PIPE_WIDTH", width)
    render.table(columns, rows)
    assert stream.getvalue() == "".join(f" {line}".rstrip() + "\n" for line in drawn.split("|"))


@pytest.mark.parametrize(("columns", "command"), [(80, "python train"), (200, "python train.py " + "trainer.x=1 " * 9)])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_an_id_is_whole(columns, command, is_terminal, monkeypatch):
    """A row with a long command is one line: its id is whole, its command cut; no line ends with blanks."""
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(render, "PIPE_WIDTH", columns)
    row = ["raydebug-204038-39e757", "succeeded", "11-28 20:40", "3m12s", "python train.py " + "trainer.x=1 " * 20]
    render.table(["id", "status", "began (UTC)", "took", "command"], [row])
    lines = stream.getvalue().split("\n")
    assert [line.rstrip() for line in lines] == lines
    assert max(map(len, lines)) <= columns
    assert len(lines) == 6
    assert lines[3].startswith(f" {row[0]}   succeeded   11-28 20:40   ")
    assert command in lines[3]
    assert lines[3].endswith("\N{HORIZONTAL ELLIPSIS}")


def test_a_table_on_a_pipe_does_not_load_rich():
    """A list of pauses in a script does not pay 40 ms for rich."""
    program = "import sys; from raydebug import render; render.table(['id'], [['1']]); print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n id\n ──\n 1\n\nFalse\n"


def test_json_has_no_nan(capsys):
    """What JSON has no number for is text that `float` reads; every other value is as it was."""
    render.out_json({"a": [math.nan, (math.inf, 1.5)], "b": {"c": -math.inf}, "d": "x", "e": None})
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown == {"a": ["NaN", ["Infinity", 1.5]], "b": {"c": "-Infinity"}, "d": "x", "e": None}


def test_a_status_text_is_no_markup(monkeypatch):
    """A folder's name with brackets is shown as it is beside the spinner, and its control characters are visible."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with render.waiting("in out[/x]\x1b[2J"), render.phases("at a[/b]") as on_phase:
        on_phase("c[/d]")
    shown = sys.stderr.getvalue()
    assert "in out[/x]\\x1b[2J" in shown
    assert "at a[/b]: c[/d]" in shown


def test_suggested_commands() -> None:
    """A command that a line suggests has the name of the verb's cluster."""
    assert doctest.testmod(render).failed == 0


@pytest.mark.parametrize(
    ("text", "named", "at"),
    [
        ("next: raydebug attach 3", "next: raydebug attach --name b 3", "next: raydebug attach --address U 3"),
        ("`raydebug down`, then `raydebug up`", "`raydebug down --name b`, then `raydebug up --name b`", None),
        ("raydebug down, then raydebug up --name c", "raydebug down --name b, then raydebug up --name c", None),
        ("raydebug run -- x --name c", "raydebug run --name b -- x --name c", None),
        ("fix: raydebug job logs x; see `raydebug job`", "fix: raydebug job logs --name b x; see `raydebug job`", None),
        ("raydebug open, raydebug report --list", None, None),
    ],
)
def test_the_option_of_a_suggested_command(text, named, at):
    """Each command of a line that takes it gets the verb's --name, or its --address; a named one is left as it is."""
    try:
        render.suggest_for("b")
        assert render.suggested(text) == (named or text)
        render.suggest_at("U")
        assert render.suggested(text) == (at or text)
    finally:
        render.suggest_for("default")
    assert render.suggested(text) == text


def test_verbs_of_a_cluster():
    """Exactly the verbs that take --name get it where they are suggested."""
    from typer.main import get_command

    commands = get_command(whole_app()).commands  # type: ignore[attr-defined]
    groups = {name: [*getattr(command, "commands", {name: command}).values()] for name, command in commands.items()}
    options = {name: {word for one in group for it in one.params for word in it.opts} for name, group in groups.items()}
    hidden = {"mcp"}  # started by an agent
    assert {name for name, found in options.items() if "--name" in found} - hidden == {*render.OF_A_CLUSTER}
