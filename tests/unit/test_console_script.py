"""Commands by `-x` and from a pipe at a real pause: their output and their effect."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_lines import Took
from gateway_under_test import GatewayUnderTest
from paused_programs import LIMIT_S, STEPS, PausedProgram, Run

# Runs a program whose output is a pipe that nobody reads.
WITHOUT_READER = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.execvp(sys.argv[1], sys.argv[1:])"
Serve = Callable[..., PausedProgram]


def test_script_looks_around(serve: Serve, run: Run) -> None:
    """Commands that look print pdb's answers on stdout alone, and the task stays paused."""
    program = serve(STEPS)
    assert (
        run(program, "w", "u", "p weights.shape, 1", "d", "a", "whatis self.update", "p 'x' * 200", "ll")
        == (
            0,
            "  JOB:20 <module>\n      outer()\n"
            "  JOB:16 outer\n      result = Trainer().update([1, 2, 3])\n"
            "> JOB:8 update\n->    breakpoint()\n"
            "> JOB:16 outer\n->     result = Trainer().update([1, 2, 3])\n"
            "((2, 3), 1)\n"
            "> JOB:8 update\n->         breakpoint()\n"
            "self = <__main__.Trainer object at " + re.search("0x[0-9a-f]+", run(program, "p self")[1])[0] + ">\n"  # type: ignore[index]
            "batch = [1, 2, 3]\nscale = 2.0\n"
            "Method update\n"
            f"'{'x' * 200}'\n"
            "   6         def update(self, batch, *, scale=2.0):\n"
            "   7             total = 0\n"
            "   8  ->         breakpoint()\n"
            "   9             for item in batch:\n"
            "  10                 total += item\n"
            "  11             loss = total * scale\n"
            "  12             return loss\n",
            "",
        )
    )
    assert not program.said


def test_script_changes_values(serve: Serve, run: Run) -> None:
    """Assignments persist, prints appear here, and a name that is also a command can be assigned."""
    shown = run(serve(STEPS), "total = 40", "c = 2", "p total + c", "print('seen')", "!total", "None", "p None")
    assert shown == (0, "42\nseen\n40\nNone\n", "")


def test_script_steps(serve: Serve, run: Run) -> None:
    """n, until, r and `u` followed by n stop where pdb stops, and print the return value."""
    program = serve(STEPS)
    assert run(program, "n", "until 11", "p total", "r")[1] == (
        "> JOB:9 update\n->         for item in batch:\n"
        "> JOB:11 update\n->         loss = total * scale\n6\n"
        "--Return-- update -> 12.0\n> JOB:16 outer\n->     result = Trainer().update([1, 2, 3])\n"
    )
    assert run(program, "n", "p result", "n") == (
        0, "> JOB:17 outer\n->     again = result + 1\n12.0\n> JOB:18 outer\n->     return again\n", "",
    )  # fmt: skip


def test_step_of_the_selected_frame(serve: Serve, run: Run) -> None:
    """After `u`, n is a step of the caller, as in pdb."""
    shown = run(serve(STEPS), "u", "n")[1]
    assert shown.endswith("--Return-- update -> 12.0\n> JOB:17 outer\n->     again = result + 1\n")


