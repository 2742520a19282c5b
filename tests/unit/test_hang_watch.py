"""When a job hangs for `run --hang-after`: with given times, without a job."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from test_stack_verdicts import LOADING, collective, frame, process

from raydebug.stacks import hang_watch
from raydebug.stacks.hang_watch import longest_call
from raydebug.stacks.progress import Progress

LIMIT_S = 100.0
STUCK = [*(collective(rank) for rank in range(3)), process(3, *LOADING)]
POLL = (frame("/v/site-packages/ray/_private/worker.py", 3000, "wait"), frame("/job/train.py", 11, "main"))
SLEEP = ({**frame("/job/train.py", 12, "main"), "text": "time.sleep(0.5)"},)
Make = Callable[[int], Any]


def watch(progress: Progress, sample: Any, begin: int, end: int, words: Any = None) -> list[int]:
    """Pass seconds without new output; return those at which the job is reported to hang."""
    hangs = []
    for second in range(begin, end):
        progress.note("nothing new", second, paused=False)
        if progress.wants_sample(second):
            taken = sample(second) if callable(sample) else sample
            said = words(second) if callable(words) else words or {}
            if progress.take(taken, said, second):
                hangs.append(second)
    return hangs


def unknown() -> Progress:
    return Progress(LIMIT_S, 0, by_steps=False)


def training() -> Progress:
    return Progress(LIMIT_S, 0, by_steps=True)


def moving(second: int) -> list[Any]:
    return [process(0, frame("/job/train.py", second, "step"))]


def in_call(begin: int, function: str = "compute_score") -> Make:
    """A process at ever other lines of one call, that began at this second."""

    def look(second: int) -> list[Any]:
        one = process(0, frame("/job/reward.py", second, "simplify"), frame("/job/reward.py", 9, function))
        call = {"thread": one["threads"][0]["name"], "function": function, "file": "/job/reward.py", "line": 9}
        return [{**one, "calls": [{**call, "age_s": float(second - begin)}]}]

    return look


@pytest.mark.parametrize("make", [unknown, training])
def test_hang_is_reported_once_and_again_after_twice_the_time(make: Callable[[], Progress]) -> None:
    """A job hangs after the limit without progress; the distance of further reports doubles until there is progress."""
    progress = make()
    assert watch(progress, STUCK, 1, 800) == [101, 301, 701]
    progress.note("a step", 800, paused=False)
    assert watch(progress, STUCK, 801, 1050) == [901]


def test_polling_is_no_progress() -> None:
    """A driver that polls by ray.wait and sleeps, while an actor is stuck, hangs."""

    def look(second: int) -> list[Any]:
        return [process(0, *(POLL if second % 2 else SLEEP)), process(3, *LOADING)]

    assert watch(unknown(), look, 1, 300) == [101]


def test_moving_lines_of_one_call_are_no_progress() -> None:
    """A reward function in pure Python that never returns is a stall, although its lines move."""
    words = {"7": {"rewards": [{"function": "compute_score in /job/reward.py", "age_s": 60.0}], "step": 3}}
    assert watch(training(), in_call(0), 1, 300, words) == [101]
    assert watch(unknown(), in_call(0), 1, 300) == [101]
    driver = lambda second: [{**in_call(0, "main")(second)[0], "is_driver": True}]  # noqa: E731
    assert watch(unknown(), driver, 1, 1000) == [], "a program that computes by itself"


def test_other_programs_make_progress_by_calls() -> None:
    """A program without a known trainer makes progress when another call is seen, or where lines move in no call."""
    assert watch(unknown(), lambda second: in_call(second - 2)(second), 1, 1000) == []
    assert watch(unknown(), moving, 1, 1000) == []


def test_work_within_one_call_is_progress() -> None:
    """Files that grow and children that compute are progress of a program without steps; log lines and `squeue` not."""
    saves = lambda second: [{**STUCK[0], "io_bytes": second * 2**20}]  # noqa: E731
    builds = lambda second: [{**STUCK[0], "children_cpu_s": second * 0.2}]  # noqa: E731
    assert watch(unknown(), saves, 1, 1000) == watch(unknown(), builds, 1, 1000) == []
    asks = lambda second: [{**STUCK[0], "io_bytes": second * 2**10, "children_cpu_s": second * 0.01}]  # noqa: E731
    assert watch(unknown(), asks, 1, 300) == [101]


def test_native_code_that_computes_puts_a_report_off() -> None:
    """A process that computes at one line in one call has four limits; one that moves between two lines has one."""

    def look(second: int, lines: int = 1) -> list[Any]:
        line = frame("/job/data.py", second // 10 % lines, "tokenize")
        call = {"thread": "MainThread", "function": "tokenize", "file": "/job/data.py", "age_s": float(second)}
        return [process(0, line, calls=[call], thread={"cpu_s": float(second)})]

    assert watch(unknown(), look, 1, 500) == [401]
    assert watch(unknown(), lambda second: look(second, 2), 1, 300) == [101]
    holds = lambda second: [process(0, *LOADING, state="silent", cpu_s=float(second))]  # noqa: E731
    assert watch(unknown(), holds, 1, 500) == [401]
    sleeps = lambda second: [process(0, *LOADING, state="silent", cpu_s=0.1)]  # noqa: E731
    assert watch(unknown(), sleeps, 1, 300) == [101]


def test_gaps_between_calls_are_no_hang() -> None:
    """With a short limit, more looks than two are taken: all of few may fall between two calls."""

    def look(second: int) -> list[Any]:
        return in_call(second)(second) if second % 4 == 0 else [process(0, *SLEEP)]

    progress = Progress(6, 0, by_steps=False)
    assert watch(progress, look, 1, 300) == []
    progress = Progress(6, 0, by_steps=False)
    assert watch(progress, STUCK, 1, 15) == [11]


def test_step_is_progress() -> None:
    """A step that only the training's own words tell is progress: its log may have no step."""
    assert watch(training(), STUCK, 1, 1000, lambda second: {"1": {"step": second // 50}}) == []


@pytest.mark.parametrize("missing", [{"1", "2"}, {"1"}, {"2"}], ids=["all", "trainer", "agent"])
def test_an_answer_that_is_missing_is_no_progress(missing: set[str]) -> None:
    """A process that does not answer in one look has not ended its step or its samples."""
    said = {"1": {"step": 12}, "2": {"ended": 5, "requests": [{"id": "a", "tokens": 7}]}}
    fewer = {instance: said[instance] for instance in {*said} - missing}
    assert watch(training(), STUCK, 1, 400, lambda second: fewer if second % 20 < 10 else said) == [101, 301]


def test_start_is_no_hang() -> None:
    """Before the first step, a training whose lines move is starting, however long; one that is stuck hangs."""
    assert watch(training(), moving, 1, 2000, {"1": {"starting": True}}) == []
    assert watch(training(), STUCK, 1, 200, {"1": {"starting": True}}) == [101]
    validates = {"1": {"starting": True}, "2": {"rewards": [{"function": "compute_score", "age_s": 1.0}]}}
    assert watch(training(), moving, 1, 200, validates) == [101], "a reward of a validation before the first step"


@pytest.mark.parametrize(
    "words",
    [
        lambda second: {"1": {"step": 1, "ended": second}},
        lambda second: {"1": {"step": 1, "requests": [{"id": "a", "tokens": second}]}},
    ],
    ids=["samples that end", "tokens"],
)
def test_work_puts_a_report_off(words: Callable[[int], Any]) -> None:
    """Validation, generation and rewards that go on put a report off, but not for more than four limits."""
    assert watch(training(), STUCK, 1, 400, words) == []
    assert watch(training(), STUCK, 1, 500, words) == [401]


def test_long_phase_that_computes_puts_a_report_off() -> None:
    """A checkpoint or a compilation whose lines move is slow, as long as nothing is asked of the user's functions."""
    assert watch(training(), moving, 1, 400, {"1": {"step": 1, "phase": "save_checkpoint"}}) == []
    computes = lambda second: [process(0, frame("/job/train.py", 3, "step"), thread={"cpu_s": float(second)})]  # noqa: E731
    assert watch(training(), computes, 1, 400, {"1": {"step": 1, "phase": "update_actor"}}) == [], "at one line"
    samples = {"1": {"step": 1, "phase": "gen"}, 2: {"samples": [{"uid": "a"}]}}
    assert watch(training(), moving, 1, 200, samples) == [101]


def test_pause_is_no_hang() -> None:
    """A job that raydebug has paused never hangs, nor does one that has no process yet."""
    progress = unknown()
    for second in range(1, 1000):
        progress.note("nothing new", second, paused=True)
        assert not progress.wants_sample(second)
    assert watch(progress, [{**STUCK[0], "pauses": ["7"]}, *STUCK[1:]], 1000, 1500) == []
    assert watch(progress, [], 1500, 2000) == []


def test_samples_are_rare() -> None:
    """No stacks are taken in the first half of the limit; then one every tenth of it, and one when a report is due."""
    progress = unknown()
    taken = []
    for second in range(1, 101):
        progress.note("nothing new", second, paused=False)
        if progress.wants_sample(second):
            taken.append(second)
            progress.take(STUCK, {}, second)
    assert taken == [51, 61, 71, 81, 91]
    progress = Progress(600.0, 0, by_steps=True)
    assert watch(progress, STUCK, 0, 620) == [600], "a report is not late by a tenth of the limit"


def test_longest_call() -> None:
    """The call that is named is that of a reward or a tool, if there is one; else the oldest of the user's calls."""
    sample = [*in_call(0, "train")(90), *[{**one, "pid": 8, "instance": "8"} for one in in_call(50)(90)]]
    assert longest_call(sample, {}) == "longest call: Trainer rank 0 in train (/job/reward.py:9), for 90 s or more"
    words: Any = {
        "8": {"rewards": [{"function": "compute_score in /job/reward.py", "data_source": "gsm8k", "age_s": 40.0}]},
        "9": {"samples": [{"uid": "a", "tool": "search", "url": "http://tools/find", "age_s": 50.0}, {"uid": "b"}]},
    }
    assert longest_call(sample, words) == (
        "longest call: another process in tool search of sample a, which asks http://tools/find, for 50 s or more"
    )
    assert longest_call([], {}) is None


def test_the_process_of_the_verdict_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--on-hang pause` pauses the process that the verdict names, also where another node has its process id."""
    sample = [process(rank, *LOADING, pid=77, instance=f"i{rank}", ip=f"10.0.0.{rank}") for rank in (0, 1)]
    targets: list[str] = []

    def request(cluster: object, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        targets.append(body["target"])
        return {"pause": {"id": "1"}}

    monkeypatch.setattr(hang_watch, "request", request)
    cluster: Any = SimpleNamespace(name="default")
    assert hang_watch._pause(cluster, "i1", sample) == "pid 77 is paused: raydebug attach 1"
    assert targets == ["instance:i1"]
