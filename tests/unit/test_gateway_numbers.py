"""The numbers of pauses and breakpoints, over restarts of the gateway."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from raydebug.gateway import numbers as module
from raydebug.gateway.numbers import BREAK, PAUSE, Numbers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a new cluster."""
    made = tmp_path / "numbers"
    made.touch()
    return made


def test_numbers_continue(path: Path) -> None:
    """A gateway that starts again goes on counting, pauses and breakpoints apart."""
    first = Numbers(path)
    assert [first.of_pause("i1", 1), first.of_pause("i2", 1), first.new(PAUSE), first.new(BREAK)] == [1, 2, 3, 1]
    again = Numbers(path)
    assert [again.new(PAUSE), again.new(BREAK)] == [4, 2]


def test_reported_pause_keeps_its_number(path: Path) -> None:
    """A pause that its process reports to the next gateway has its number, in whatever order the processes come."""
    first = Numbers(path)
    given = {(instance, nth): first.of_pause(instance, nth) for instance in ("i1", "i2", "i3") for nth in (1, 2)}
    again = Numbers(path)
    assert {owner: again.of_pause(*owner) for owner in reversed(given)} == given
    assert again.of_pause("i1", 3) == 7


def test_given_numbers(path: Path) -> None:
    """A number is known as given by any gateway of the cluster; other words are not."""
    Numbers(path).new(PAUSE)
    again = Numbers(path)
    asked = ("1", "2", "0", "-1", "x", "", "\u00b2", "9" * 40)
    assert [number for number in asked if again.was_given(number)] == ["1"]


@pytest.mark.parametrize("path", [None, Path("/nonexistent/numbers")])
def test_lost_file(path: Path | None) -> None:
    """Without the file numbers are larger than those that a gateway has ever counted to."""
    numbers = Numbers(path)
    assert numbers.new(PAUSE) > 10**12
    assert numbers.new(BREAK) > 10**12
    assert numbers.of_pause("i1", 1) == numbers.of_pause("i1", 1)


def test_disk_that_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that cannot be written is not one that the next gateway gives."""
    first = Numbers(path)
    assert first.new(PAUSE) == 1
    write = os.write

    def torn(handle: int, data: bytes) -> int:
        return write(handle, data[:3])

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for fails in (torn, full):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fails)
            unwritten = first.new(PAUSE)
        again = Numbers(path)
        assert unwritten > 10**12 > again.new(PAUSE)


def test_file_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand pauses leave a short file; the last number and the last pauses are kept."""
    monkeypatch.setattr(module, "MAX_KNOWN", 10)
    first = Numbers(path)
    given = [first.of_pause("i1", nth) for nth in range(1, 1001)]
    for line in range(1, 101):
        kept = first.add_break({"where": f"a.py:{line}", "source": "x" * 300, "line": line})
        first.remove_break(f"b{line - 1}")
    assert len(path.read_text().splitlines()) <= 2 * 10 + 4
    again = Numbers(path)
    assert again.breaks == {"b100": kept}
    assert again.of_pause("i1", 1000) == given[-1] == 1000
    assert [again.new(PAUSE), again.new(BREAK)] == [1001, 101]


def test_hostile_names(path: Path) -> None:
    """The text that a process sends as its id adds no line of its own to the file."""
    numbers = Numbers(path)
    numbers.of_pause("i1\np 7 x\nb 9 y\r\ud800", 1)
    again = Numbers(path)
    assert [again.new(PAUSE), again.new(BREAK)] == [2, 1]
