"""The debugger's pure parts: command lines, source, stack, values, tensors, screens; exact text."""

from __future__ import annotations

import doctest
import json
import math
import types
from typing import Any

import numpy as np
import pytest

from raydebug.client import gateway_client
from raydebug.console import attach, commands, frames, probes, selection, tensor_probe, view
from raydebug.console.frames import Stack, where
from raydebug.console.session import explain_refusal
from raydebug.dap import RequestFailed
from raydebug.errors import Exit, RaydebugError
from raydebug.render import Paint

PLAIN = Paint(False)
TRACE = "Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("n", "n", ""), ("w -a", "w", "-a"), ("p x + 1", "p", "x + 1"), ("p(x)", "p", "(x)"), ("?b", "h", "b"),
        ("cont", "c", ""), ("exit", "q", ""), ("b f.py:3, x == 2", "b", "f.py:3, x == 2"), ("p x == 1", "p", "x == 1"),
        ("c = 5", None, "c = 5"), ("a += 1", None, "a += 1"), ("l: int = 3", None, "l: int = 3"),
        ("list(x)", None, "list(x)"), ("l.append(1)", None, "l.append(1)"), ("a[0]", None, "a[0]"), ("x", None, "x"),
        ("!n = 3", None, "n = 3"), ("! p", None, "p"), ("n == 3", "n", "== 3"),
    ],
)  # fmt: skip
def test_line_is_command_or_python(line: str, name: str | None, argument: str) -> None:
    """A line is a command by its first word, except where that word is assigned to, called or indexed."""
    command, rest = commands.parse(line)
    assert (command and name in command.names, rest) == (None if name is None else True, argument)


def test_names_are_pdbs_own() -> None:
    """Each command name means one thing, and all of pdb's names and aliases of the offered commands exist."""
    names = [name for command in commands.TABLE for name in command.names]
    assert len(names) == len(set(names))
    pdbs = "w where bt u up d down n next s step r return unt until c cont continue l list ll longlist p pp a args b break tbreak cl clear whatis source display undisplay q quit exit h help"  # noqa: E501
    assert set(pdbs.split()) <= set(names)
    assert {"tensor", "locals", "threads"} <= set(names)


@pytest.mark.parametrize("module", [commands, selection])
def test_docs_hold(module: types.ModuleType) -> None:
    """The examples in the docstrings are true."""
    assert doctest.testmod(module).failed == 0


LINES = [
    "import x",
    "@dec",
    "def outer(a, /, b, *rest, k=1, **kw):",
    "    for i in b:",
    "        a += i",
    "    def inner(z):",
    "        return z",
    "    return inner",
    "y = 1",
]


def test_listing_marks_current_and_breakpoints() -> None:
    """A listing has line numbers, `B` at breakpoints and `->` at the current line, and no trailing blanks."""
    shown = frames.listing(LINES, 4, 6, current=5, breakpoints={4})
    assert shown == "   4 B       for i in b:\n   5  ->         a += i\n   6         def inner(z):"


def test_listing_shows_control_characters() -> None:
    """An escape sequence in a job's source is shown, not sent to the terminal."""
    assert frames.listing(["a = '\x1b[2J'"], 1, 1) == "   1     a = '\\x1b[2J'"


def test_colour_changes_no_line_number() -> None:
    """With colour each line stays on its own number, blank lines at the ends too."""
    shown = frames.listing(["", "x = '''", "'''", "", ""], 1, 5, paint=Paint(True))
    assert len(shown.split("\n")) == 5
    assert "\x1b[" in shown


def test_function_around_a_line() -> None:
    """The innermost function has its decorators, all kinds of arguments, and only its own statements."""
    outer = frames.function_at(LINES, 5)
    assert outer == frames.Function("outer", 2, 8, ("a", "b", "rest", "k", "kw"), (4, 5, 6, 8))
    inner = frames.function_at(LINES, 7)
    assert inner is not None
    assert (inner.name, inner.first, inner.last) == ("inner", 6, 7)
    assert frames.function_at(LINES, 9) is None
    assert frames.function_at(["def ("], 1) is None


def _frame(number: int, name: str, path: str, line: int = 1) -> dict[str, Any]:
    return {"id": number, "name": name, "line": line, "source": {"path": path, "sourceReference": 0}}


