"""`raydebug attach` against a real debugpy process: scripts, stdin, refusals, and the prompt in a real terminal."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from console_standin import LIMIT_S, TOKEN, StandIn

from raydebug.console.attach import attach_pause
from raydebug.console.session import Door
from raydebug.errors import Exit, RaydebugError

pytest.importorskip("debugpy", reason="debugpy runs in the paused process")

STEPS = """
import numpy

class Trainer:
    def update(self, batch, *, scale=2.0):
        total = 0
        pause()
        for item in batch:
            total += item
        loss = total * scale
        return loss

def outer():
    weights = numpy.arange(6.0).reshape(2, 3)
    result = Trainer().update([1, 2, 3])
    again = result + 1
    return again

outer()
pause()
print("finished", flush=True)
"""  # the first line of STEPS is line 2 of the job

FAILS = """
def ratio(a, b):
    return a / b

def update(values):
    total = sum(values)
    return ratio(total, len(values) - 3)

post_mortem(lambda: update([1, 2, 3]))
print("went on", flush=True)
"""

REFUSED = "the pause cannot be attached"
PROMPT = r"\(raydebug 0\)"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., StandIn]]:
    started: list[StandIn] = []

    def start(body: str, **options: object) -> StandIn:
        started.append(StandIn(tmp_path, body, **options))  # type: ignore[arg-type]
        started[-1].wait_paused()
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def attach(
        server: StandIn, *commands: str, target: str = "p1", token: str = TOKEN, **options: object
    ) -> tuple[int, str, str]:
        capsys.readouterr()
        door = Door("127.0.0.1", server.port, token)
        code = attach_pause(door, target, cluster="mine", commands=commands, **options)  # type: ignore[arg-type]
        shown = capsys.readouterr()
        return int(code), shown.out.replace(str(server.job), "JOB"), shown.err

    return attach


def test_script_looks_around(serve: Callable[..., StandIn], run: Run) -> None:
    """Commands that look print pdb's answers on stdout alone, and the task stays paused."""
    server = serve(STEPS)
    assert (
        run(server, "w", "u", "p weights.shape, 1", "d", "a", "whatis self.update", "p 'x' * 200", "ll")
        == (
            0,
            "  JOB:20 <module>\n      outer()\n"
            "  JOB:16 outer\n      result = Trainer().update([1, 2, 3])\n"
            "> JOB:8 update\n->    pause()\n"
            "> JOB:16 outer\n->     result = Trainer().update([1, 2, 3])\n"
            "((2, 3), 1)\n"
            "> JOB:8 update\n->         pause()\n"
            "self = <__main__.Trainer object at " + re.search("0x[0-9a-f]+", run(server, "p self")[1])[0] + ">\n"  # type: ignore[index]
            "batch = [1, 2, 3]\nscale = 2.0\n"
            "Method update\n"
            f"'{'x' * 200}'\n"
            "   6         def update(self, batch, *, scale=2.0):\n"
            "   7             total = 0\n"
            "   8  ->         pause()\n"
            "   9             for item in batch:\n"
            "  10                 total += item\n"
            "  11             loss = total * scale\n"
            "  12             return loss\n",
            "",
        )
    )
    assert not server.log.read_text()


def test_script_changes_values(serve: Callable[..., StandIn], run: Run) -> None:
    """Assignments hold, code that prints prints here, and a name that is also a command can be assigned."""
    shown = run(serve(STEPS), "total = 40", "c = 2", "p total + c", "print('seen')", "!total", "None", "p None")
    assert shown == (0, "42\nseen\n40\nNone\n", "")


def test_script_steps(serve: Callable[..., StandIn], run: Run) -> None:
    """n, until, r and `u` followed by n stop where pdb stops, and tell what was returned."""
    server = serve(STEPS)
    assert run(server, "n", "until 11", "p total", "r")[1] == (
        "> JOB:9 update\n->         for item in batch:\n"
        "> JOB:11 update\n->         loss = total * scale\n6\n"
        "--Return-- update -> 12.0\n> JOB:16 outer\n->     result = Trainer().update([1, 2, 3])\n"
    )
    assert run(server, "n", "p result", "n") == (
        0, "> JOB:17 outer\n->     again = result + 1\n12.0\n> JOB:18 outer\n->     return again\n", "",
    )  # fmt: skip


def test_step_of_the_selected_frame(serve: Callable[..., StandIn], run: Run) -> None:
    """After `u`, n is a step of the caller, as in pdb."""
    shown = run(serve(STEPS), "u", "n")[1]
    assert shown.endswith("--Return-- update -> 12.0\n> JOB:17 outer\n->     again = result + 1\n")


