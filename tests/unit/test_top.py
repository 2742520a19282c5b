"""`raydebug top`: one picture of a run, its data and its lines, and a terminal that is as before afterwards."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import run_documents
from raydebug.report.screen import draw, sparkline, take_picture
from raydebug.runs.record import read_document

LOG = "step:1 - loss\n\x1b[2J\x1b[31mred\x1b[0m \x1b]0;title\x07 end\n\n\u202eback\n"
NOW = run_documents.STARTED + 400.0
RAYDEBUG = [sys.executable, "-m", "raydebug"]
INTERRUPTIBLE = ["env", "--default-signal=INT"]  # tests in the background inherit that SIGINT is ignored


def running(**more: Any) -> dict[str, Any]:
    """A run that goes on and is paused, with a slow rank and findings."""
    document = run_documents.failed_run()
    pause = {
        "id": "7", "where": "reward.py:12 score", "kind": "breakpoint", "who": "Trainer rank 1 pid 8",
        "exception": None,
    }  # fmt: skip
    findings = [
        {"code": "run.slow-rank", "severity": "warning", "what": "Trainer rank 1 is slower than the others"},
        {"code": "x", "severity": "error", "what": "a hostile \x1b[2J finding"},
    ]
    return {**document, "status": "running", "ended": None, "exit_code": None, "first_error": None,
            "pauses": [{**pause, "start_s": 330.0, "end_s": None}], "findings": findings, **more}  # fmt: skip


def picture(document: dict[str, Any], log: str = LOG, **more: Any) -> dict[str, Any]:
    return take_picture(read_document(document), log, NOW, **more)


def lines_of(shown: dict[str, Any], width: int = 80, lines: int = 40) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    console.print(draw(shown, lines, width))
    return console.export_text().rstrip("\n").split("\n")


def test_picture_of_a_run_that_goes_on() -> None:
    """The data have what stops the run, its step, metrics, memory with the last minute's change, and its log."""
    shown = picture(running(), training="step 10, phase gen for 12 s")
    assert (shown["version"], shown["status"], shown["took_s"], shown["step"]) == (1, "running", 400.0, 9)
    assert shown["stops"] == ["raydebug attach 7: paused for 1m10s: reward.py:12 score (Trainer rank 1 pid 8)"]
    assert shown["slow_rank"] == "Trainer rank 1 is slower than the others"
    assert [one["code"] for one in shown["findings"]] == ["x"]
    assert [one["label"] for one in shown["metrics"]] == ["reward", "KL", "gradient norm", "tokens/s", "step, seconds"]
    assert shown["metrics"][2]["values"][-1] == math.inf
    assert {"process", "node", "mib", "last_minute_mib", "values"} == shown["memory"][0].keys()
    assert shown["log"][0] == "step:1 - loss"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_of_a_picture(width: int) -> None:
    """A picture is as wide as the terminal at most, fits its lines, and what comes from the job has no controls."""
    shown = lines_of(picture(running(), LOG * 50, age_s=90.0, training="phase gen"), width, 30)
    assert max(map(len, shown)) <= width
    assert len(shown) <= 30
    assert "\x1b" not in "".join(shown)
    assert "\u202e" not in "".join(shown)
    if width == 80:
        assert re.match(r"^\S+  running for 6m40s  step 9, .* ago, median ", shown[0])
        assert shown[1] == "this is 1m30s old: no `raydebug run` follows the job any more"
        assert shown[2] == "now: phase gen"
        assert shown[3] == "raydebug attach 7: paused for 1m10s: reward.py:12 score (Trainer rank 1 pid 8)"
        assert shown[4] == "Trainer rank 1 is slower than the others"
        assert shown[5] == "error: a hostile \\x1b[2J finding"
        assert any(re.match(r"^gradient norm +inf +[▁-█]+!  actor/grad_norm", one) for one in shown)


