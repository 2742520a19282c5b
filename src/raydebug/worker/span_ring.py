"""The last spans of this process, kept until the gateway asks for them: names and ids, no values.

Times are those of this process's CLOCK_MONOTONIC: a clock that is set moves none of them. What they are in the clock of
the run is measured by who asks (jobs/span_log.py).
"""

from __future__ import annotations

import os
import time
from collections import deque
from types import ModuleType
from typing import Any, NamedTuple

from raydebug.protocol.questions import SpansBody
from raydebug.protocol.secrets import scrubbed
from raydebug.protocol.spans import MOST_AT_ONCE, REQUEST, SpanRecord, SpansRecord
from raydebug.worker import spans

MOST = 20_000
MOST_CHARS = 200  # of a name or an id


class _Ended(NamedTuple):
    """A span that has ended."""

    name: str
    began_ns: int
    ended_ns: int
    thread: int
    task: int | None
    of: str
    note: str
    first_ns: int = 0  # of a request: its first output
    prompt: int = 0  # tokens
    tokens: int = 0


_ring: deque[_Ended] = deque(maxlen=MOST)
_made = _said = 0


def _forget() -> None:
    global _made, _said
    _ring.clear()
    _made = _said = 0


os.register_at_fork(after_in_child=_forget)  # they are the parent's


def keep_phases() -> None:
    """Keep the phases that end from now on."""
    if _keep not in spans.recorders:
        spans.recorders.append(_keep)


def _keep(span: spans.Span, has_ended: bool) -> None:
    if has_ended:
        began_ns = int(span.began_s * 1e9)
        add(_Ended(span.name, began_ns, time.monotonic_ns(), span.thread, span.task, span.of, span.note))


def add(ended: _Ended) -> None:
    """Keep a span; of more than MOST the oldest ones are lost, and counted."""
    global _made
    _ring.append(ended)
    _made += 1


def has_spans() -> bool:
    """Return whether there are spans that were not returned yet."""
    return bool(_ring)


def said_spans(body: SpansBody) -> SpansRecord:
    """Return spans that were not returned before, oldest first, with the time that it is here."""
    global _said
    found: list[SpanRecord] = []
    while _ring and len(found) < min(body.get("most", MOST_AT_ONCE), MOST_AT_ONCE):
        found.append(_record(_ring.popleft()))
    _said += len(found)
    lost = max(0, _made - _said - len(_ring))  # not of those that another thread adds just now
    _said += lost
    now_ns = time.monotonic_ns()
    return {
        "spans": found, "lost": lost, "more": bool(_ring), "now_ns": now_ns, "wall_ns": time.time_ns() - now_ns
    }  # fmt: skip


def _record(one: _Ended) -> SpanRecord:
    record: SpanRecord = {"name": _clean(one.name), "began_ns": one.began_ns, "ended_ns": one.ended_ns,
                          "thread": one.thread % 2**62}  # fmt: skip
    if one.task is not None:
        record["task"] = one.task % 2**62
    for field in ("of", "note"):
        if text := getattr(one, field):
            record[field] = _clean(text)
    for field in ("first_ns", "prompt", "tokens"):
        if number := getattr(one, field):
            record[field] = number  # type: ignore[literal-required]
    return record


def _clean(text: Any) -> str:
    cut = str(text)[:MOST_CHARS]
    if not cut.isprintable():
        cut = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in cut)
    return scrubbed(cut)[:MOST_CHARS]


# vLLM's requests


def watch_requests(module: ModuleType) -> None:
    """Keep the requests to vLLM's engine.

    Source: vllm 0.28.0 v1/engine/async_llm.py: `AsyncLLM.generate(prompt, sampling_params, request_id, ...)` is an
    asynchronous generator of outputs, each with `prompt_token_ids` and `outputs[].token_ids`; these are the new tokens
    only where `sampling_params.output_kind` is DELTA.
    """
    generate = module.AsyncLLM.generate
    if hasattr(generate, "_raydebug"):
        return

    async def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        began_ns, first_ns, prompt, tokens = time.monotonic_ns(), 0, 0, 0
        request = kwargs.get("request_id", args[2] if len(args) > 2 else "?")
        params = kwargs.get("sampling_params", args[1] if len(args) > 1 else None)
        is_delta = getattr(getattr(params, "output_kind", None), "name", "") == "DELTA"
        outputs = generate(self, *args, **kwargs)
        try:
            async for output in outputs:
                if not first_ns:
                    first_ns = time.monotonic_ns()
                    prompt = len(getattr(output, "prompt_token_ids", None) or ())
                made = sum(len(one.token_ids) for one in getattr(output, "outputs", ()))
                tokens = tokens + made if is_delta else max(tokens, made)
                yield output
        finally:
            await outputs.aclose()
            text = request if type(request) is str else "?"
            add(_Ended(REQUEST, began_ns, time.monotonic_ns(), 0, spans._task(), text, "", first_ns, prompt, tokens))

    watched._raydebug = True  # type: ignore[attr-defined]
    module.AsyncLLM.generate = watched