def test_breakpoints(serve: Callable[..., StandIn], run: Run) -> None:
    """b takes a line, a file and a function, with a condition; tbreak stops once; cl removes."""
    server = serve(STEPS)
    code, out, err = run(
        server, "b 10, total == 1", "tbreak job.py:12", "b Trainer.update", "b", "cl 3", "c", "p total", "c", "b", "cl"
    )
    assert (code, err) == (0, "")
    assert out == (
        "Breakpoint 1 at JOB:10\nTemporary breakpoint 2 at JOB:12\nBreakpoint 3 at JOB:7\n"
        "Num Type         Disp Enb   Where\n"
        "1   breakpoint   keep yes   at JOB:10\n        stop only if total == 1\n"
        "2   breakpoint   del  yes   at JOB:12\n3   breakpoint   keep yes   at JOB:7\n"
        "Deleted breakpoint 3 at JOB:7\n"
        "> JOB:10 update\n->             total += item\n1\n"
        "Deleted breakpoint 2 at JOB:12\n> JOB:12 update\n->         return loss\n"
        "Num Type         Disp Enb   Where\n1   breakpoint   keep yes   at JOB:10\n        stop only if total == 1\n"
        "        breakpoint already hit 1 time\nDeleted breakpoint 1 at JOB:10\n"
    )


def test_continue_last_leaves_at_once(serve: Callable[..., StandIn], run: Run) -> None:
    """A `c` that nothing follows is not waited for; one that is followed shows the next stop."""
    server = serve(STEPS)
    assert run(server, "c", "p 'second'") == (0, "> JOB:21 <module>\n-> pause()\n'second'\n", "")
    assert run(server, "c") == (0, "", "")
    assert server.process.wait(LIMIT_S) == 0
    assert server.log.read_text() == "finished\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("p nosuch", "NameError: name 'nosuch' is not defined"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise KeyError('a')", "KeyError: 'a'"),
        ("p 1 +", "SyntaxError: invalid syntax"),
        ("p", "p needs EXPR: p EXPR"),
        ("n + 1", "'n' takes no argument; for an expression write: ! n + 1"),
        ("jump 3", "pdb's 'jump' is not offered here; `h` lists what is"),
        ("d", "Newest frame"),
        ("tensor [1]", "not a tensor or an array: builtins.list"),
        ("b nosuch.py:3", "no file 'nosuch.py' is loaded in the process; give its full path"),
        ("cl 7", "No breakpoint numbered 7"),
        ("until 2", '"until" line number is smaller than current line number'),
        ("h nosuch", "No help for 'nosuch'"),
    ],
)
def test_failing_commands(steps: StandIn, run: Run, command: str, message: str) -> None:
    """A command that fails says why on stderr, ends the script with exit code 1, and leaves the task paused."""
    assert run(steps, "p 1", command, "p 2") == (1, "1\n", f"*** {message}\n")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    server = StandIn(tmp_path_factory.mktemp("steps"), STEPS)
    server.wait_paused()
    yield server
    server.close()


def test_tensor_in_the_process(steps: StandIn, run: Run) -> None:
    """`tensor` describes an array of the paused process."""
    assert run(steps, "u", "tensor weights")[1].endswith(
        "numpy.ndarray  [2x3]  float64  cpu\n  min 0  max 5  mean 2.5  std 1.70783\n"
        "  NaN 0  Inf 0\n  first [0, 1, 2, 3, 4, 5]\n"
    )


