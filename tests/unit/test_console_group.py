"""Several ranks at one prompt: real processes that are paused at a real gateway."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from gateway_under_test import GatewayUnderTest
from paused_programs import LIMIT_S, TRAINING, PausedProgram
from raydebug.client.gateway_client import fetch_pauses
from raydebug.console import group as console_group
from raydebug.console.attach import attach_group
from raydebug.console.selection import Selection
from raydebug.console.session import GatewayAddress
from raydebug.errors import Exit, RaydebugError
from raydebug.render import Paint

ALL = Selection()

Group = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def group(shared_gateway: GatewayUnderTest, capsys: pytest.CaptureFixture[str]) -> Group:
    """Run a script at several pauses: exit code, lines of stdout without folders, stderr."""

    def attach(*commands: str, selection: Selection = ALL, **options: object) -> tuple[int, list[str], str]:
        capsys.readouterr()
        gateway = GatewayAddress(shared_gateway.gateway_host, shared_gateway.gateway_port, shared_gateway.token)
        code = attach_group(gateway, selection, lambda: fetch_pauses(shared_gateway), commands=commands, **options)
        shown = capsys.readouterr()
        lines = [re.sub(r"/\S*/", "", line) for line in shown.out.splitlines()]
        return int(code), lines, shown.err

    return attach


@pytest.fixture(scope="class")
def three(shared_gateway: GatewayUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PausedProgram]]:
    """Three paused ranks for all tests of a class."""
    programs = [PausedProgram(shared_gateway, tmp_path_factory.mktemp("rank"), TRAINING, RANK=str(r)) for r in range(3)]
    assert all(program.pause for program in programs)
    yield programs
    for program in programs:
        program.close()


@pytest.mark.usefixtures("three")
class TestThreeRanks:
    """Commands that leave three paused ranks as they are."""

    def test_addressed_commands(self, group: Group) -> None:
        """A command is for the current rank, for those it names, or for all; each line has the label of its rank."""
        assert group("p size", "@2 p size", "@0,2 p rank", "@1", "p rank", "@* p step", "p size @1-2") == (
            0,
            ["[rank 0] 128", "[rank 2] 127", "[rank 0] 0", "[rank 2] 2", "[rank 1] > job.py:11 update",
             "[rank 1] ->     breakpoint()", "[rank 1] 1", "[rank 0] 1", "[rank 1] 1", "[rank 2] 1", "[rank 1] 128",
             "[rank 2] 127"],
            "",
        )  # fmt: skip

    def test_diff_groups_values(self, group: Group) -> None:
        """`diff` groups ranks with equal values, and prints the distance of tensors."""
        code, lines, err = group("diff size", "diff step", "diff weights", "diff same", "diff other", "diff 1 / rank")
        assert (code, err) == (0, "")
        array = "numpy.ndarray  [6]  float64  cpu"
        assert lines == [
            "ranks 0, 1: 128",
            "rank 2:     127",
            "ranks 0-2: 1  (all equal)",
            f"ranks 0, 1: {array}  norm 7.4162  min 0  max 5  mean 2.5",
            f"rank 2:     {array}  norm 7.5208  min 0  max 5  mean 2.54167",
            "  rank 2 against rank 0: max difference 0.25, 1 of 6 elements differ",
            "ranks 0-2: numpy.ndarray  [2x2]  float64  cpu  norm 2  min 1  max 1  mean 1  (all equal)",
            "ranks 0, 1: numpy.ndarray  [2]  float64  cpu  norm 1.41421  min 1  max 1  mean 1",
            "rank 2:     numpy.ndarray  [3]  float64  cpu  norm 1.73205  min 1  max 1  mean 1",
            "  rank 2 against rank 0: another shape",
            "rank 0: *** ZeroDivisionError: division by zero",
            "rank 1: 1.0",
            "rank 2: 0.5",
        ]

    def test_diff_leaves_nothing_behind(self, group: Group) -> None:
        """The data that a process keeps for `diff` is dropped afterwards; the expression is evaluated once."""
        calls = "calls = []"
        code, lines, _ = group(f"@* {calls}", "diff (calls.append(1), weights)[1]", "@* len(calls)",
                               "@* __import__('sys').__dict__.get('_raydebug_packed')")  # fmt: skip
        ranks = [f"[rank {rank}]" for rank in range(3)]
        assert (code, lines[-6:]) == (0, [*(f"{rank} 1" for rank in ranks), *(f"{rank} {{}}" for rank in ranks)])

    def test_ranks_by_name_are_waited_for(self, group: Group) -> None:
        """`--ranks` attaches only these ranks; a script waits for each, and names the missing ones at its limit."""
        assert group("@* p rank", selection=Selection(ranks=frozenset({0, 2})))[1] == ["[rank 0] 0", "[rank 2] 2"]
        with pytest.raises(RaydebugError) as late:
            group("p 1", selection=Selection(ranks=frozenset({0, 9})), timeout_s=0.3)
        assert late.value.exit_code == Exit.TIMEOUT
        assert str(late.value).splitlines()[:2] == [
            "error: ranks 0, 9: not all paused within 0.3 s", "cause: missing: ranks 9",
        ]  # fmt: skip

    def test_held_pauses_are_left_out(
        self, three: list[PausedProgram], group: Group, shared_gateway: GatewayUnderTest
    ) -> None:
        """A pause that another client holds is left out and named; the others are attached."""
        with shared_gateway.held(three[1].id):
            code, lines, err = group("@* p rank")
        assert (code, lines) == (0, ["[rank 0] 0", "[rank 2] 2"])
        assert err == f"left out, another client holds them: pause {three[1].id} (--steal takes them over)\n"

    def test_script_from_a_pipe_and_failures(self, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lines of a pipe are run as those of -x; a failure at one rank ends the script after all have responded."""
        monkeypatch.setattr(sys, "stdin", io.StringIO("@* p 1 / rank\np 1\n"))
        code, lines, err = group()
        assert (code, lines) == (1, ["[rank 1] 1.0", "[rank 2] 0.5"])
        assert err == "[rank 0] *** ZeroDivisionError: division by zero\n"

    def test_addresses_that_name_nobody(self, group: Group) -> None:
        """An address that matches no rank is an error."""
        assert group("@7 p 1")[2] == "*** there is no rank 7 here; `ranks` lists what there is\n"
        assert group("@x p 1")[2] == "*** @x names no ranks; write @0,3 or @* or @#1\n"
        assert group("@#9 p 1")[2] == "*** there is no #9 here; `ranks` lists what there is\n"


