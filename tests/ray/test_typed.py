"""What the documents tell a reader to type, typed as it stands, in its order, in one fresh folder."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
# How long the reader of a page waits for what a command prints while another one runs.
PATIENCE_S = 150.0
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Typed(NamedTuple):
    """A command of a page, and what the page shows below it.

    Args:
        command: without its comment.
        is_first: whether it stays in a first terminal while the next one is typed.
        shown: lines; one of `...` stands for any.
    """

    command: str
    is_first: bool
    shown: list[str]


def typed(text: str) -> list[Typed]:
    """Return the commands behind `$ ` of a page, in order."""
    found: list[Typed] = []
    for kind, block in _FENCE.findall(text):
        of_block: list[Typed] = []
        for line in block.splitlines() if kind == "console" else ():
            if line.startswith("$ "):
                command, _, comment = line.removeprefix("$ ").partition("  #")
                of_block.append(Typed(command.strip(), "first terminal" in comment, []))
            else:
                of_block[-1].shown.append(line)
        # Where a second terminal is used, the command before it is still in the first one.
        if any("second" in line for line in block.splitlines() if line.startswith("$ ")):
            of_block[0] = of_block[0]._replace(is_first=True)
        found += of_block
    return found


def as_pattern(shown: list[str]) -> re.Pattern[str]:
    """Return what the output has to hold: these lines, with any numbers and ids, wrapped at any width."""
    parts = []
    for block in re.split(r"(?m)^\s*\.\.\.$", "\n".join(shown)):
        words = re.sub(r"raydebug-\d{6}-\w{6}", "JOB", " ".join(block.split()))
        words = words.replace("~/demo/", "FOLDER")
        words = re.sub(r"\d+(, \d+)+", "1", words)  # as many processes as are there by then
        escaped = re.sub(r"\d+", r"\\d+(,\\s+\\d+)*", re.escape(words))
        parts.append(escaped.replace("JOB", r"raydebug-\d{6}-\w{6}").replace("FOLDER", r"\S*").replace(r"\ ", r"\s+"))
    return re.compile(r"[\s\S]*?".join(parts))


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reader's empty folder; no cluster is left of him."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "120")
    yield tmp_path
    subprocess.run(["raydebug", "down"], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def type_all(commands: list[Typed], folder: Path) -> None:
    """Type the commands of a page in their order, and compare what they print with what the page shows."""
    log = folder / "first.log"
    with contextlib.ExitStack() as first:
        for command, is_first, shown in commands:
            if is_first:
                first.enter_context(in_first_terminal(command, log))
                read_until(as_pattern(shown or ["job raydebug-112422-561d53: python"]), log)
                continue
            only_looks = command.startswith("raydebug stacks")
            type_one(command, shown, PATIENCE_S if only_looks else 0.0)
            first.close()


@contextlib.contextmanager
def in_first_terminal(command: str, log: Path) -> Iterator[None]:
    """A command that runs beside the next one, and ends with Ctrl-C."""
    with log.open("wb") as output:
        argv = ["bash", "-c", f"exec {command}"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        log.unlink()


def type_one(command: str, shown: list[str], patience_s: float) -> None:
    """Type a command, again while the job of the first terminal has not come to the place yet."""
    wanted, deadline = as_pattern(shown), time.monotonic() + patience_s
    while True:
        argv = ["bash", "-c", command]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        printed = done.stdout
        if wanted.search(printed):
            return
        page = "\n".join(shown) + "".join(f"\n{log.name}: {log.read_text()}" for log in Path().glob("first.log"))
        assert time.monotonic() < deadline, f"{command}\nprinted\n{printed}\nand the page shows\n{page}"
        time.sleep(1.0)


def read_until(wanted: re.Pattern[str], log: Path) -> None:
    """Wait until a command's output has what the page shows."""
    deadline = time.monotonic() + PATIENCE_S
    while not wanted.search(log.read_text(errors="replace")):
        assert time.monotonic() < deadline, f"{log.read_text(errors='replace')}\nand the page shows {wanted.pattern}"
        time.sleep(0.2)


@pytest.mark.timeout(400)
def test_readme(reader: Path) -> None:
    """README's program and its three commands do and print what README shows, without a cluster before them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## verl")[0]
    (program,) = [block for kind, block in _FENCE.findall(text) if kind == "python"]
    (reader / "train.py").write_text(program)
    commands = typed(text)
    assert [typed.command.split()[1] for typed in commands] == ["run", "open", "run", "stacks", "run", "attach"]
    type_all(commands, reader)


@pytest.mark.timeout(400)
def test_a_day(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of "A day with it" print what it shows, from the crash over the hang to the right result."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")  # `up` takes containers where an engine answers
    program, log = reader / "grade.py", reader / "first.log"
    _, crashes, hangs, wrong = re.split(r"^## ", (ROOT / "docs" / "day.md").read_text(), flags=re.MULTILINE)
    text = (ROOT / "docs" / "day.md").read_text()
    program.write_text(_FENCE.findall(text)[0][1])

    def fix(before: str, after: str) -> None:
        assert after in text, "the page says so"
        assert before in program.read_text()
        program.write_text(program.read_text().replace(before, after))

    type_all(typed(crashes), reader)
    fix("found = numbers[-1]", "found = numbers[-1] if numbers else None")
    with in_first_terminal("raydebug run -- python grade.py", log):
        type_all(typed(hangs), reader)
    fix("ray.get(board.add.remote(me, reward(*row)))", "ray.get(board.add.remote(self.name(), reward(*row)))")
    fix("self.rewards[ray.get(grader.name.remote())] = value", "self.rewards[name] = value")
    fix("def add(self, grader, value):", "def add(self, name, value):")
    fix("def grade(self, row, board, me):", "def grade(self, row, board):")
    fix("one.grade.remote(row, board, one) for", "one.grade.remote(row, board) for")
    typed_last = typed(wrong)
    type_all(typed_last[:3], reader)
    fix("if found == expected", "if found and float(found) == expected")
    type_all(typed_last[3:], reader)