RAY = "/v/lib/python3.11/site-packages/ray/_private/workers/default_worker.py"


def test_where_folds_rays_frames() -> None:
    """`w` shows the oldest frame first and folds Ray's frames into one line; all of them on demand."""
    stack = Stack.parse([_frame(1, "score", "/j/r.py", 7), _frame(2, "main_loop", RAY), _frame(3, "<module>", RAY)])
    assert where(stack, {1: "    x = 1"}) == (
        "  ... 2 frames of Ray (`w all` shows them)\n> /j/r.py:7 score\n->    x = 1"
    )
    assert where(stack, {}, all_frames=True) == f"  {RAY}:1 <module>\n  {RAY}:1 main_loop\n> /j/r.py:7 score"


def test_opening_frame_is_the_readers() -> None:
    """A stack opens at the newest frame that is not Ray's; with Ray's frames alone, at the top."""
    stack = Stack.parse([_frame(1, "get_objects", RAY), _frame(2, "main", "/j/r.py")])
    assert stack.selected == 1
    assert Stack.parse([_frame(1, "get_objects", RAY)]).selected == 0
    assert Stack.parse([]).frame is None


def test_moving_passes_over_rays_frames() -> None:
    """`u` and `d` pass over Ray's frames, until `w all` has shown them."""
    calls = [("score", "/j/r.py"), ("call", RAY), ("remote", RAY), ("main", "/j/r.py"), ("main_loop", RAY)]
    stack = Stack.parse([_frame(number, *frame) for number, frame in enumerate(calls)])
    assert [stack.move(1), stack.selected, stack.move(1), stack.folded_beyond(1)] == [True, 3, False, 1]
    assert [stack.move(-1), stack.selected] == [True, 0]
    stack.unfolded = True
    assert [stack.move(1), stack.selected, stack.move(9), stack.selected] == [True, 1, True, 4]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abc", "'abc'"),
        ("a" * 50, f"{'a' * 20!r} ... the first 20 of 50; `full` shows all"),
        ([1] * 50, "[1, 1, 1, 1, 1, 1, 1 ... the first of 50 items; `full` shows all"),
        ({n: n for n in range(9)}, "{0: 0, 1: 1, 2: 2, 3 ... the first 20 of 54 characters; `full` shows all"),
    ],
)
def test_long_values_are_cut(value: Any, text: str) -> None:
    """A long value is cut, with a note on its length and on `full`."""
    assert probes.shown(value, 20) == text


def test_moving_stops_at_the_ends() -> None:
    """Moving goes at most to the oldest and the newest frame, and reports when it cannot move."""
    stack = Stack.parse([_frame(n, f"f{n}", "/j/r.py") for n in range(3)])
    assert [stack.move(99), stack.selected, stack.move(1), stack.move(-1), stack.selected] == [True, 2, False, True, 1]


@pytest.mark.parametrize(
    ("traceback", "line"),
    [
        (f'{TRACE}  File "<string>", line 1, in <module>\nNameError: no\n', "NameError: no"),
        (f'{TRACE}  File "<string>"\nValueError: a\nb\n', "ValueError: a\nb"),
        (f"{TRACE}  F\nKeyError: 1\n\nDuring handling ...:\n\n{TRACE}  F\nIndexError: 2\n", "IndexError: 2"),
        ("plain words", "plain words"),
    ],
)  # fmt: skip
def test_exception_line_of_a_traceback(traceback: str, line: str) -> None:
    """A failed expression shows the last exception's own line or lines, as pdb does."""
    assert probes.exception_line(traceback) == line


def test_sent_expressions_mean_what_they_say() -> None:
    """The wrapped expressions evaluate to pdb's texts, also with a comment or a tuple without brackets."""
    space: dict[str, Any] = {"x": [1] * 100, "f": test_exception_line_of_a_traceback, "C": Stack}
    assert eval(probes.as_shown("x # all", 1000), space) == repr([1] * 100)
    assert eval(probes.as_shown("1, 2", 1000), space) == "(1, 2)"
    assert eval(probes.as_shown_unless_none("None", 1000), space) is None
    assert eval(probes.as_kind("C"), space) == "Class raydebug.console.frames.Stack"
    assert eval(probes.as_kind("f"), space) == "Function test_exception_line_of_a_traceback"
    assert eval(probes.as_kind("C().move"), space) == "Method move"
    assert eval(probes.as_kind("1"), space) == "<class 'int'>"
    path, line = json.loads(eval(probes.as_code_place("C.move"), space))
    assert path.endswith("frames.py")
    assert "open_to = " in frames.read_local(path)[line - 1]  # type: ignore[index]
    assert eval(probes.as_code_place("x"), space) == "null"