@pytest.mark.parametrize(("name", "option"), [("mine", " --name mine"), ("a; b", " --name 'a;' b")])
def test_command_to_attach_is_whole(name: str, option: str) -> None:
    """Of a pause in a cluster with a name the command has that name, and is whole in a narrow terminal."""
    shown = lines_of(picture(running(cluster={"name": name}), age_s=90.0), 40)
    at = next(number for number, line in enumerate(shown) if line.startswith("raydebug attach"))
    assert " ".join(line.rstrip() for line in shown[at : at + 3]) == (
        f"raydebug attach 7{option}: paused for 1m10s: reward.py:12 score (Trainer rank 1 pid 8)"
    )
    failed = lines_of(picture({**run_documents.failed_run(), "first_error": {"text": "words " * 2000}}), 40)
    assert [line[-1] for line in failed if "words words" in line] == [" ", " ", "\N{HORIZONTAL ELLIPSIS}"]


def test_picture_of_any_document() -> None:
    """A run that has failed has its first error; an empty, a hostile and a huge record have a picture too."""
    shown = picture(run_documents.failed_run())
    assert shown["stops"][0].startswith("first error: ")
    unknown = {"findings": [{"code": "run.slow-rank"}]}
    for document in ({}, unknown, run_documents.hostile_run(), run_documents.huge_run(), run_documents.quick_run()):
        assert max(map(len, lines_of(picture(document, "")))) <= 80


def test_change_in_the_last_minute() -> None:
    """The change is that of the last 60 s of samples; of a shorter one, of all; of a long one, of the last two."""
    samples = [[float(at), 100.0 + at] for at in range(0, 200, 2)]
    memory = [{"process": "a", "node": "n", "samples": samples}, {"process": "b", "node": "n", "samples": samples[:5]}]
    shown = picture(running(memory=memory))["memory"]
    assert [(one["process"], one["mib"], one["last_minute_mib"]) for one in shown] == [
        ("a", 298.0, 60.0),
        ("b", 108.0, 8.0),
    ]
    assert shown[0]["values"] == [float(value) for value in range(260, 300, 2)]
    sparse = [[64.0 * at, 500.0 * at] for at in range(500)]  # of a long run there is one sample in 64 s and more
    shown = picture(running(memory=[{"process": "a", "node": "n", "samples": sparse}]))["memory"]
    assert [memory["last_minute_mib"] for memory in shown] == [468.75]


def test_sparkline() -> None:
    """Values are bars between the lowest and the highest; what is no finite number is marked."""
    assert sparkline([0.0, 1.0, 2.0, math.nan, -math.inf]) == "▁▅█!!"
    assert sparkline([]) == ""


@pytest.mark.parametrize("values", [[0.0, 1e308], [-1.7e308, 1.7e308], [-1.0, 5e-324]])
def test_sparkline_of_large_values(values: list[float]) -> None:
    """The largest numbers that there are have bars."""
    assert sparkline(values) == "▁█"


