"""Reads a run's document (run.json, version 1) into values. Pure.

A run that was killed leaves a document that stops anywhere, and a report is most wanted then: what is missing or cannot
be is left out, and nothing here raises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raydebug.runs.folder import RUN
from raydebug.runs.page.document import Change, Gpu, Pause, Phase, Process, Run, Step
from raydebug.settings.secrets import without_secret, without_secret_arguments, without_secrets

MOST_TEXT = 10_000  # characters of one value: a page is for reading
MOST_S = 10 * 365 * 86_400.0  # what lies later in a run is no measurement


def read_run(document: Mapping[str, Any]) -> Run:
    """Return what a document says, as far as it can be understood."""
    command = document.get("command")
    return Run(
        id=_text(document.get("id")) or "?",
        kind=_text(document.get("kind")) or RUN,
        command=without_secret_arguments([_text(word) for word in command] if isinstance(command, list) else []),
        cluster=_texts(document.get("cluster")),
        profile=_text(document.get("profile")),
        changes=[change for one in _mappings(document.get("changes")) if (change := _change(one)).key],
        variables=without_secrets(_texts(document.get("variables"))),
        lock=_texts(document.get("lock")),
        started=_number(document.get("started")),
        ended=_number(document.get("ended")),
        status=_text(document.get("status")) or "unknown",
        exit_code=code if isinstance(code := document.get("exit_code"), int) else None,
        first_error=_texts(document.get("first_error")) or None,
        phases=sorted(_phases(document.get("phases")), key=lambda phase: phase.start_s),
        steps=sorted(_steps(document.get("steps")), key=lambda step: step.end_s),
        memory=_memory(document.get("memory")),
        gpus=_gpus(document.get("gpus")),
        pauses=sorted(_pauses(document.get("pauses")), key=lambda pause: pause.start_s),
        findings=[_texts(one) for one in _mappings(document.get("findings"))],
        log=_text(document.get("log")),
    )


def _change(one: Mapping[str, Any]) -> Change:
    key = _text(one.get("key"))
    return Change(
        key,
        without_secret(key, _value(one.get("old"))),
        without_secret(key, _value(one.get("new"))),
        _text(one.get("why")),
    )


def _phases(found: Any) -> list[Phase]:
    spans = [(one, _span(one)) for one in _mappings(found)]
    return [Phase(_text(one.get("name")) or "?", *span) for one, span in spans if span]


def _pauses(found: Any) -> list[Pause]:
    return [
        Pause(
            _text(one.get("id")), _text(one.get("where")) or "?", _text(one.get("kind")) or "?", _text(one.get("who")),
            _text(one.get("exception")), *span,
        )
        for one in _mappings(found)
        if (span := _span(one))
    ]  # fmt: skip


def _seconds(value: Any) -> float | None:
    """Return a place in time, from 0: clocks of two machines may differ; None for what no run can have."""
    seconds = _number(value)
    return None if seconds is None or abs(seconds) > MOST_S else max(0.0, seconds)


def _span(one: Mapping[str, Any]) -> tuple[float, float | None] | None:
    start, end = _seconds(one.get("start_s")), _seconds(one.get("end_s"))
    if start is None:
        return None
    return start, None if end is None else max(start, end)


def _steps(found: Any) -> list[Step]:
    steps = []
    for one in _mappings(found):
        end, took, step = _seconds(one.get("end_s")), _seconds(one.get("seconds")), _number(one.get("step"))
        if end is not None and took is not None and step is not None:
            steps.append(Step(int(step), end, took, _metrics(one.get("metrics"))))
    return steps


def _metrics(found: Any) -> dict[str, float]:
    metrics = {}
    for name, value in found.items() if isinstance(found, Mapping) else ():
        if isinstance(value, int | float | str):
            try:
                metrics[str(name)] = float(value)  # "NaN" too: strict JSON has no other way to write it
            except (ValueError, OverflowError):
                continue
    return metrics


def _memory(found: Any) -> list[Process]:
    read = ((one, _samples(one.get("samples"), 2)) for one in _mappings(found))
    return [Process(_text(one.get("process")) or "?", _text(one.get("node")), s) for one, s in read if s]


def _gpus(found: Any) -> list[Gpu]:
    read = ((one, _samples(one.get("samples"), 3)) for one in _mappings(found))
    return [
        Gpu(_text(one.get("name")) or "GPU", _text(one.get("node")), _number(one.get("total_mib")) or 0.0, samples)
        for one, samples in read
        if samples
    ]


def _samples(found: Any, width: int) -> list[tuple[float, ...]]:
    rows = (row for row in found if isinstance(row, list) and len(row) == width) if isinstance(found, list) else ()
    samples = (tuple([_or_nan(value) for value in row]) for row in rows)
    known = [sample for sample in samples if 0 <= sample[0] <= MOST_S and any(value >= 0 for value in sample[1:])]
    known.sort(key=lambda sample: sample[0])
    return known


def _mappings(found: Any) -> list[Mapping[str, Any]]:
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _texts(found: Any) -> dict[str, str]:
    return {str(key): _text(value) for key, value in found.items()} if isinstance(found, Mapping) else {}


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    if len(text) > MOST_TEXT:
        return f"{text[:MOST_TEXT]} ... and {len(text) - MOST_TEXT:,} more characters"
    return text


def _value(value: Any) -> str:
    """Return a setting's value as YAML and Hydra write it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else _text(value)


def _or_nan(value: Any) -> float:
    """Return a measurement; NaN for what is none. A run has hundreds of thousands of them."""
    if type(value) is float and 0 <= value < math.inf:
        return value
    number = _number(value)
    return math.nan if number is None or number < 0 else number


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
