"""Fixtures of the unit tests."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from gateway_under_test import GatewayUnderTest, open_gateway
from paused_programs import LIMIT_S, TRAINING, PausedProgram, Run
from raydebug import render
from raydebug.console.attach import attach_pause
from raydebug.console.session import GatewayAddress


@pytest.fixture(autouse=True)
def no_cluster_is_named() -> None:
    """What a verb suggests names no cluster of an earlier test."""
    render.suggest_for("default")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayUnderTest]:
    """A gateway of its own on free ports, ended with all that dialled it."""
    with open_gateway(tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayUnderTest]:
    """A gateway for all tests of a file that need none of their own."""
    with open_gateway(tmp_path_factory.mktemp("gateway")) as opened:
        yield opened


@pytest.fixture
def serve(shared_gateway: GatewayUnderTest, tmp_path: Path) -> Iterator[Callable[..., PausedProgram]]:
    """Start programs that pause; they end with the test."""
    started: list[PausedProgram] = []
    numbers = itertools.count()

    def start(body: str, *, waits: bool = True, **variables: str) -> PausedProgram:
        folder = tmp_path / f"program{next(numbers)}"
        folder.mkdir()
        started.append(PausedProgram(shared_gateway, folder, body, **variables))
        if waits:
            assert started[-1].pause
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def start(serve: Callable[..., PausedProgram]) -> Callable[..., list[PausedProgram]]:
    """Start the ranks of a training; each pauses."""

    def start_all(*ranks: int | None, **variables: str) -> list[PausedProgram]:
        places = ["" if rank is None else str(rank) for rank in ranks]
        new = [serve(TRAINING, waits=False, RANK=place, **variables) for place in places]
        assert all(program.pause for program in new)
        return new

    return start_all


@pytest.fixture
def run(shared_gateway: GatewayUnderTest, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a script at a program's pause: exit code, stdout with the program's path as JOB, stderr."""

    def attach(
        program: PausedProgram, *commands: str, target: str | None = None, token: str = shared_gateway.token,
        **options: object,
    ) -> tuple[int, str, str]:  # fmt: skip
        target = target or program.id
        capsys.readouterr()
        gateway = GatewayAddress(shared_gateway.gateway_host, shared_gateway.gateway_port, token)
        code = attach_pause(gateway, target, cluster="mine", commands=commands, **options)  # type: ignore[arg-type]
        shown = capsys.readouterr()
        return int(code), shown.out.replace(str(program.job), "JOB"), shown.err

    return attach


TYPED = """
import sys
from pathlib import Path
from raydebug import render
from raydebug.console.attach import attach_group, attach_pause
from raydebug.console.selection import Selection
from raydebug.console.session import GatewayAddress
from raydebug.errors import RaydebugError
from raydebug.client.gateway_client import fetch_pauses
from gateway_under_test import GatewayUnderTest
port, token, target, state = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
address, gateway = GatewayAddress("127.0.0.1", port, token), GatewayUnderTest(state, port, 0)
try:
    if target == "all":
        code = attach_group(address, Selection(), lambda: fetch_pauses(gateway), history_dir=state)
    else:
        code = attach_pause(address, target, cluster="mine", history_dir=state)
except RaydebugError as failure:
    render.error(failure)
    code = failure.exit_code
sys.exit(int(code))
"""


@pytest.fixture
def terminal(shared_gateway: GatewayUnderTest, tmp_path: Path) -> Iterator[Callable[..., pexpect.spawn]]:
    """Open the prompt at a program's pause (None: at all of them), in a terminal of its own."""
    opened: list[pexpect.spawn] = []
    plain = {"TERM": "xterm", "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONPATH": os.pathsep.join(sys.path)}

    def open_terminal(program: PausedProgram | None) -> pexpect.spawn:
        target = "all" if program is None else program.id
        argv = ["-c", TYPED, str(shared_gateway.gateway_port), shared_gateway.token, target, str(tmp_path / "state")]
        opened.append(
            pexpect.spawn(sys.executable, argv, env={**os.environ, **plain}, encoding="utf-8", timeout=LIMIT_S,
                          dimensions=(40, 100))
        )  # fmt: skip
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close(force=True)
