"""How several pauses are named, addressed, chosen and shown; exact text."""

from __future__ import annotations

import array
import math
import sys
from typing import Any

import numpy as np
import pytest

from raydebug.console import tensor_probe, view
from raydebug.console.commands import ranks
from raydebug.console.selection import NotAnAddress, Selection, joined, pick, split_address
from raydebug.protocol.names import parse_ranks


@pytest.mark.parametrize(
    ("line", "is_command", "address", "command"),
    [
        ("@* bt", False, "*", "bt"), ("@all bt", False, "*", "bt"), ("@0,3-5 p x", False, "0,3-5", "p x"),
        ("@#1", False, "#1", ""), ("c @0,1", True, "0,1", "c"), ("p a @ b", True, None, "p a @ b"),
        ("x = a @0", False, None, "x = a @0"), ("@ 3", False, "3", ""),
    ],
)  # fmt: skip
def test_whom_a_line_is_for(line: str, is_command: bool, address: str | None, command: str) -> None:
    """An address comes before a command or after it; Python's own `@` is not an address."""
    assert split_address(line, is_command=is_command) == (address, command)


def test_what_an_address_names() -> None:
    """Ranks, ranges and numbers name pauses; one rank may be several pauses, in the order of the prompt."""
    known = [(1, 0), (2, 1), (3, 0), (4, None)]
    assert pick("*", known) == [1, 2, 3, 4]
    assert pick("0", known) == [1, 3]
    assert pick("#4,0-1", known) == [1, 2, 3, 4]
    with pytest.raises(NotAnAddress, match="there is no rank 2 here"):
        pick("1-2", known)
    with pytest.raises(ValueError, match="'3-' is not a list of ranks"):
        parse_ranks("3-")
    with pytest.raises(ValueError, match="'5-3' is not a range"):
        parse_ranks("5-3")
    with pytest.raises(ValueError, match="not a range"):
        parse_ranks("0-99999999999")


def test_names_of_many() -> None:
    """Consecutive ranks are abbreviated."""
    assert joined([f"rank {n}" for n in (0, 1, 2, 4, 6, 7)]) == "ranks 0-2, 4, 6, 7"
    assert joined(["rank 0 #3", "rank 0"]) == "rank 0, rank 0 #3"


def test_selection_of_pauses() -> None:
    """`all` takes the waiting pauses; ranks and a job restrict it; pauses of others are separate unless stolen."""
    pauses: list[dict[str, Any]] = [
        {"id": "1", "rank": 3, "state": "waiting", "job": "a", "job_id": "01"},
        {"id": "2", "rank": 0, "state": "attached", "job": "a", "job_id": "01"},
        {"id": "3", "rank": None, "state": "waiting", "job": "b", "job_id": "02"},
        {"id": "4", "rank": 1, "state": "waiting", "job": "b", "job_id": "02"},
    ]

    def ids(selection: Selection) -> tuple[list[str], list[str]]:
        free, held = selection.split(pauses)
        return [pause["id"] for pause in free], [pause["id"] for pause in held]

    assert ids(Selection()) == (["4", "1", "3"], ["2"])
    assert ids(Selection(steal=True)) == (["2", "4", "1", "3"], [])
    assert ids(Selection(job="a")) == (["1"], ["2"])
    assert ids(Selection(job="02", ranks=frozenset({1}))) == (["4"], [])
    assert Selection(ranks=frozenset({0, 5})).missing(pauses) == {5}


def test_overview_is_a_plain_table() -> None:
    """The overview has a heading and columns of equal width."""
    rows = [(">", "0", "breakpoint", "a.py:1 f", "12", "3 s"), ("", "#2", "running", "", "", "")]
    assert ranks.table(rows) == (
        "   rank  state       where     step  paused for\n>  0     breakpoint  a.py:1 f  12    3 s\n   #2    running"
    )


def test_summaries_of_equal_values_are_equal() -> None:
    """Equal values have one summary in every process: addresses do not count, types and text do."""

    class Thing:
        pass

    def same(a: Any, b: Any) -> bool:
        return tensor_probe.summarise(a, "k") == tensor_probe.summarise(b, "k")

    assert same(Thing(), Thing())
    assert same(np.arange(4), np.arange(4))
    assert not same(1, "1")
    assert not same(np.arange(4), np.arange(4.0))
    assert not same(np.arange(4), np.arange(4)[::-1])
    assert not same("a" * 5000, "a" * 4999 + "b")
    sys.__dict__.pop("_raydebug_packed")


def test_distance_of_tensors() -> None:
    """The distance is the largest of all elements; NaN equals NaN, and one on one side alone is counted."""
    ours, theirs = array.array("d", [1, 2, math.nan, 4]), array.array("d", [1, 2.5, math.nan, math.nan])
    assert ranks._apart(ours, theirs) == "max difference 0.5, 2 of 4 elements differ, 1 of them NaN on one side"
    assert ranks._apart(array.array("d", [math.inf]), array.array("d", [math.inf])) == (
        "max difference 0, 0 of 1 elements differ"
    )


def shard(index: int, **values: Any) -> Any:
    """A rank's shard of four elements, one of two."""
    about = {"type": "DTensor", "shape": [8], "dtype": "float32", "part": [index, 2], "finite": 4, "norm": 3.0}
    return ranks._EqualValues([], {**about, "min": 0.0, "max": 2.0, "mean": 1.0, **values}, "k")


def test_whole_of_shards() -> None:
    """Shards make a whole if each is there once; their NaN and Inf counts are added."""
    assert ranks._whole([shard(0), shard(1, norm=4.0, max=5.0, mean=2.0, nan=1)]) == [
        "  the whole, from its 2 shards: norm 5  min 0  max 5  mean 1.5  NaN 1"
    ]
    assert ranks._whole([shard(1)]) == ["  shards, each with values of its own: not compared (1 of 2 are here)"]
    assert ranks._whole([shard(0), shard(1), shard(1, norm=4.0)]) == [
        "  copies of a shard differ: they make no one whole"
    ]
    assert ranks._whole([shard(0), shard(1, dtype="bfloat16")]) == ["  parts of different tensors: not compared"]
    assert ranks._whole([]) == []


def test_nearest_limit() -> None:
    """The status line says which watchdog ends a pause first, and when."""
    pause = {"watchdog": {"name": "torch process group", "after_s": 600.0}}
    assert view.nearest_limit(pause, 120.0) == "torch process group ends it in 8m00s"
    assert view.nearest_limit(pause, 700.0) == "torch process group is overdue"
    assert view.nearest_limit({}, 1.0) == ""
