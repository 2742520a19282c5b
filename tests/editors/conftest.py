"""Real editors' clients, and a gateway for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_under_test import GatewayUnderTest, open_gateway


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayUnderTest]:
    """A gateway on free ports, ended together with the processes that dialled in."""
    with open_gateway(tmp_path) as gateway:
        yield gateway


@pytest.fixture
def training(gateway: GatewayUnderTest) -> GatewayUnderTest:
    """A gateway with three pauses: two ranks at a breakpoint, the third one at its crash."""
    for rank in "012":
        gateway.start(TRAINING, RANK=rank, RAY_DEBUG_POST_MORTEM="1")
        gateway.pauses(int(rank) + 1)  # one by one: their ids are in the order of their ranks
    return gateway


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
