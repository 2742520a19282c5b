"""Programs on a real NVIDIA GPU below a real gateway; without a GPU every test is a visible skip."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway_under_test import GatewayUnderTest, open_gateway
from gpu_programs import START_LIMIT_S
from paused_programs import PausedProgram
from raydebug.console.attach import attach_pause
from raydebug.console.session import GatewayAddress


def why_no_gpu() -> str | None:
    """Return why nothing of this folder can run here, or None.

    Source: CUDA driver API: cuInit returns CUDA_ERROR_NO_DEVICE (100) where the driver finds no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver here: libcuda.so.1 cannot be loaded"
    if (code := driver.cuInit(0)) != 0:
        return f"the NVIDIA driver offers no GPU: cuInit returned {code}"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed in this environment"
    return None


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skip visibly without a GPU; with REQUIRE_GPU=1 that is a failure."""
    reason = why_no_gpu()
    if reason is None:
        return
    if os.environ.get("REQUIRE_GPU") == "1":
        pytest.fail(f"REQUIRE_GPU=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayUnderTest]:
    """A gateway of its own."""
    with open_gateway(tmp_path) as opened:
        yield opened


@pytest.fixture
def serve(gateway: GatewayUnderTest, tmp_path: Path) -> Iterator[Callable[..., PausedProgram]]:
    """Start programs; they end with the test."""
    started: list[PausedProgram] = []
    numbers = itertools.count()

    def start(body: str, **variables: str) -> PausedProgram:
        folder = tmp_path / f"program{next(numbers)}"
        folder.mkdir()
        started.append(PausedProgram(gateway, folder, body, START_LIMIT_S, **variables))
        return started[-1]

    yield start
    for one in started:
        one.close()


Look = Callable[..., str]


@pytest.fixture
def look(gateway: GatewayUnderTest, capsys: pytest.CaptureFixture[str]) -> Look:
    """Run console commands at a target and return what they printed, errors after the output."""

    def attach(target: str, *commands: str) -> str:
        capsys.readouterr()
        console = GatewayAddress(gateway.gateway_host, gateway.gateway_port, gateway.token)
        attach_pause(console, target, cluster="mine", commands=commands, timeout_s=START_LIMIT_S)
        shown = capsys.readouterr()
        return shown.out + shown.err

    return attach