def test_breakpoints(serve: Serve, run: Run) -> None:
    """b takes a line, a file and a function, with a condition; tbreak stops once; cl removes."""
    program = serve(STEPS)
    code, out, err = run(
        program, "b 10, total == 1", "tbreak job.py:12", "b Trainer.update", "b", "cl 3", "c", "p total", "c", "b", "cl"
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


def test_continue_last_leaves_at_once(serve: Serve, run: Run) -> None:
    """A final `c` is not waited for; after another `c` the next stop is printed."""
    program = serve(STEPS)
    assert run(program, "c", "p 'second'") == (0, "> JOB:21 <module>\n-> breakpoint()\n'second'\n", "")
    assert run(program, "c") == (0, "", "")
    assert program.process.wait(LIMIT_S) == 0
    assert program.said == "finished\n"


@pytest.fixture(scope="module")
def steps(shared_gateway: GatewayUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PausedProgram]:
    program = PausedProgram(shared_gateway, tmp_path_factory.mktemp("steps"), STEPS)
    yield program
    program.close()


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
def test_failing_commands(steps: PausedProgram, run: Run, command: str, message: str) -> None:
    """A command that fails says why on stderr, ends the script with exit code 1, and leaves the task paused."""
    assert run(steps, "p 1", command, "p 2") == (1, "1\n", f"*** {message}\n")


def test_tensor_in_the_process(steps: PausedProgram, run: Run) -> None:
    """`tensor` describes an array of the paused process."""
    assert run(steps, "u", "tensor weights")[1].endswith(
        "numpy.ndarray  [2x3]  float64  cpu\n  min 0  max 5  mean 2.5  std 1.70783\n"
        "  NaN 0  Inf 0\n  first [0, 1, 2, 3, 4, 5]\n"
    )


def test_commands_from_a_pipe(steps: PausedProgram, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without -x and without a terminal, the opening screen is shown and lines of stdin are run."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("p batch;; p scale\nq\np 3\n"))
    code, out, err = run(steps)
    assert (code, err) == (0, "")
    assert re.sub(r"(pid|for) \d+", r"\1 N", out) == (
        "breakpoint in update\n  JOB:8\n"
        "  rank 0, pid N, paused for N s, 3 frames\n\n"
        "   3     import numpy\n   4\n   5     class Trainer:\n"
        "   6         def update(self, batch, *, scale=2.0):\n"
        "   7             total = 0\n   8  ->         breakpoint()\n"
        "   9             for item in batch:\n  10                 total += item\n"
        "  11             loss = total * scale\n  12             return loss\n  13\n\n"
        "[1, 2, 3]\n2.0\n"
    )


def attach(
    gateway: GatewayUnderTest, *words: str, before: tuple[str, ...] = (), **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run `raydebug attach` as a program, in the network of a cluster."""
    around = {
        "RAYDEBUG_DASHBOARD": "http://127.0.0.1:9",
        "RAYDEBUG_GATEWAY_CLIENTS": f"127.0.0.1:{gateway.gateway_port}",
    }
    argv = [*before, sys.executable, "-m", "raydebug", "attach", *words]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(argv, env={**gateway.environment, **around}, timeout=40, **options)


def test_input_that_is_no_text(steps: PausedProgram, shared_gateway: GatewayUnderTest) -> None:
    """A byte on stdin that is not UTF-8 is replaced, and the script goes on to its end."""
    done = attach(shared_gateway, steps.id, input=b"p 1\np '\xff'\np 2\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().endswith("\n1\n'\ufffd'\n2\n")


def test_output_that_is_lost(serve: Serve, shared_gateway: GatewayUnderTest) -> None:
    """A script whose output is lost ends there with another code than 0: its last `c` is not run."""
    program = serve(STEPS)
    script = (program.id, "-x", "p 1", "-x", "c")
    piped = attach(shared_gateway, *script, before=(sys.executable, "-c", WITHOUT_READER))
    assert (piped.returncode, piped.stderr) == (141, b"")
    with Path("/dev/full").open("wb") as full:
        done = attach(shared_gateway, *script, stdout=full)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, b"error: standard output cannot be written")
    assert program.pause["line"] == 8


def test_source_from_the_process(serve: Serve, run: Run) -> None:
    """Source that is not on this machine comes from the process."""
    program = serve("code = '\\ndef f():\\n    breakpoint()\\n    return 1\\n'\nimport linecache\n"
                   "linecache.cache['/else/where.py'] = (len(code), None, code.splitlines(True), '/else/where.py')\n"
                   "exec(compile(code, '/else/where.py', 'exec'))\nf()\n")  # fmt: skip
    assert run(program, "l", "w")[1].startswith(
        "   1\n   2     def f():\n   3  ->     breakpoint()\n   4         return 1\n"
    )


FAILS = """# Fails in its second function.

def ratio(a, b):
    return a / b

def update(values):
    total = sum(values)
    return ratio(total, len(values) - 3)

update([1, 2, 3])
"""


def test_post_mortem(serve: Serve, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A post-mortem pause opens at the raising frame with the exception; nothing can be stepped; c resumes it."""
    program = serve(FAILS, RAY_DEBUG_POST_MORTEM="1")
    monkeypatch.setattr(sys, "stdin", io.StringIO("p a, b\nu\np values\nn\n"))
    code, out, err = run(program)
    assert out.startswith("post-mortem in ratio\n  ZeroDivisionError: division by zero\n  JOB:4\n")
    assert out.endswith("\n(6, 0)\n> JOB:8 update\n->     return ratio(total, len(values) - 3)\n[1, 2, 3]\n")
    assert (code, err) == (
        1, "*** nothing can be stepped after an exception: look around; `c` lets the task fail as it would\n",
    )  # fmt: skip
    assert run(program, "c") == (0, "", "")
    assert program.process.wait(LIMIT_S) == 1
    assert program.complained.endswith("ZeroDivisionError: division by zero\n")


def test_log_points(serve: Serve, run: Run) -> None:
    """A log point prints its text each time its line is reached, and does not stop."""
    code, out, err = run(serve(STEPS), 'log 10, "item={item} total={total}"', "b", "b 12", "c", "p total")
    assert (code, err) == (0, "")
    assert out == (
        "Log point 1 at JOB:10\nNum Type         Disp Enb   Where\n1   log point    keep yes   at JOB:10\n"
        "        says 'item={item} total={total}'\nBreakpoint 2 at JOB:12\n"
        "item=1 total=0\nitem=2 total=1\nitem=3 total=3\n> JOB:12 update\n->         return loss\n6\n"
    )


def test_watched_values(serve: Serve, run: Run) -> None:
    """A watched value is shown after a step and at a breakpoint, where it has changed, and only there."""
    _, out, _ = run(serve(STEPS), "watch total", "n", "b 11", "c")
    assert out == "display total: 0\n> JOB:9 update\n->         for item in batch:\nBreakpoint 1 at JOB:11\n"
    _, out, _ = run(serve(STEPS), "watch total", "b 11", "c", "n", "unwatch", "watch")
    assert out == (
        "display total: 0\nBreakpoint 1 at JOB:11\n> JOB:11 update\n->             loss = total * scale\n"
        "display total: 6  [old: 0]\n> JOB:12 update\n->         return loss\n"
    ).replace("->             loss", "->         loss")


HUGE = """text = "x" * 200_000_000
items = list(range(1_000_000))
nested = {"a": list(range(300_000))}
breakpoint()
"""


def test_huge_values_are_cut_in_time(serve: Serve, run: Run, took: Took) -> None:
    """F31: a text of 200 MB and a list of a million items are shown, cut, within a second."""
    program = serve(HUGE)
    run(program, "p 1")
    for command in ("p text", "p items", "items", "locals", "whatis text"):
        begin = time.monotonic()
        code, out, _ = run(program, command)
        span = time.monotonic() - begin
        took(command, span, 1.0)
        assert (code, len(out) < 200_000) == (0, True)
        assert span < 10.0, "more than a second is the load of this machine"


def test_full_value(serve: Serve, run: Run) -> None:
    """`full` prints what `p` cuts."""
    program = serve(HUGE)
    assert run(program, "p nested")[1].endswith("; `full` shows all\n")
    assert run(program, "full nested")[1] == str({"a": list(range(300_000))}) + "\n"
