"""When a job hangs for `run --hang-after`: with given times, without a job."""

from __future__ import annotations

from typing import Any

from test_stack_verdicts import LOADING, collective, frame, process

from raydebug.stacks.hang_watch import Progress

LIMIT_S = 100.0
STUCK = [*(collective(rank) for rank in range(3)), process(3, *LOADING)]


def watch(progress: Progress, sample: Any, begin: int, end: int) -> list[int]:
    """Pass seconds without new output; return those at which the job is reported to hang."""
    hangs = []
    for second in range(begin, end):
        progress.note("nothing new", second, paused=False)
        if progress.wants_sample(second) and progress.take(sample(second) if callable(sample) else sample, second):
            hangs.append(second)
    return hangs


def moving(second: int) -> list[Any]:
    return [process(0, frame("/job/train.py", second, "step"))]


def test_hang_is_reported_once() -> None:
    """A job hangs after the limit without progress, and is reported again only after progress."""
    progress = Progress(LIMIT_S, 0)
    assert watch(progress, STUCK, 1, 500) == [101]
    progress.note("a step", 500, paused=False)
    assert watch(progress, STUCK, 501, 700) == [601]


def test_moving_stack_is_progress() -> None:
    """A job whose stacks move does not hang, however long nothing is printed."""
    progress = Progress(LIMIT_S, 0)
    assert watch(progress, moving, 1, 1000) == []
    assert watch(progress, STUCK, 1000, 1300) != [], "it has stopped moving"


def test_pause_is_no_hang() -> None:
    """A job that raydebug has paused never hangs, nor does one that has no process yet."""
    progress = Progress(LIMIT_S, 0)
    for second in range(1, 1000):
        progress.note("nothing new", second, paused=True)
        assert not progress.wants_sample(second)
    assert watch(progress, [{**STUCK[0], "pauses": ["7"]}, *STUCK[1:]], 1000, 1500) == []
    assert watch(progress, [], 1500, 2000) == []


def test_samples_are_rare() -> None:
    """No stacks are taken in the first half of the limit; after that, one sample every tenth of it."""
    progress = Progress(LIMIT_S, 0)
    taken = []
    for second in range(1, 101):
        progress.note("nothing new", second, paused=False)
        if progress.wants_sample(second):
            taken.append(second)
            progress.take(STUCK, second)
    assert taken == [51, 61, 71, 81, 91]
