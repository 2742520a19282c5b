"""Note the phases of a training as they begin and end: verl's timers, the states of its ranks, requests to its engines.

Between begin and end nothing runs. Who wants to record phases appends a function to `recorders`. The ring keeps the
last spans, names and ids without values, until the gateway asks for them. Their times are those of this process's
CLOCK_MONOTONIC: a clock that is set moves none of them. What they are in the clock of the run is measured by who asks
(jobs/span_log.py).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from raydebug import worker
from raydebug.protocol.questions import MOST_AT_ONCE, REQUEST, SpanRecord, SpansBody, SpansRecord
from raydebug.protocol.secrets import scrubbed
from raydebug.worker import last_words
from raydebug.worker.frame_locals import locals_of
from raydebug.worker.frames import outwards
from raydebug.worker.training_step import attributes_of, step_of

STEP, TOOLS = "step", "tool_calls"  # the timers of a whole step, and around the tools of a sample
MOST = 20_000
MOST_ANSWERS = MOST // MOST_AT_ONCE  # that empty the ring
MOST_CHARS = 200  # of a name or an id
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


# What is kept of them

_ring: deque[SpanRecord] = deque(maxlen=MOST)  # their texts are as they were given
_made = _said = 0
_saying = threading.RLock()  # a signal handler in the thread that has it may end the process, and say its spans


def _forget() -> None:
    global _made, _said, _saying
    _ring.clear()
    _made = _said = 0
    _saying = threading.RLock()


os.register_at_fork(after_in_child=_forget)  # they are the parent's


def keep_phases() -> None:
    """Keep the phases that end from now on."""
    if _keep not in recorders:
        recorders.append(_keep)


def _keep(span: Span, has_ended: bool) -> None:
    if has_ended:
        kept: SpanRecord = {"name": span.name, "began_ns": int(span.began_s * 1e9), "of": span.of, "note": span.note}
        add(kept, span.thread, span.task)
        if span.name == STEP:  # Ray kills an actor at the end of its job, with what it has not said
            last_words.say_spans()


def add(span: SpanRecord, thread: int, task: int | None) -> None:
    """Keep a span that ends now; of more than MOST the oldest ones are lost, and counted."""
    global _made
    span["ended_ns"], span["thread"] = time.monotonic_ns(), thread % 2**62
    if task is not None:
        span["task"] = task % 2**62
    _ring.append(span)
    _made += 1


def has_spans() -> bool:
    """Return whether there are spans that were not returned yet."""
    return bool(_ring)


def spans_since(body: SpansBody) -> SpansRecord:
    """Return spans that were not returned before, oldest first, with the time that it is here."""
    global _said
    found: list[SpanRecord] = []
    with _saying:
        while _ring and len(found) < min(body.get("most", MOST_AT_ONCE), MOST_AT_ONCE):
            span = _ring.popleft()
            for field in ("name", "of", "note"):
                if text := span.pop(field, ""):  # type: ignore[misc]
                    span[field] = _clean(text)
            found.append(span)
        lost = max(0, _made - _said - len(found) - len(_ring))  # not of those that another thread adds just now
        _said += len(found) + lost
        now_ns = time.monotonic_ns()
        wall_ns = time.time_ns() - now_ns
        return {"spans": found, "lost": lost, "more": bool(_ring), "now_ns": now_ns, "wall_ns": wall_ns}


def count_lost(said: SpansRecord) -> None:
    """Count as lost what was returned and did not arrive."""
    global _said
    with _saying:
        _said -= len(said.get("spans", ())) + said.get("lost", 0)


def _clean(text: Any) -> str:
    cut = text[: 4 * MOST_CHARS] if type(text) is str else type(text).__name__
    if not cut.isprintable():
        cut = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in cut)
    return scrubbed(cut)[:MOST_CHARS]


def watch_requests(module: ModuleType) -> None:
    """Keep the requests to vLLM's engine.

    Source: vllm 0.28.0 v1/engine/async_llm.py: `AsyncLLM.generate(prompt, sampling_params, request_id, ...)` is an
    asynchronous generator of outputs, each with `prompt_token_ids` and `outputs[].token_ids`; these are the new tokens
    only where `sampling_params.output_kind` is DELTA.
    """
    generate = module.AsyncLLM.generate
    if hasattr(generate, "_raydebug"):
        return

    @functools.wraps(generate)
    async def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = kwargs.get("request_id", args[2] if len(args) > 2 else "?")
        params = kwargs.get("sampling_params", args[1] if len(args) > 1 else None)
        is_delta = getattr(getattr(params, "output_kind", None), "name", "") == "DELTA"
        kept: SpanRecord = {"name": REQUEST, "began_ns": time.monotonic_ns(), "of": request, "tokens": 0}
        outputs = generate(self, *args, **kwargs)
        try:
            async for output in outputs:
                kept.setdefault("first_ns", time.monotonic_ns())
                with contextlib.suppress(Exception):  # another version of vLLM: its requests are still timed
                    kept.setdefault("prompt", len(output.prompt_token_ids or ()))
                    made = sum(len(completion.token_ids) for completion in output.outputs)
                    kept["tokens"] = kept["tokens"] + made if is_delta else max(kept["tokens"], made)
                yield output
        finally:
            await outputs.aclose()
            add(kept, 0, _task())

    watched._raydebug = True  # type: ignore[attr-defined]
    module.AsyncLLM.generate = watched