def test_steps_and_going_on(start: Callable[..., list[PausedProgram]], group: Group) -> None:
    """All ranks step concurrently, all resume, and the next breakpoint of each is in the same session."""
    programs = start(0, 1)
    code, lines, _ = group("@* n", "@* c", "@* p step", "c @*")
    assert code == 0
    assert sorted(lines[:4]) == [
        f"[rank {rank}] {text}" for rank in (0, 1) for text in ("->     total = size + step", "> job.py:12 update")
    ]
    assert lines[-2:] == ["[rank 0] 2", "[rank 1] 2"]
    assert [program.process.wait(LIMIT_S) for program in programs] == [0, 0]


def test_pauses_without_a_rank(start: Callable[..., list[PausedProgram]], group: Group) -> None:
    """A pause without a rank is labelled by its number."""
    start(None, None)
    assert group("@#2 p step", "@* p step", "diff step") == (
        0, ["[#2] 1", "[#1] 1", "[#2] 1", "#1, #2: 1  (all equal)"], "",
    )  # fmt: skip
    assert group("@1 p step")[2] == "*** there is no rank 1 here: no pause here has a rank; use @#1\n"


def test_same_rank_twice(start: Callable[..., list[PausedProgram]], group: Group) -> None:
    """Two groups of workers may have a rank 0 each: both are shown, with different numbers."""
    start(0, 0)
    assert group("@0 p rank", "@#2 p rank")[1] == ["[rank 0] 0", "[rank 0 #2] 0", "[rank 0 #2] 0"]
    assert group("@0")[2] == "*** @0 is rank 0, rank 0 #2: name one of them alone\n"


def test_overview_shows_a_crash_beside_breakpoints(start: Callable[..., list[PausedProgram]], group: Group) -> None:
    """`ranks` shows state, place, step and time of each: of a crash, of a breakpoint and of a running rank."""
    start(0, 1)
    start(2, CRASHES="1", RAY_DEBUG_POST_MORTEM="1")
    group("@2 c", "p 1")
    time.sleep(0.5)
    code, lines, _ = group("ranks", "@1 c", "ranks")
    assert code == 0
    shown = [" ".join(line.split()) for line in lines]
    assert shown[0] == "rank state where step paused for"
    assert shown[1].startswith("> 0 breakpoint job.py:11 update 1 ")
    assert shown[3].startswith("2 post-mortem job.py:16 crash: ValueError: rank 2 has bad data ")


def test_one_that_dies_leaves_the_others(start: Callable[..., list[PausedProgram]], group: Group) -> None:
    """A process that dies is reported in one line; the others stay, and the script fails with that command."""
    start(0, 1)
    code, lines, err = group("@1 import os; os._exit(3)", "@* p rank")
    assert code == 1
    assert any(line.startswith("[rank 1] left: the gateway said: ") for line in lines)
    assert "[rank 1] *** the session ended: process" in err


async def test_label_of_one_that_is_not_attached(capsys: pytest.CaptureFixture[str]) -> None:
    """When one of several pauses cannot be attached, the line that says so has its label in colour."""
    failure = RaydebugError("refused", cause="gone\x1b[2J", fix="look", code="x")

    class Refusing:
        async def open(self, *_: object, **__: object) -> None:
            raise failure

    several = console_group.Group(Refusing(), Paint(True), interactive=False)  # type: ignore[arg-type]
    first = several._new(1, "rank 0", 0)
    first.label = "rank 0"
    several.debuggers = [first]
    assert await several.join([{"id": "2", "rank": 1}]) == [failure]  # type: ignore[typeddict-item]
    assert capsys.readouterr().err == "\x1b[36m[rank 1]\x1b[0m not attached: gone\\x1b[2J\n"
