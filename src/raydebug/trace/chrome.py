"""Lanes in Chrome's format (JSON), which Perfetto, speedscope and chrome://tracing open, beside torch's traces. Pure.

Source: "Trace Event Format", the document of the Catapult project: X complete, i instant, C counter, M metadata.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from raydebug.trace.lanes import Group


def encode(groups: Sequence[Group], start: float) -> bytes:
    """Return the groups as a trace; its times are microseconds since `start`."""
    events: list[dict[str, Any]] = []

    def us(at: float) -> float:
        return round((at - start) * 1e6, 3)

    def name(kind: str, value: str, pid: int, tid: int) -> None:
        events.append({"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": tid, "args": {"name": value}})
        events.append({"ph": "M", "name": f"{kind}_sort_index", "pid": pid, "tid": tid,
                       "args": {"sort_index": pid if kind == "process" else tid}})  # fmt: skip

    for pid, group in enumerate(groups, 1):
        name("process", group.title, pid, 0)
        for tid, lane in enumerate(group.lanes, 1):
            name("thread", lane.title, pid, tid)
            for event in lane.events:
                facts = {key: value for key, value in event.facts.items() if value not in (None, "")}
                about = {"name": event.name, "pid": pid, "tid": tid, "ts": us(event.start), "args": facts}
                if event.end is None:
                    events.append({"ph": "i", "s": "p", **about})
                else:
                    events.append({"ph": "X", "dur": round((event.end - event.start) * 1e6, 3), **about})
        for counter in group.counters:
            title = f"{counter.title}, {counter.unit}" if counter.unit else counter.title
            events += [
                {"ph": "C", "name": title, "pid": pid, "ts": us(at), "args": {"value": value}}
                for at, value in counter.points
                if math.isfinite(value)  # JSON has no others
            ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")).encode()