# The verb


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run that goes on."""
    found = tmp_path / "raydebug" / "runs" / "raydebug-1"
    found.mkdir(parents=True)
    write(found, running(id="raydebug-1"))
    (found / "job.log").write_text(LOG * 2000)
    return found


def write(folder: Path, document: dict[str, Any]) -> None:
    (folder / "run.json.new").write_text(json.dumps({"version": 1, "kind": "run", **document}))
    (folder / "run.json.new").replace(folder / "run.json")


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ, "XDG_STATE_HOME": str(folder.parents[2]), "TERM": "xterm-256color", "COLUMNS": "", "LINES": "",
    }  # fmt: skip


def raydebug(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [*RAYDEBUG, *words]
    return subprocess.run(argv, capture_output=True, text=True, env=environment(folder), timeout=60)


def test_once_and_json(folder: Path) -> None:
    """In a pipe one picture is printed without colours, and as data with --json; what it took is printed."""
    with (folder / "job.log").open("a") as log:
        log.write("w" * 150 + "\n")
    began = os.times()
    done = raydebug(folder, "top")
    ended = os.times()
    cpu_s = ended.children_user + ended.children_system - began.children_user - began.children_system
    print(f"one picture: {cpu_s:.2f} s of CPU")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("raydebug-1  running for ")
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[-1] == "w" * 150, "a pipe is as wide as for a table"
    for verb in ("top", "report"):
        assert (
            json.loads(raydebug(folder, verb, "raydebug-1", "--json").stdout, parse_constant=pytest.fail)["id"]
            == "raydebug-1"
        )


class Terminal:
    """`raydebug top` in a terminal of 80 columns and 24 lines."""

    def __init__(self, folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        subprocess.run(["stty", "rows", "24", "cols", "80"], stdin=theirs, check=True)
        self.before = subprocess.run(["stty", "-g"], stdin=theirs, capture_output=True, check=True).stdout
        self.process = subprocess.Popen(
            [*INTERRUPTIBLE, *RAYDEBUG, "top"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(folder),
            start_new_session=True,
        )
        self._theirs, self.text = theirs, ""

    def read_until(self, words: str, limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            self.read()

    def read(self, wait_s: float = 0.2) -> None:
        while select.select([self._ours], [], [], wait_s)[0]:
            self.text += os.read(self._ours, 65536).decode(errors="replace")
            wait_s = 0.0

    def end(self) -> int:
        code = self.process.wait(30)
        self.read(0.0)
        settings = subprocess.run(["stty", "-g"], stdin=self._theirs, capture_output=True, check=True).stdout
        assert settings == self.before
        os.close(self._theirs)
        os.close(self._ours)
        return code


@pytest.fixture
def terminal(folder: Path) -> Iterator[Terminal]:
    found = Terminal(folder)
    yield found
    if found.process.poll() is None:
        found.process.kill()
        found.process.wait()


ALTERNATE, BACK, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"  # xterm's alternate screen; the cursor is shown


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_terminal_is_as_before(terminal: Terminal, sent: signal.Signals, code: int) -> None:
    """Ctrl-C and SIGTERM leave the terminal as it was: screen, cursor and settings; nothing of the log acts."""
    terminal.read_until("raydebug-1")
    terminal.read_until("reward.py:12")
    terminal.process.send_signal(sent)
    assert terminal.end() == code
    assert terminal.text.index(ALTERNATE) < terminal.text.rindex(BACK)
    assert terminal.text.rindex(CURSOR) > terminal.text.rindex("\x1b[?25l")
    assert "\x1b]0;" not in terminal.text
    assert "\x1b[2Jred" not in terminal.text


@pytest.mark.timeout(90)
def test_run_that_ends_meanwhile(terminal: Terminal, folder: Path) -> None:
    """When the run ends, the last picture stays in the terminal and `top` ends."""
    terminal.read_until("running for ")
    write(folder, {**run_documents.failed_run(), "id": "raydebug-1"})
    assert terminal.end() == 0
    assert "failed after " in terminal.text.rpartition(BACK)[2]


# The page that follows a run


@pytest.mark.timeout(90)
@pytest.mark.parametrize("how", ["it ends", "nobody records it", "Ctrl-C"])
def test_page_that_follows(folder: Path, how: str) -> None:
    """`report --follow` writes the page again until the run ends, nobody records it any more, or Ctrl-C."""
    program = (
        "import sys; from raydebug.cli import main, report; report.FOLLOWS_EVERY_S = 0.2;"
        " sys.argv = ['raydebug', 'report', '--follow']; main()"
    )
    done = subprocess.Popen(
        [*INTERRUPTIBLE, sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
    )
    assert done.stdout is not None
    page = Path(done.stdout.readline().strip())
    assert page == folder / "report.html"
    assert '"reload_s":0.2' in page.read_text()
    write(folder, running(id="raydebug-1", command=["python", "changed.py"]))
    deadline = time.monotonic() + 30
    while "changed.py" not in page.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if how == "it ends":
        write(folder, {**run_documents.failed_run(), "id": "raydebug-1"})
    elif how == "nobody records it":
        os.utime(folder / "run.json", (1.0, 1.0))
    else:
        done.send_signal(signal.SIGINT)
    assert done.wait(30) == 0
    assert '"reload_s":' not in page.read_text()
    assert ("Run failed after " in page.read_text()) == (how == "it ends")


@pytest.mark.parametrize("more", [["--list"], ["--json"], ["raydebug-1", "raydebug-1"]])
def test_follow_is_for_one_page(folder: Path, more: list[str]) -> None:
    """--follow with --list, --json or two runs is refused."""
    done = raydebug(folder, "report", "--follow", *more)
    assert done.returncode == 2
    assert "--follow is for the page of one run" in done.stdout + done.stderr


def test_follow_without_a_status(folder: Path) -> None:
    """The page of a record that lost its status is written once."""
    document = running(id="raydebug-1")
    del document["status"]
    write(folder, document)
    done = raydebug(folder, "report", "--follow")
    assert done.returncode == 0, done.stderr
