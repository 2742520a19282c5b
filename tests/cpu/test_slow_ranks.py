"""Slow spots planted in one rank of a real torch (gloo, CPU): the rank is named with its cause, and no healthy one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gateway_under_test import GatewayUnderTest, open_gateway
from planted_slow import HEALTHY, PLANTS, Plant, load, try_plant

LONG = os.environ.get("RAYDEBUG_TEST_LONG") == "1"
SHORT = (PLANTS[1],)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayUnderTest]:
    with open_gateway(tmp_path_factory.mktemp("gateway")) as opened:
        yield opened


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", PLANTS if LONG else SHORT, ids=lambda one: f"{one.name}-{one.slow}-of-{one.ranks}")
def test_planted_slow_spot(gateway: GatewayUnderTest, plant: Plant) -> None:
    """The rank with a slow spot is named, with the line or the resource that shows it."""
    good, said = try_plant(gateway, plant)
    assert good, said


@pytest.mark.timeout(900)
@pytest.mark.parametrize("busy", [0, 8] if LONG else [0])
def test_healthy_ranks(gateway: GatewayUnderTest, busy: int) -> None:
    """Healthy ranks are not named, also with 8 busy processes beside them."""
    with load(busy):
        said = [try_plant(gateway, HEALTHY[number % 2]) for number in range(10 if LONG else 1)]
    assert [text for good, text in said if not good] == []
