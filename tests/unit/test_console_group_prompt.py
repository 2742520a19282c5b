"""The prompt of several ranks, in a real terminal at real pauses."""

from __future__ import annotations

from collections.abc import Callable

import pexpect
import pytest

from paused_programs import LIMIT_S, PausedProgram

Start = Callable[..., list[PausedProgram]]
Terminal = Callable[..., pexpect.spawn]


def _type(child: pexpect.spawn, prompt: str, line: str, *expected: str) -> None:
    child.expect(rf"\(raydebug {prompt}\)")
    child.sendline(line)
    for text in expected:
        child.expect(text)


def test_prompt_of_several_ranks(start: Start, terminal: Terminal) -> None:
    """The prompt opens with the overview, names the current rank, and `@1` changes it."""
    start(0, 1)
    child = terminal(None)
    child.expect("rank  state +where +step  paused for")
    _type(child, "rank 0", "@* p rank", r"\[rank 0\] 0", r"\[rank 1\] 1")
    _type(child, "rank 0", "@1", r"\[rank 1\] > ")
    _type(child, "rank 1", "p rank", r"\[rank 1\] 1")
    _type(child, "rank 1", "nosuch", r"\[rank 1\] \*\*\* NameError: name 'nosuch' is not defined")
    _type(child, "rank 1", "@5 p 1", "there is no rank 5 here")
    _type(child, "rank 1", "q", r"\[b\]ack to the debugger:")
    child.sendline("n")
    child.expect("they stay paused")
    child.expect(pexpect.EOF)


def test_pauses_join_and_leave_by_themselves(start: Start, terminal: Terminal) -> None:
    """Stops are printed while the person types; new pauses join, ended ones leave, the last end ends the prompt."""
    programs = start(0)
    child = terminal(None)
    child.expect(r"\(raydebug rank 0\)")
    programs += start(1)
    child.expect(r"\[rank 1\] joined: > ")
    child.sendline("c @*")
    child.expect(r"\[rank \d\] > \S+job.py:11 update")
    child.expect(r"\[rank \d\] > \S+job.py:11 update")
    child.sendline("@* p step")
    child.expect(r"\[rank 0\] 2")
    child.expect(r"\[rank 1\] 2")
    child.sendline("@* c")
    child.expect(r"\[rank \d\] left: the gateway said: the process ended")
    child.expect(r"\[rank \d\] left: the gateway said: the process ended")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    assert [program.process.wait(LIMIT_S) for program in programs] == [0, 0]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_leaving(start: Start, terminal: Terminal, answer: str) -> None:
    """`q` asks once for all: y resumes them, n leaves them paused for the next client."""
    programs = start(0, 1)
    before = [program.id for program in programs]
    child = terminal(None)
    _type(child, "rank 0", "q", r"\[b\]ack to the debugger:")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    assert ([program.id for program in programs] == before) == (answer == "n")
    assert [program.pause["state"] for program in programs] == ["waiting", "waiting"]
