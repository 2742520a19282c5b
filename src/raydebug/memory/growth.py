"""What grows between looks at a job: evenly, look after look, so that what comes and goes is not blamed."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raydebug.memory.look import Look
from raydebug.protocol.names import name_process
from raydebug.protocol.questions import Holder, ProcessMemory
from raydebug.report.units import mebibytes

EVEN = 0.3  # the slowest growth between two looks against the fastest
# The least growth a step, or a second without steps:
LEAST_BYTES, LEAST_NODES, LEAST_CHILDREN = 64 * 1024, 1.0, 0.1
LEAST_UNSEEN = 8 * 2**20  # bytes of a process, of which no object of Python has grown
_KEY = re.compile(r"\[(?!\*)[^]]*\]")
_PLURAL = {"graph": "nodes of an autograd graph", "bytes": "texts", "mapped": "mapped regions", "objects": "objects"}


@dataclass(frozen=True)
class Growth:
    """What grows in a process each step, or each second; `holder` is empty for what it does not see a holder of."""

    pid: int | None
    ip: str | None
    process: str
    holder: str
    kind: str
    what: str
    count: float
    bytes: float
    per: str

    def text(self) -> str:
        """Return it in one line."""
        if not self.kind:
            return f"{self.process}, +{size(self.bytes)} a {self.per}, of which raydebug sees no holder"
        if self.kind == "child":
            return f"{self.process}, {self.count:+.3g} child processes a {self.per}, {self.holder}"
        many = f"{self.count:+.3g} {_PLURAL.get(self.kind, self.kind + 's')} a {self.per}"
        what = f" {self.what}" if self.kind not in ("objects", "graph") else ""
        return f"{self.process}, {many}{what} (+{size(self.bytes)}), kept by {self.holder}"


class _Held(NamedTuple):
    number: int = 0
    bytes: int = 0
    what: str = ""


def find_growth(looks: Sequence[Look]) -> list[Growth]:
    """Return what grows from each look to the next: what a name keeps, the most first, then what no object holds."""
    by_steps = all(look.step is not None for look in looks) and looks[-1].step != looks[0].step
    at = [float(look.step or 0) if by_steps else look.at_s for look in looks]
    found: list[Growth] = []
    for one in looks[-1].processes:
        process, instance = one["process"], one["instance"]
        known = [_size_of(look, instance) for look in looks]
        grown = [*_holders(looks, instance, at), *_children(looks, process["pid"], process["ip"], at)]
        if not grown and all(known):  # it was there at each look, and has answered
            left = itertools.accumulate((look.census.get(instance, {}).get("left", 0) for look in looks), initial=0)
            sizes = [whole - own for whole, own in zip(known, left, strict=False)]
            grown = [("", "", "", 0, sizes[-1] - sizes[0])] if _is_even(sizes, at, LEAST_UNSEEN) else []
        length, per = at[-1] - at[0], "step" if by_steps else "second"
        about = (process["pid"], process["ip"], name_process(process))
        found += [
            Growth(*about, holder, kind, what, count / length, more / length, per)
            for holder, kind, what, count, more in grown
        ]
    return sorted(found, key=lambda growth: (not growth.kind, -growth.bytes))


_Grown = tuple[str, str, str, int, int]
"""Holder, kind, what, count, bytes."""


def _holders(looks: Sequence[Look], instance: str, at: Sequence[float]) -> Iterator[_Grown]:
    rows = [_by_name(look.census[instance].get("holders", [])) for look in looks if instance in look.census]
    for holder, kind in rows[-1] if len(rows) == len(looks) else ():
        held = [row.get((holder, kind), _Held()) for row in rows]
        is_graph = kind == "graph" and _is_even([size.number for size in held], at, LEAST_NODES)
        if is_graph or _is_even([size.bytes for size in held], at, LEAST_BYTES):
            yield holder, kind, held[-1].what, held[-1].number - held[0].number, held[-1].bytes - held[0].bytes


def _by_name(holders: Sequence[Holder]) -> dict[tuple[str, str], _Held]:
    """Return holders by name and kind; keys of dicts are no part of a name, as a growing dict gets others."""
    found: dict[tuple[str, str], _Held] = defaultdict(_Held)
    for row in holders:
        key = (_KEY.sub("[*]", row["holder"]), row["kind"])
        count, bytes_, what = found[key]
        found[key] = _Held(count + row["count"], bytes_ + row["bytes"], what or row["what"])
    return found


def _children(looks: Sequence[Look], pid: int | None, ip: str | None, at: Sequence[float]) -> Iterator[_Grown]:
    there = [[answer for answer in (*look.processes, *look.others) if answer["process"]["ip"] == ip] for look in looks]
    answers = {answer["instance"]: answer["answer"] for look in there for answer in look if answer["answer"]}
    # A child that is silent in one look is there nevertheless.
    known = [[answers[answer["instance"]] for answer in look if answer["instance"] in answers] for look in there]
    forked = [[process.get("forked", "") for process in look if process.get("parent") == pid] for look in known]
    if _is_even([len(those) for those in forked], at, LEAST_CHILDREN):
        where = Counter(forked[-1]).most_common(1)[0][0]
        yield f"forked at {where or '?'}", "child", "", len(forked[-1]) - len(forked[0]), 0


def _size_of(look: Look, instance: str) -> int:
    answer: ProcessMemory = (
        next((process["answer"] for process in look.processes if process["instance"] == instance), None) or {}
    )
    return answer.get("pss") or answer.get("rss", 0)


def _is_even(values: Sequence[float], at: Sequence[float], least: float) -> bool:
    """Return whether values grow by `least` from one unit of `at` to the next, and about as fast each time."""
    rates = [(v - u) / (q - p) for u, v, p, q in zip(values, values[1:], at, at[1:], strict=False) if q > p]
    return bool(rates) and (values[-1] - values[0]) / (at[-1] - at[0]) >= least and min(rates) >= EVEN * max(rates) > 0


def size(bytes_: float) -> str:
    """Return a size as text."""
    return mebibytes(bytes_ / 2**20)