def test_no_python_is_said_in_pythons_words() -> None:
    """Text that does not parse is refused with Python's own message, without a request to the process."""
    with pytest.raises(probes.NotPython, match="SyntaxError: invalid syntax"):
        probes.check_expression("1 +")
    with pytest.raises(probes.NotPython, match="an expression is missing"):
        probes.check_expression(" ")
    assert not probes.is_expression("x = 1")


def _described(value: Any, **options: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tensor_probe.describe(value, **options))
    return found


def test_tensor_of_an_array() -> None:
    """An array's summary has shape, dtype, spread over the finite values, counts of NaN and Inf, and first values."""
    array = np.array([[1.0, 2.0, 3.0], [np.nan, np.inf, -np.inf]], dtype="f4")
    assert view.draw_tensor(_described(array)) == (
        "numpy.ndarray  [2x3]  float32  cpu\n"
        "  min 1  max 3  mean 2  std 0.816497\n"
        "  NaN 1  Inf 2  (the line above is of the 3 finite values)\n"
        "  first [1, 2, 3, nan, inf, -inf]"
    )


@pytest.mark.parametrize("array", [np.arange(1000.0), np.arange(1000.0).reshape(10, 100).T, np.arange(1000) % 7 == 0])
def test_tensor_in_pieces_is_exact(array: Any) -> None:
    """Reductions over pieces give what numpy gives over the whole."""
    found = _described(array, piece=64)
    assert math.isclose(found["mean"], array.mean())
    assert math.isclose(found["std"], array.std())
    assert (found["min"], found["max"]) == (array.min(), array.max())


def test_tensor_is_one_expression() -> None:
    """The sent expression needs nothing but the frame's names, and refuses other values than tensors with a message."""
    found = json.loads(eval(probes.as_description("a * 2"), {"a": np.float64(2)}))
    assert (
        view.draw_tensor(found)
        == "numpy.float64  [scalar]  float64  cpu\n  min 4  max 4  mean 4  std 0\n  NaN 0  Inf 0\n  first [4]"
    )
    with pytest.raises(ValueError, match=r"not a tensor or an array: builtins\.list"):
        view.draw_tensor(_described([1]))


def test_tensor_of_a_shard_says_so() -> None:
    """A DTensor's summary says that its values are of the local shard."""
    found = {"type": "torch.distributed.tensor.DTensor", "shape": [8, 4], "dtype": "bfloat16", "device": "cuda:1",
             "requires_grad": True, "numel": 32,
             "placements": ["S(0)"], "local_shape": [4, 4], "part": [1, 2], "nan": 0, "inf": 0,
             "finite": 16, "min": -1.0, "max": 1.0, "mean": 0.0, "std": 0.5, "first": [0.25]}  # fmt: skip
    assert view.draw_tensor(found) == (
        "torch.distributed.tensor.DTensor  [8x4]  bfloat16  cuda:1  requires_grad\n"
        "  shard 1 of 2 [4x4] by S(0); the values below are this rank's\n"
        "  min -1  max 1  mean 0  std 0.5\n  NaN 0  Inf 0\n  first [0.25, ...]"
    )


def test_heading_of_a_breakpoint() -> None:
    """The heading says what stopped, where, and who; unknown things are left out."""
    pause = {"kind": "breakpoint", "rank": 3, "pid": 42, "node_id": "abcdef0123", "ip": "10.0.0.2", "since_s": 75.2,
             "task": None, "actor": "Trainer", "job_id": "01000000", "thread": "MainThread"}  # fmt: skip
    shown = view.heading(pause, function="update", place="/j/a.py:7", depth="2 frames", paint=PLAIN, width=60)
    assert shown == (
        "breakpoint in update\n  /j/a.py:7\n"
        "  rank 3, actor Trainer, pid 42, node abcdef01 at 10.0.0.2,\n"
        "  job 01000000, paused for 1m15s, 2 frames"
    )


