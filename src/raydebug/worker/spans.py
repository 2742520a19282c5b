"""Note the phases of a training as they begin and end: verl's timers, and the states of its ranks and engines.

Between begin and end nothing runs. Who wants to record them appends a function to `recorders`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from raydebug import worker
from raydebug.worker.frame_locals import locals_of
from raydebug.worker.frames import outwards
from raydebug.worker.training_step import attributes_of, step_of

STEP, TOOLS = "step", "tool_calls"  # the timers of a whole step, and around the tools of a sample
MAX_FRAMES = 40  # from the timer of a sample to the function that has its id


class Span(NamedTuple):
    """A phase that has begun; `task` identifies the task of asyncio that is in it, None outside of asyncio."""

    name: str
    began_s: float  # of time.monotonic()
    thread: int
    task: int | None
    of: str  # the number of a step, the uid of a sample
    note: str  # the tools that are called


open_spans: dict[int, Span] = {}
"""In the order in which they began."""
ended = 0
begun: set[str] = set()
"""The names of all phases that have begun in this process."""
recorders: list[Callable[[Span, bool], None]] = []
"""Called at the begin (False) and at the end (True) of each span, in its thread."""
_numbers = itertools.count()
os.register_at_fork(after_in_child=open_spans.clear)  # the phases are the parent's


@contextlib.contextmanager
def span(name: str) -> Iterator[None]:
    """Note a phase for as long as the body runs."""
    global ended
    number = next(_numbers)
    task = _task()
    of = note = ""
    with contextlib.suppress(Exception):  # another version of the trainer: its phases are still timed
        if recorders:
            of, note = _owner(name, sys._getframe(1), in_task=task is not None)
    entered = open_spans[number] = Span(name, time.monotonic(), threading.get_ident(), task, of, note)
    begun.add(name)
    try:
        _tell(entered, has_ended=False)
        yield
    finally:
        if open_spans.pop(number, None) is not None:  # else it began in the parent of this fork
            ended += 1
            _tell(entered, has_ended=True)


def _tell(entered: Span, *, has_ended: bool) -> None:
    for record in [*recorders]:
        try:
            record(entered, has_ended)
        except Exception as error:  # noqa: BLE001 - a failure of ours must not harm the training
            with contextlib.suppress(ValueError):  # it has failed in another thread, too
                recorders.remove(record)
            worker.log(f"a recorder of phases has failed: {type(error).__name__}: {error}")


def _owner(name: str, frame: FrameType | None, *, in_task: bool) -> tuple[str, str]:
    """Return what a span belongs to, read from the frames that have begun it, and a note.

    Source: verl 0.5 to 0.9.1 experimental/agent_loop: `_run_agent_loop` has `kwargs` with the uid, and `trajectory`;
    tool_agent_loop.py: what calls the tools has `agent_data` with `tool_calls`.
    """
    if name == STEP:
        step = step_of(frame)
        return ("" if step is None else str(step)), ""
    note = ""
    for one in itertools.islice(outwards(frame), MAX_FRAMES if in_task else 0):
        if name == TOOLS and not note and "agent_data" in one.f_code.co_varnames:
            calls = attributes_of(locals_of(one).get("agent_data")).get("tool_calls")
            names = [attributes_of(call).get("name") for call in calls] if type(calls) is list else []
            note = ", ".join(tool for tool in names if type(tool) is str)
        if one.f_code.co_name == "_run_agent_loop":
            local: Any = locals_of(one)
            trajectory = local.get("trajectory", {})
            uid = local.get("kwargs", {}).get("uid", trajectory.get("sample_index"))
            plain = [str(part) for part in (uid, trajectory.get("rollout_n")) if type(part) in (str, int)]
            return "-".join(plain), note
    return "", note


def _task() -> int | None:
    asyncio = sys.modules.get("asyncio")
    loop = asyncio._get_running_loop() if asyncio is not None else None
    return None if loop is None else id(asyncio.current_task(loop))  # type: ignore[union-attr]


def watch(module: ModuleType) -> None:
    """Note the timers and states of a module of verl.

    Source: verl 0.5 to 0.9.1 utils/profiler/performance.py, 0.4.1 utils/debug/performance.py: all timers run through
    `_timer`, a generator; 0.4.0 trainer/ppo/ray_trainer.py: `_timer` is a context manager. verl 0.9 utils/tracking.py:
    `RLInsightLogger.trace_state`, called whether or not rl-insight is on.
    """
    timer = getattr(module, "_timer", None)
    if timer is not None and not hasattr(timer, "_raydebug"):
        module._timer = _watched_timer(timer)  # type: ignore[attr-defined]
    logger = getattr(module, "RLInsightLogger", None)
    if logger is not None and not hasattr(logger.trace_state.__func__, "_raydebug"):
        logger.trace_state = classmethod(_watched_state(logger.trace_state.__func__))


def _watched_timer(timer: Callable[..., Any]) -> Callable[..., Any]:
    as_generator = getattr(timer, "__wrapped__", timer)

    @functools.wraps(timer)
    def _timer(name: str, *args: Any, **kwargs: Any) -> Any:
        with span(name):
            yield from as_generator(name, *args, **kwargs)

    found: Callable[..., Any] = _timer if as_generator is timer else contextlib.contextmanager(_timer)
    found._raydebug = True  # type: ignore[attr-defined]
    return found


def _watched_state(state: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(state)
    @contextlib.contextmanager
    def trace_state(cls: Any, state_name: str, *args: Any, **labels: Any) -> Any:
        with span(state_name), state(cls, state_name, *args, **labels) as given:
            yield given

    trace_state._raydebug = True  # type: ignore[attr-defined]
    return trace_state
