"""Real editors' clients, and a gateway for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_door import Door, open_door


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """A gateway on free ports, ended together with the processes that dialled in."""
    with open_door(tmp_path) as door:
        yield door


@pytest.fixture
def training(door: Door) -> Door:
    """A gateway with three pauses: two ranks at a breakpoint, the third one at its crash."""
    for rank in "012":
        door.start(TRAINING, RANK=rank, RAY_DEBUG_POST_MORTEM="1")
        door.pauses(int(rank) + 1)  # one by one: their ids are in the order of their ranks
    return door


TRAINING = """\
import os


def reward(i):
    return i * 10


def work(rank):
    secret = 41 + rank
    if rank == 2:
        raise ValueError("rank two")
    breakpoint()
    for i in range(4):
        last = reward(i)
    return last


print("went on", work(int(os.environ["RANK"])))
"""