def test_heading_in_a_compiled_function() -> None:
    """Where torch.compile runs the function, the heading says that variables are missing, and how to get them."""
    pause = {"kind": "breakpoint", "pid": 42, "compiled": True}
    shown = view.heading(pause, function="f", place="a.py:7", paint=PLAIN)
    assert shown.splitlines()[2:] == [
        "  pid 42",
        "  torch.compile runs this function: variables that only its graph needs are",
        "  not set. They are with TORCH_COMPILE_DISABLE=1 in the job's environment.",
    ]


def test_heading_of_a_child() -> None:
    """The heading and the list distinguish a child of a worker from the worker itself."""
    pause = {"kind": "breakpoint", "actor": "vLLMHttpServer", "pid": 42, "child_of": 41, "job_id": "02000000"}
    shown = view.heading(pause, function="step", place="core.py:592", paint=PLAIN)
    assert shown.splitlines()[-1] == "  child of vLLMHttpServer pid 41, pid 42, job 02000000"
    assert gateway_client.name_owner(pause) == "pid 42, child of vLLMHttpServer pid 41"
    assert gateway_client.name_owner({"rank": 1, "pid": 42, "child_of": 41}) == "rank 1 pid 42, child of worker pid 41"


def test_exception_of_a_post_mortem() -> None:
    """The exception is its type and message, without pydevd's note of where it stopped."""
    info = {"exceptionId": "builtins.ZeroDivisionError\n (note: full exception trace is shown but ...)",
            "description": "division by zero"}  # fmt: skip
    assert view.exception_text(info, {}) == "ZeroDivisionError: division by zero"
    assert view.exception_text(None, {"exception": {"type": "KeyError", "message": "'a'"}}) == "KeyError: 'a'"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("pause.busy", Exit.TAKEN), ("pause.unknown", Exit.FAILED),
     ("pause.ended", Exit.FAILED), ("pause.gone", Exit.FAILED)],
)  # fmt: skip
def test_refusals_map_to_exit_codes(code: str, exit_code: Exit) -> None:
    """A refusal keeps the gateway's cause and fix, and has the exit code of its kind."""
    error = {"code": code, "cause": "no, because", "fix": "do this", "format": "no, because; do this"}
    refused = RequestFailed("attach", "no, because; do this", {"error": error})
    failure = explain_refusal(refused)
    assert (failure.cause, failure.fix, failure.code, failure.exit_code) == ("no, because", "do this", code, exit_code)


def test_only_waiting_pause_is_chosen() -> None:
    """Without an ID the only waiting pause is taken; none or several are an error that says how to choose."""
    one = {"id": "p1", "state": "waiting", "file": "/j/r.py", "line": 3, "function": "f", "rank": 0}
    held = {"id": "p2", "state": "attached"}
    assert attach.choose_pause([held, one]) == "p1"
    with pytest.raises(RaydebugError) as none:
        attach.choose_pause([held])
    assert str(none.value) == (
        "error: no pause waits to be attached\n"
        "cause: the gateway lists no waiting pause; 1 held by other clients\n"
        "fix: `raydebug attach next` waits for the next one"
    )
    with pytest.raises(RaydebugError) as several:
        attach.choose_pause([one, {**one, "id": "p3", "rank": None}])
    assert str(several.value) == (
        "error: 2 pauses wait, and no ID says which one\n"
        "cause: waiting: p1, p3\n"
        "fix: name one: raydebug attach p1; all at one prompt: raydebug attach all"
    )


def test_tensor_of_a_job_that_writes_escapes() -> None:
    """Only our own colours reach the terminal: what the values, the type or a note have is made visible."""
    evil = "\x1b[2J"
    found = {"type": evil, "shape": [evil], "dtype": evil, "device": evil, "layout": evil, "numel": 1, "min": evil,
             "nan": 0, "inf": 1, "finite": evil, "first": [evil], "note": evil,
             "placements": [evil], "local_shape": [evil], "part": [evil, evil]}  # fmt: skip
    shown = view.draw_tensor(found, Paint(True))
    assert (evil in shown, shown.count("\x1b["), shown.count("\\x1b[2J")) == (False, 4, 13)
