"""The prompt, in a real terminal at a real pause, or at those of several ranks."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from paused_programs import LIMIT_S, STEPS, PausedProgram

Serve = Callable[..., PausedProgram]
Start = Callable[..., list[PausedProgram]]
Terminal = Callable[..., pexpect.spawn]
PROMPT = r"\(raydebug 0\)"


def _type(child: pexpect.spawn, line: str, *expected: str, prompt: str = "0") -> None:
    child.expect(rf"\(raydebug {prompt}\)")
    child.sendline(line)
    for text in expected:
        child.expect(text)


def test_prompt_and_going_on(serve: Serve, terminal: Terminal, tmp_path: Path) -> None:
    """The prompt prints values and errors, q asks, and y resumes the task; the history file is private."""
    program = serve(STEPS)
    child = terminal(program)
    child.expect("breakpoint in update")
    child.expect(r"8 .*-> .*breakpoint\(\)")
    _type(child, "p batch", r"\[1, 2, 3\]")
    _type(child, "nosuch", r"\*\*\* NameError: name 'nosuch' is not defined")
    _type(child, "q", r"\[b\]ack to the debugger:")
    child.sendline("b")
    _type(child, "c", "21 .*-> .*breakpoint")
    child.expect(PROMPT)
    child.sendeof()
    child.expect(r"\[b\]ack to the debugger:")
    child.sendline("y")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    assert program.process.wait(LIMIT_S) == 0
    (history,) = (tmp_path / "state" / "debugger_history").iterdir()
    assert "+p batch" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


@pytest.mark.alone
def test_tab_completes(serve: Serve, terminal: Terminal) -> None:
    """Tab completes names of the frame and attributes of their values."""
    child = terminal(serve(STEPS))
    child.expect(PROMPT)
    child.send("p sca\t")
    time.sleep(0.4)
    child.send("\r")
    child.expect(r"2\.0")
    child.expect(PROMPT)
    child.send("batch.cop\t")
    time.sleep(0.4)
    child.send("()\r")
    child.expect(r"\[1, 2, 3\]")


def test_interrupts(serve: Serve, terminal: Terminal) -> None:
    """Ctrl-C at the prompt clears the line; while the task runs it leaves, and the task keeps running."""
    program = serve("breakpoint()\nimport time\ntime.sleep(30)\n")
    child = terminal(program)
    child.expect(PROMPT)
    child.send("p 12")
    child.sendintr()
    _type(child, "p 'after'", "'after'")
    _type(child, "c", "running; waiting for the next stop")
    child.sendintr()
    child.expect("left; the task keeps running")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    assert program.process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "endless", ["sum(1 for _ in iter(int, 1))", "__import__('time').sleep(1000)", "while True: pass"]
)
def test_evaluation_that_never_returns(serve: Serve, terminal: Terminal, endless: str) -> None:
    """F32: Ctrl-C interrupts code that never returns; the session is kept, and the task resumes undamaged."""
    program = serve(STEPS)
    child = terminal(program)
    _type(child, endless, "is still running; Ctrl-C interrupts it")
    child.sendintr()
    child.expect(r"\*\*\* KeyboardInterrupt")
    _type(child, "p batch", r"\[1, 2, 3\]")
    _type(child, "c", "21 .*-> .*breakpoint")
    _type(child, "c", "process .* has ended")
    assert program.process.wait(LIMIT_S) == 0


@pytest.mark.slow
def test_sleep_of_another_thread(serve: Serve, terminal: Terminal) -> None:
    """A sleep in another thread than the main one cannot be interrupted: a message says so, and the session is kept."""
    program = serve("import threading\ndef work():\n    breakpoint()\nthreading.Thread(target=work).start()\n")
    child = terminal(program)
    _type(child, "__import__('time').sleep(6)", "is still running; Ctrl-C interrupts it")
    child.sendintr()
    child.expect("stopped waiting; the code still runs in the process")
    _type(child, "p 'later'", "'later'")


def test_process_gone_at_the_prompt(serve: Serve, terminal: Terminal) -> None:
    """A process that is killed while the person thinks ends the prompt with three lines and exit code 4."""
    program = serve(STEPS)
    child = terminal(program)
    child.expect(PROMPT)
    child.send("p ba")
    time.sleep(0.2)
    program.process.kill()
    child.expect(r"error: the session ended: process \d+ is gone")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 4


def test_pause_that_is_broken_off(serve: Serve, terminal: Terminal) -> None:
    """A KeyboardInterrupt in the paused thread (Ray's cancel) ends pause and session; the process can pause again."""
    program = serve(
        "try:\n    breakpoint()\nexcept KeyboardInterrupt:\n    print('cancelled', flush=True)\nbreakpoint()\n"
    )
    child = terminal(program)
    child.expect(PROMPT)
    program.process.send_signal(signal.SIGINT)
    child.expect(r"error: the session ended: pause \d+ is over")
    child.expect("KeyboardInterrupt was raised in it")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 4
    again = terminal(program)
    _type(again, "w", "job.py:5 <module>")
    _type(again, "c", "process .* has ended")
    assert (program.process.wait(LIMIT_S), program.said) == (0, "cancelled\n")


def test_resize(serve: Serve, terminal: Terminal) -> None:
    """The prompt survives a resize of the terminal, and output fits the new width."""
    child = terminal(serve(STEPS))
    child.expect(PROMPT)
    child.setwinsize(30, 50)
    time.sleep(0.2)
    child.sendline("pp ['x' * 20] * 3")
    child.expect(r"\['x{20}',\s+'x{20}',\s+'x{20}'\]")


# Several ranks


def test_prompt_of_several_ranks(start: Start, terminal: Terminal) -> None:
    """The prompt opens with the overview, names the current rank, and `@1` changes it."""
    start(0, 1)
    child = terminal(None)
    child.expect("rank  state +where +step  paused for")
    _type(child, "@* p rank", r"\[rank 0\] 0", r"\[rank 1\] 1", prompt="rank 0")
    _type(child, "@1", r"\[rank 1\] > ", prompt="rank 0")
    _type(child, "p rank", r"\[rank 1\] 1", prompt="rank 1")
    _type(child, "nosuch", r"\[rank 1\] \*\*\* NameError: name 'nosuch' is not defined", prompt="rank 1")
    _type(child, "@5 p 1", "there is no rank 5 here", prompt="rank 1")
    _type(child, "q", r"\[b\]ack to the debugger:", prompt="rank 1")
    child.sendline("n")
    child.expect("they stay paused")
    child.expect(pexpect.EOF)


@pytest.mark.slow
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
    _type(child, "q", r"\[b\]ack to the debugger:", prompt="rank 0")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    assert ([program.id for program in programs] == before) == (answer == "n")
    assert [program.pause["state"] for program in programs] == ["waiting", "waiting"]
