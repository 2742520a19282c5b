"""The last spans of this process, kept until the gateway asks for them: names and ids, no values.

Times are those of this process's CLOCK_MONOTONIC: a clock that is set moves none of them. What they are in the clock of
the run is measured by who asks (jobs/span_log.py).
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import deque
from types import ModuleType
from typing import Any

from raydebug.protocol.questions import MOST_AT_ONCE, REQUEST, SpanRecord, SpansBody, SpansRecord
from raydebug.protocol.secrets import scrubbed
from raydebug.worker import last_words, spans

MOST = 20_000
MOST_ANSWERS = MOST // MOST_AT_ONCE  # that empty the ring
MOST_CHARS = 200  # of a name or an id

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
    if _keep not in spans.recorders:
        spans.recorders.append(_keep)


def _keep(span: spans.Span, has_ended: bool) -> None:
    if has_ended:
        kept: SpanRecord = {"name": span.name, "began_ns": int(span.began_s * 1e9), "of": span.of, "note": span.note}
        add(kept, span.thread, span.task)
        if span.name == spans.STEP:  # Ray kills an actor at the end of its job, with what it has not said
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


def said_spans(body: SpansBody) -> SpansRecord:
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
            add(kept, 0, spans._task())

    watched._raydebug = True  # type: ignore[attr-defined]
    module.AsyncLLM.generate = watched
