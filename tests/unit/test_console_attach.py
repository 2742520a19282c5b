"""`raydebug attach` of one pause: its choice, refusals, and the end of its session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from gateway_under_test import GatewayUnderTest
from paused_programs import PausedProgram, Run
from raydebug.console.attach import attach_pause
from raydebug.console.session import GatewayAddress
from raydebug.errors import Exit, RaydebugError

Serve = Callable[..., PausedProgram]
REFUSED = "the pause cannot be attached"
GOES_ON = "breakpoint()\nimport time\ntime.sleep(60)\n"


def refusal(run: Run, program: PausedProgram, **options: object) -> RaydebugError:
    with pytest.raises(RaydebugError) as refused:
        run(program, "p 1", **options)
    return refused.value


def test_wrong_token(serve: Serve, run: Run) -> None:
    """A wrong token is refused with the gateway's cause, as a usage error."""
    failure = refusal(run, serve(GOES_ON), token="x" * 64)
    assert failure.what.endswith(" refused the token")
    assert failure.cause == "the token is not this cluster's"
    assert (failure.code, failure.exit_code) == ("auth.wrong-token", Exit.USAGE)


def test_unknown_and_ended_pauses(serve: Serve, run: Run) -> None:
    """An unknown pause and one that has ended have different errors, each with a fix."""
    program = serve(GOES_ON)
    ended = program.id
    assert run(program, "c") == (0, "", "")
    unknown, gone = refusal(run, program, target="p7"), refusal(run, program, target=ended)
    assert (unknown.what, unknown.cause, unknown.exit_code) == (REFUSED, "there is no pause 'p7'", Exit.FAILED)
    assert (gone.what, gone.cause) == (REFUSED, f"pause {ended} has ended: it was continued")
    assert "`raydebug paused`" in gone.fix


def test_busy_pause(serve: Serve, run: Run, shared_gateway: GatewayUnderTest) -> None:
    """A pause that another client holds is exit code 3 and names that client; `steal` takes it over."""
    program = serve(GOES_ON)
    with shared_gateway.held(program.id):
        failure = refusal(run, program)
        assert (failure.exit_code, "--steal" in failure.fix) == (Exit.TAKEN, True)
        assert failure.cause == f"a test has held pause {program.id} for 0 s"
        assert run(program, "p 1", steal=True) == (0, "1\n", "")


def test_next_waits_no_longer_than_its_limit(serve: Serve, run: Run) -> None:
    """`next` prints that it waits; --timeout ends the wait with exit code 124."""
    program = serve(GOES_ON)
    assert run(program, "c") == (0, "", "")
    time.sleep(0.2)
    late = refusal(run, program, target="next", timeout_s=0.3)
    assert late.exit_code == Exit.TIMEOUT
    assert str(late).startswith("error: no pause came within 0.3 s\ncause: no thread of cluster 'mine' stopped")


def test_stop_that_never_comes(serve: Serve, run: Run) -> None:
    """A script's wait for a stop ends at its limit, with exit code 124."""
    program = serve(GOES_ON)
    with pytest.raises(RaydebugError) as late:
        run(program, "c", "p 1", timeout_s=0.3)
    assert (late.value.what, late.value.exit_code) == ("no stop within 0.3 s", Exit.TIMEOUT)


def test_no_gateway() -> None:
    """If no gateway answers, the error has its address."""
    with pytest.raises(RaydebugError) as lost:
        attach_pause(GatewayAddress("127.0.0.1", 1, "t"), "p1", cluster="mine", commands=["p 1"])
    assert (lost.value.what, lost.value.exit_code) == ("no gateway answers at 127.0.0.1:1", Exit.SESSION_LOST)


def test_several_pauses_are_shown_to_choose_from(
    start: Callable[..., list[PausedProgram]], shared_gateway: GatewayUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an ID, several pauses are shown as a table on stderr, and the error says how to name one or all."""
    from raydebug.cli.pauses import _choose
    from raydebug.client.gateway_client import fetch_pauses

    oldest = min((program.id for program in start(0, 1)), key=int)
    with pytest.raises(RaydebugError) as several:
        _choose(fetch_pauses(shared_gateway))  # type: ignore[arg-type]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "".join(shown.err.split()).count("job.py:11update") == 2  # long paths are folded
    assert several.value.exit_code == Exit.USAGE
    assert several.value.fix == f"name one: raydebug attach {oldest}; all at one prompt: raydebug attach all"


def test_selections_on_the_command_line() -> None:
    """An ID beside a selection, and an invalid list of ranks, are usage errors."""
    from raydebug.cli.pauses import _selection
    from raydebug.console.selection import Selection

    assert _selection("all", None, None, steal=False) == Selection()
    assert _selection(None, "0,3-4", "j", steal=True) == Selection(frozenset({0, 3, 4}), "j", steal=True)
    assert _selection("3", None, None, steal=False) is None
    with pytest.raises(RaydebugError, match="'3' and --ranks name different pauses") as both:
        _selection("3", "1", None, steal=False)
    assert both.value.exit_code == Exit.USAGE
    with pytest.raises(RaydebugError, match="--ranks x names no ranks"):
        _selection(None, "x", None, steal=False)


# Code that a client leaves behind

PAUSES = 'prompt = "ok"\nbreakpoint()\n'
IGNORES = """import time
end = time.monotonic() + 1
while time.monotonic() < end:
    try:
        time.sleep(0.05)
    except KeyboardInterrupt:
        pass
"""


async def test_code_that_has_not_begun(serve: Serve, shared_gateway: GatewayUnderTest) -> None:
    """A client that leaves interrupts its code also where the process begins it only later, behind other code."""
    program = serve(PAUSES)
    address = GatewayAddress(shared_gateway.gateway_host, shared_gateway.gateway_port, shared_gateway.token)
    session = await address.open(program.id, steal=False, on_output=lambda _: None)
    codes = (f"exec({IGNORES!r})", "exec('while True: pass')")
    running = [asyncio.ensure_future(session.evaluate(code)) for code in codes]
    await asyncio.sleep(0.2)
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await session.leave()
    session = await address.open(program.id, steal=False, on_output=lambda _: None)
    assert await asyncio.wait_for(session.evaluate("prompt"), 10) == "ok"
    await session.leave()