def test_commands_from_a_pipe(steps: StandIn, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without -x and without a terminal, the opening screen is shown and lines of stdin are run."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("p batch;; p scale\nq\np 3\n"))
    code, out, err = run(steps)
    assert (code, err) == (0, "")
    assert re.sub(r"(pid|for) \d+", r"\1 N", out) == (
        "breakpoint in update\n  JOB:8\n"
        "  rank 0, actor Trainer, task train_step, pid N, node a1b2c3d4 at 127.0.0.1,\n"
        "  job 01000000, paused for N s, 3 frames\n\n"
        "   3     import numpy\n   4\n   5     class Trainer:\n"
        "   6         def update(self, batch, *, scale=2.0):\n   7             total = 0\n   8  ->         pause()\n"
        "   9             for item in batch:\n  10                 total += item\n"
        "  11             loss = total * scale\n  12             return loss\n  13\n\n"
        "[1, 2, 3]\n2.0\n"
    )


def test_source_from_the_process(serve: Callable[..., StandIn], run: Run) -> None:
    """Source that is not on this machine comes from the process."""
    server = serve("code = '\\ndef f():\\n    pause()\\n    return 1\\n'\nimport linecache\n"
                   "linecache.cache['/else/where.py'] = (len(code), None, code.splitlines(True), '/else/where.py')\n"
                   "exec(compile(code, '/else/where.py', 'exec'))\nf()\n")  # fmt: skip
    assert run(server, "l", "w")[1].startswith("   1\n   2     def f():\n   3  ->     pause()\n   4         return 1\n")


def test_post_mortem(serve: Callable[..., StandIn], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A post-mortem pause opens at the raising frame with the exception; nothing can be stepped; c lets it go on."""
    server = serve(FAILS, record={"kind": "post-mortem"})
    monkeypatch.setattr(sys, "stdin", io.StringIO("p a, b\nu\np values\nn\n"))
    code, out, err = run(server)
    assert out.startswith("post-mortem in ratio\n  ZeroDivisionError: division by zero\n  JOB:4\n")
    assert out.endswith("\n(6, 0)\n> JOB:8 update\n->     return ratio(total, len(values) - 3)\n[1, 2, 3]\n")
    assert (code, err) == (
        1, "*** nothing can be stepped after an exception: look around; `c` lets the task fail as it would\n",
    )  # fmt: skip
    assert run(server, "c") == (0, "", "")
    assert server.process.wait(LIMIT_S) == 0
    assert server.log.read_text() == "went on\n"


@pytest.mark.parametrize(
    ("options", "code", "lines"),
    [
        ({"token": "wrong"}, Exit.USAGE, ("the gateway refused us", "the token is not this cluster's", "name it")),
        ({"target": "p7"}, Exit.FAILED, (REFUSED, "there is no pause 'p7'", "raydebug paused")),
        ({"target": "p0"}, Exit.FAILED, (REFUSED, "pause p0 has ended: its process 99 exited", "raydebug paused")),
    ],
)  # fmt: skip
def test_refusals(steps: StandIn, run: Run, options: dict[str, str], code: Exit, lines: tuple[str, ...]) -> None:
    """A wrong token, an unknown and an ended pause are said in the gateway's words, with their exit codes."""
    with pytest.raises(RaydebugError) as refused:
        run(steps, "p 1", **options)
    failure = refused.value
    assert ((failure.what, failure.cause, failure.fix), failure.exit_code) == (lines, code)


def test_busy_pause(steps: StandIn, run: Run) -> None:
    """A pause that another client holds is exit code 3, unless it is taken over."""
    steps.busy = True
    try:
        with pytest.raises(RaydebugError) as refused:
            run(steps, "p 1")
        assert refused.value.exit_code == Exit.TAKEN
        assert run(steps, "p 1", steal=True) == (0, "1\n", "")
    finally:
        steps.busy = False


def test_next_waits_no_longer_than_its_limit(serve: Callable[..., StandIn], run: Run) -> None:
    """`next` says what it waits for; --timeout ends the wait with exit code 124."""
    server = serve("pause()\nimport time\ntime.sleep(60)\n")
    assert run(server, "c") == (0, "", "")
    time.sleep(0.2)
    with pytest.raises(RaydebugError) as late:
        run(server, "p 1", target="next", timeout_s=0.3)
    assert late.value.exit_code == Exit.TIMEOUT
    assert str(late.value).startswith("error: no pause came within 0.3 s\ncause: no thread of cluster 'mine' stopped")


def test_stop_that_never_comes(serve: Callable[..., StandIn], run: Run) -> None:
    """A script that waits for a stop gives up at its limit, with exit code 124."""
    server = serve("pause()\nimport time\ntime.sleep(60)\n")
    with pytest.raises(RaydebugError) as late:
        run(server, "c", "p 1", timeout_s=0.3)
    assert (late.value.what, late.value.exit_code) == ("no stop within 0.3 s", Exit.TIMEOUT)


def test_process_that_dies(serve: Callable[..., StandIn], run: Run) -> None:
    """When the process dies under the debugger, that is said, with exit code 4."""
    with pytest.raises(RaydebugError) as lost:
        run(serve(STEPS), "import os; os._exit(3)", "p 1")
    assert (lost.value.code, lost.value.exit_code) == ("session.process-gone", Exit.SESSION_LOST)


def test_no_gateway(run: Run) -> None:
    """Where no gateway answers, the error says where it was looked for."""
    with pytest.raises(RaydebugError) as lost:
        attach_pause(Door("127.0.0.1", 1, "t"), "p1", cluster="mine", commands=["p 1"])
    assert (lost.value.what, lost.value.exit_code) == ("no gateway answers at 127.0.0.1:1", Exit.SESSION_LOST)


# The prompt, in a real terminal

TYPED = """
import sys
from pathlib import Path
from raydebug import render
from raydebug.console.attach import attach_pause
from raydebug.console.session import Door
from raydebug.errors import RaydebugError
port, target, state = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
try:
    code = attach_pause(Door("127.0.0.1", port, "right-token"), target, cluster="mine", history_dir=state)
except RaydebugError as failure:
    render.error(failure)
    code = failure.exit_code
sys.exit(int(code))
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[[StandIn], pexpect.spawn]]:
    opened: list[pexpect.spawn] = []

    def open_terminal(server: StandIn, target: str = "p1") -> pexpect.spawn:
        environment = {
            **os.environ,
            "TERM": "xterm",
            "NO_COLOR": "1",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        argv = ["-c", TYPED, str(server.port), target, str(tmp_path / "state")]
        opened.append(
            pexpect.spawn(
                sys.executable, argv, env=environment, encoding="utf-8", timeout=LIMIT_S, dimensions=(40, 100)
            )
        )
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close(force=True)


def _type(child: pexpect.spawn, line: str, expected: str) -> None:
    child.expect(PROMPT)
    child.sendline(line)
    child.expect(expected)


def test_prompt_and_going_on(
    serve: Callable[..., StandIn], terminal: Callable[..., pexpect.spawn], tmp_path: Path
) -> None:
    """At the prompt values are shown, mistakes are told, q asks, and y lets the task go on; history is private."""
    server = serve(STEPS)
    child = terminal(server)
    child.expect("breakpoint in update")
    child.expect(r"8 .*-> .*pause\(\)")
    _type(child, "p batch", r"\[1, 2, 3\]")
    _type(child, "nosuch", r"\*\*\* NameError: name 'nosuch' is not defined")
    _type(child, "q", r"\[b\]ack to the debugger:")
    child.sendline("b")
    _type(child, "c", "JOB|-> pause")
    child.expect(PROMPT)
    child.sendeof()
    child.expect(r"\[b\]ack to the debugger:")
    child.sendline("y")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    assert server.process.wait(LIMIT_S) == 0
    history = tmp_path / "state" / "debugger_history"
    assert "+p batch" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_staying_paused(serve: Callable[..., StandIn], terminal: Callable[..., pexpect.spawn], run: Run) -> None:
    """`q` with `n` leaves the task paused, and the next client finds the same frame and values."""
    server = serve(STEPS)
    child = terminal(server)
    _type(child, "total = 5", "")
    _type(child, "q", "debugger:")
    child.sendline("n")
    child.expect(pexpect.EOF)
    assert run(server, "p total") == (0, "5\n", "")


def test_tab_completes(serve: Callable[..., StandIn], terminal: Callable[..., pexpect.spawn]) -> None:
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


def test_interrupts(serve: Callable[..., StandIn], terminal: Callable[..., pexpect.spawn]) -> None:
    """Ctrl-C at the prompt clears the line; during an evaluation it stops the waiting; while running it leaves."""
    server = serve("pause()\nimport time\ntime.sleep(30)\n")
    child = terminal(server)
    child.expect(PROMPT)
    child.send("p 12")
    child.sendintr()
    _type(child, "p 'after'", "'after'")
    _type(child, "__import__('time').sleep(1.5)", "sleep")
    time.sleep(0.4)
    child.sendintr()
    child.expect("not waited for any longer")
    _type(child, "p 'later'", "'later'")
    _type(child, "c", "running; waits for the next stop here")
    child.sendintr()
    child.expect("left; the task runs on")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    assert server.process.poll() is None


def test_process_gone_at_the_prompt(serve: Callable[..., StandIn], terminal: Callable[..., pexpect.spawn]) -> None:
    """A process that is killed while the person thinks ends the prompt with three lines and exit code 4."""
    server = serve(STEPS)
    child = terminal(server)
    child.expect(PROMPT)
    child.send("p ba")
    time.sleep(0.2)
    server.process.kill()
    child.expect(r"error: the session ended: process \d+ is gone")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 4


def test_resize(serve: Callable[..., StandIn], terminal: Callable[..., pexpect.spawn]) -> None:
    """The prompt works on after the terminal has another size, and what is printed fits the new one."""
    child = terminal(serve(STEPS))
    child.expect(PROMPT)
    child.setwinsize(30, 50)
    time.sleep(0.2)
    child.sendline("pp ['x' * 20] * 3")
    child.expect(r"\['x{20}',\s+'x{20}',\s+'x{20}'\]")
