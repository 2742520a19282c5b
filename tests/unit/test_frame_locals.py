"""Locals of frames that go on running are read without keeping their values alive, and without changing any."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from raydebug.worker import census, spans, stacks, training
from raydebug.worker.frame_locals import locals_of

IS_COPY = sys.version_info < (3, 13)


class Batch:
    """An object of the user's."""


@pytest.fixture(autouse=True)
def _objects_of_one_test() -> Iterator[None]:
    """Hide from the census, which asks the garbage collector, the million objects of pytest: 10 s a look."""
    gc.freeze()
    yield
    gc.unfreeze()


def look_at(thread: threading.Thread) -> FrameType:
    """Return the frame of the user's function in a thread that waits in it."""
    frame = sys._current_frames()[thread.ident or 0]
    while frame.f_code.co_name not in ("train", "traced"):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def ask_for_locals(thread: threading.Thread) -> None:
    assert type(locals_of(look_at(thread))["batch"]) is Batch


def ask_a_sleeping_loop(thread: threading.Thread) -> None:
    stacks.note_waits({"name": "t", "in_call": "sleep"}, [*stacks.callers(look_at(thread))], thread)


each_look = pytest.mark.parametrize(
    "ask",
    [ask_for_locals, ask_a_sleeping_loop, pytest.param(lambda _: census.take(), marks=pytest.mark.slow),
     lambda _: training.words({}),
     lambda thread: spans.step_of(look_at(thread)), lambda _: (stacks.collect(), training.words({}))],
    ids=["locals", "stacks", "census", "training", "step", "age"],
)  # fmt: skip


@each_look
def test_another_thread(ask: Callable[[threading.Thread], object]) -> None:
    """What a thread deletes after it was looked at is freed, and the others of its variables are as they were."""
    waits, go_on, found = threading.Event(), threading.Event(), []

    def train(inside: int = 7) -> None:
        batch = Batch()
        kept = Batch()
        of = weakref.ref(batch)
        waits.set()
        go_on.wait(60)
        del batch
        found.append((of(), type(kept), inside, ask))

    thread = threading.Thread(target=train)
    thread.start()
    waits.wait()
    ask(thread)
    go_on.set()
    thread.join()
    assert found == [(None, Batch, 7, ask)]


@each_look
def test_the_programs_own_dict(ask: Callable[[threading.Thread], object]) -> None:
    """What a program has from `locals()` does not change by a look, also while it is iterated over."""
    results: list[object] = []
    waits, goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def train(lr: float = 1e-6) -> None:
        batch, kept = Batch(), locals()
        names = sorted(kept)
        lr = 5e-5
        for _ in kept:
            waits.release()
            goes_on.acquire(timeout=60)
        results.append((names == sorted(kept), kept["lr"], lr, type(batch)))

    thread = threading.Thread(target=train)
    thread.start()
    for _ in range(4):  # lr, results, waits, goes_on
        assert waits.acquire(timeout=60)
        ask(thread)
        goes_on.release()
    thread.join()
    assert results == [(True, 1e-6, 5e-5, Batch)]


def test_the_own_thread() -> None:
    """A step frees what it deletes: the timer around it reads the locals of its callers."""

    def fit() -> object:
        batch = Batch()
        of = weakref.ref(batch)
        with spans.span("step"):
            del batch
            return of()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spans, "recorders", [lambda *_: None])
        assert fit() is None


def test_a_coroutine_and_a_generator() -> None:
    """The locals of what is suspended are freed, too, and go on."""

    def generator() -> Iterator[object]:
        batch, kept = Batch(), 5
        of = weakref.ref(batch)
        yield None
        del batch
        yield of(), kept

    async def main() -> None:
        batch, kept = Batch(), 5
        of = weakref.ref(batch)
        await asyncio.sleep(0)
        assert kept == 5
        del batch
        assert of() is None

    one: Any = generator()
    next(one)
    assert locals_of(one.gi_frame)["kept"] == 5
    assert next(one) == (None, 5)
    other = main()
    other.send(None)
    assert locals_of(other.cr_frame)["kept"] == 5
    with pytest.raises(StopIteration):
        other.send(None)


def test_dicts_of_the_user() -> None:
    """What `locals()` has returned, names that exec() has made, and namespaces of modules and classes stay."""

    def holds() -> dict[str, Any]:
        batch = 1  # noqa: F841
        mine = locals()
        assert locals_of(sys._getframe())["batch"] == 1
        return mine

    def executes() -> Any:
        exec("made = 2")
        assert locals_of(sys._getframe()) is not None
        return eval("made") if IS_COPY else 2

    assert holds()["batch"] == 1
    assert executes() == 2
    names: dict[str, Any] = {"look": lambda: locals_of(sys._getframe(1))}
    exec("one = 1\nlook()\nclass A:\n    two = 2\n    look()\n    three = two + 1\nlook()", names)
    assert (names["one"], names["A"].two, names["A"].three) == (1, 2, 3)

    def code(batch: int = 1) -> None:
        kept = 2  # noqa: F841
        look()  # type: ignore[name-defined] # noqa: F821

    function: Any = code
    exec(function.__code__.replace(co_argcount=0), names)
    assert names["one"] == 1


@pytest.mark.parametrize("event", ["call", "line", "return"])
@pytest.mark.parametrize("set_tracer", ["settrace", "setprofile"])
def test_a_thread_inside_of_a_tracer(set_tracer: str, event: str) -> None:
    """A thread that is in a tracer (pdb that waits for a command, a profiler) loses no variable.

    On Python 3.11 and 3.12 variables that are not in the dict after it are deleted.
    """
    if (set_tracer, event) == ("setprofile", "line"):
        return
    waits, go_on, found = threading.Event(), threading.Event(), []

    def tracer(frame: FrameType, now: str, _: Any) -> Any:
        if now == event and frame.f_code.co_name == "traced" and not waits.is_set():
            waits.set()
            go_on.wait(60)
        return tracer

    def traced(batch: int, *, other: int = 3) -> Any:
        inside = lambda: batch + other  # noqa: E731
        return batch, other, inside()

    def run() -> None:
        getattr(sys, set_tracer)(tracer)
        try:
            found.append(traced(1))
        finally:
            getattr(sys, set_tracer)(None)

    thread = threading.Thread(target=run)
    thread.start()
    waits.wait()
    for _ in range(2):
        assert locals_of(look_at(thread))["other"] == 3
    assert "found" in locals_of(look_at(thread).f_back)  # type: ignore[arg-type]
    go_on.set()
    thread.join()
    assert found == [(1, 3, 4)]


def test_while_the_thread_runs() -> None:
    """Looks at a thread that runs, also below a profiler, change none of its variables."""
    ended, wrong = threading.Event(), []

    def train(number: int) -> None:
        for step in range(20_000 if number else 2_000):
            first, second = step, [step]
            third = first + 1
            if (first, second[0], third - 1) != (step, step, step):
                wrong.append((first, second, third, step))
            del second

    def run(number: int) -> None:
        sys.setprofile(None if number else lambda *_: None)
        try:
            train(number)
        except BaseException as error:  # noqa: BLE001 - a variable is lost
            wrong.append(error)
        finally:
            sys.setprofile(None)

    def look() -> None:
        while not ended.is_set():
            for frame in [*sys._current_frames().values()]:
                for one in stacks.callers(frame):
                    if one.f_code.co_name in ("train", "<lambda>", "run"):
                        locals_of(one)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        looks = [threading.Thread(target=look) for _ in range(2)]
        runs = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for one in [*looks, *runs]:
            one.start()
        for one in runs:
            one.join()
        ended.set()
        for one in looks:
            one.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []
