"""The events of logs, what is judged of them, and how often the answers are right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydebug.diagnose.answer import LIKELY, NO_FAILURE, UNKNOWN
from raydebug.diagnose.cause import diagnose
from raydebug.diagnose.events import EXCEPTION, EXIT, FATAL, MENTION, PROGRESS, RECORD, SCHEDULER, Event, read_events
from raydebug.diagnose.inputs import read_text
from raydebug.diagnose.read import read_lines
from scored_logs import ScoredLog, folder_logs, healthy_logs, recorded_logs, score, written_logs

LEAST_EXACT = 0.97  # of the answers that are called exact, this share is right
DOCS = Path(__file__).parents[2] / "docs" / "06-troubleshooting.md"
PUBLIC = os.environ.get("FAILURE_LOGS")  # a folder of public logs, which are not part of this repository
TRACE = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in f\n    raise ValueError("NCCL error")\n'
PACKAGE_TRACE = TRACE.replace("/w/", "/x/site-packages/own/")


def events(text: str) -> list[Event]:
    """Return the events of a log."""
    return read_events([*read_lines(text.splitlines(), "driver")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INFO 01-02 10:20:30 [core.py:1] boom", [(RECORD, "driver", "INFO")]),
        ("(EngineCore pid=9) ERROR 01-02 10:20:30 [core.py:1] boom", [(RECORD, "engine", "ERROR")]),
        ("(W pid=1) it is ValueError: x", [(MENTION, "worker", "")]),
        ("(raylet) [2026-01-02 10:20:30,1 C 1 2] (raylet) a.cc:5:  Check failed: x", [(FATAL, "ray", "FATAL")]),
        ("run.sh: line 3:  88 Killed                  python3 a.py", [(EXIT, "shell", "")]),
        ("srun: error: n1: task 0: Exited with exit code 1", [(EXIT, "slurm", "")]),
        ("  Warning  Failed   38s   kubelet  Error: ErrImagePull", [(SCHEDULER, "kubernetes", "ERROR")]),
        ("docker: Error response from daemon: no", [(SCHEDULER, "docker", "")]),
        ("step:1 - actor/loss:0.1", [(PROGRESS, "driver", "")]),
        ("a.py:1: UserWarning: it fails\nNo module named 'x'\n  import x", [(RECORD, "driver", "WARNING")]),
        (f"{TRACE}ValueError: x", [(EXCEPTION, "driver", "")]),
        ("[prompt] a\nTraceback (most recent call last):\nKilled\n[score] 0.0", []),
        ("<tool_response>\nOSError: no\n</tool_response>", []),
        ("frame #0: c10::Error::Error() + 0x96 (0x7f in x.so)\nPC: @ 0x7f (unknown)", []),
        ("==== PASSES ====\nValueError: x\n==== 2 passed in 0.1s ====", [(RECORD, "driver", "")]),
    ],
)
def test_kinds(text: str, expected: list[tuple[str, str, str]]) -> None:
    """Each line is an event of a kind, with who says it; samples, native frames and tests that passed are data."""
    assert [(event.kind, event.producer, event.level) for event in events(text)] == expected


def test_an_exception() -> None:
    """An exception has its type, message, frames and source lines; those are no messages."""
    (event,) = events(f"{TRACE}my.pkg.OwnError: it broke\n    full_key: a\n")
    assert (event.type, event.message, event.more) == ("OwnError", "it broke", "full_key: a")
    assert (event.frames, event.code) == ([("/w/a.py", 3, "f")], ['raise ValueError("NCCL error")'])


def test_a_chain() -> None:
    """An exception knows the one that it was raised over."""
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    first, second = events(f"{TRACE}KeyError: 1\n{between}{TRACE}RuntimeError: 2")
    assert second.inner is first


def test_a_crash() -> None:
    """A fatal error has the frames of its dump, the innermost last."""
    crash = "*** SIGSEGV received at time=1 on cpu 6 ***\nFatal Python error: Segmentation fault\n\n"
    stack = 'Thread 0x1 (most recent call first):\n  File "/w/c.py", line 5 in wait\n\n'
    stack += (
        'Current thread 0x2 (most recent call first):\n  File "/w/b.py", line 4 in g\n  File "/w/a.py", line 3 in f\n'
    )
    abseil, python = events(crash + stack)
    assert abseil.frames == python.frames == [("/w/a.py", 3, "f"), ("/w/b.py", 4, "g")]


def test_a_run_that_has_failed() -> None:
    """A run that is known to have failed is never called one without a failure."""
    lines = read_text("step:1 - loss:0.1\nit is over\n", "job.log")
    assert diagnose(lines).status == NO_FAILURE
    assert diagnose(lines, has_failed=True).status == UNKNOWN
    assert diagnose([], has_failed=True).status == UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        f"{PACKAGE_TRACE}openai.InternalServerError: Error code: 500 - {{'error': 'CUDA out of memory'}}\n",
        f"ERROR:sandbox:No module named 'numpy'\n{PACKAGE_TRACE}ValueError: x\n",
        f"{PACKAGE_TRACE}huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.\n",
        "RuntimeError: CUDA error: unspecified launch failure\n",
        "MemoryError\n",
    ],
)
def test_likely(text: str) -> None:
    """What another service says, what a program only tells, and an error of several causes leave another cause."""
    (first, *_) = diagnose(read_text(text, "job.log"), has_failed=True).diagnoses
    assert first.confidence == LIKELY
    assert first.name != "user-code"


@pytest.mark.parametrize("log", written_logs(), ids=lambda log: log.name)
def test_written(log: ScoredLog) -> None:
    """Logs in other words than those of the rules are answered right, and what healthy runs print is no failure."""
    assert log.is_right(diagnose(log.lines)), diagnose(log.lines).diagnoses[:2]


def test_exact() -> None:
    """What is called exact is right, and the docs print how often it was."""
    sets = [recorded_logs(), written_logs(), healthy_logs()]
    counts = [score(logs) for logs in sets]
    right, wrong = (sum(each[f"exact, {word}"] for each in counts) for word in ("right", "wrong"))
    assert right >= LEAST_EXACT * (right + wrong)
    assert sum(each["false alarms"] for each in counts) == 0
    assert f"{right} of {right + wrong}" in DOCS.read_text(encoding="utf-8")


@pytest.mark.skipif(not PUBLIC, reason="FAILURE_LOGS names no folder of public logs")
def test_public() -> None:
    """Of public logs almost all are answered right, and almost all that is called exact; the docs print the figure."""
    counts = score(folder_logs(Path(PUBLIC or "")))
    right, wrong = counts["exact, right"], counts["exact, wrong"]
    assert counts["right"] >= counts["logs"] - 1
    assert right >= LEAST_EXACT * (right + wrong)
    assert f"{right} of {right + wrong}" in DOCS.read_text(encoding="utf-8")
