"""Commands about every rank at the prompt: `ranks` lists them, `diff EXPR` compares a value between them.

`diff` groups equal values and says how far tensors are apart. Small tensors are compared element by element, large ones
by hash, norm, min, max and mean, and shards of a distributed tensor by their sums. No rank has to communicate.
"""

from __future__ import annotations

import array
import asyncio
import base64
import io
import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydebug.console import probes, view
from raydebug.console.debugger import Command, CommandFailed, Debugger
from raydebug.console.selection import joined
from raydebug.console.tensor_probe import COMPARED_ELEMENTS
from raydebug.render import duration, visible

_COLUMNS = ("", "rank", "state", "where", "step", "paused for")
_CHUNK_CHARS = 4 << 20  # of one answer; a DAP message may have 16 MiB
_MEASURES = ("norm", "min", "max", "mean")
_keys = itertools.count(1)


async def _ranks(debugger: Debugger, argument: str) -> str:
    return table([_row(peer, current=peer is debugger) for peer in debugger.peers])


def table(rows: list[tuple[str, ...]]) -> str:
    """Return the rows below the headings, in aligned columns."""
    widths = [max(len(row[index]) for row in (_COLUMNS, *rows)) for index in range(len(_COLUMNS))]
    out = io.StringIO()
    for row in (_COLUMNS, *rows):
        out.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
    return out.getvalue().rstrip("\n")


def _row(debugger: Debugger, *, current: bool) -> tuple[str, ...]:
    session = debugger.session
    frame = session.stack.frame
    name = debugger.label.removeprefix("rank ") if debugger.label.startswith("rank ") else debugger.label
    if session.running:
        return (">" if current else "", name, "running", "", "", "")
    state = visible(str(session.pause.get("kind") or "breakpoint"), keep="")
    where = f"{Path(frame.path).name}:{frame.line} {frame.function}" if frame else "?"
    if session.post_mortem:
        state = "post-mortem"
        where += f": {view.exception_text(session.exception, session.pause)}"
    elif session.stop.get("reason") in ("step", "pause"):
        state = "step"
    step = "-" if session.pause.get("step") is None else visible(str(session.pause["step"]), keep="")
    paused_for = duration(session.paused_for_s, whole=True)
    return (">" if current else "", name, state, visible(where, keep=""), step, paused_for)


async def _diff(debugger: Debugger, argument: str) -> str:
    expression = debugger.expression(argument)
    peers = [peer for peer in debugger.peers if not peer.session.running]
    running = [f"{peer.label}: runs" for peer in debugger.peers if peer.session.running]
    return "\n".join([await compare(peers, expression), *running] if peers else running)


@dataclass
class _EqualValues:
    """Ranks with the same value."""

    debuggers: list[Debugger]
    found: dict[str, Any]
    key: str  # of the elements that their processes keep

    @property
    def name(self) -> str:
        return joined([debugger.label for debugger in self.debuggers])

    @property
    def first(self) -> Debugger:
        return self.debuggers[0]

    @property
    def is_tensor(self) -> bool:
        return "shape" in self.found

    @property
    def part(self) -> tuple[int, int]:
        """Index of the part of a distributed tensor, and the number of parts; (0, 1) for a whole tensor."""
        index, count = self.found.get("part", (0, 1))
        return index, count


async def compare(debuggers: Sequence[Debugger], expression: str) -> str:
    """Return the output of `diff`.

    Args:
        debuggers: paused ranks.
        expression: evaluated once at each.
    """
    key = f"{os.getpid()}.{next(_keys)}"
    answers = await asyncio.gather(*(_ask(debugger, expression, key) for debugger in debuggers))
    groups: dict[object, _EqualValues] = {}
    for debugger, found in zip(debuggers, answers, strict=True):
        groups.setdefault(_identity(found), _EqualValues([], found, key)).debuggers.append(debugger)
    ordered = sorted(groups.values(), key=lambda group: -len(group.debuggers))
    try:
        lines = _lines(ordered)
        tensors = [group for group in ordered if group.is_tensor]
        for part in dict.fromkeys(group.part for group in tensors):  # different shards are not compared
            base, *others = [group for group in tensors if group.part == part]
            lines += await _differences(base, others)
        lines += _whole(tensors)
        return "\n".join(lines)
    finally:
        holders = [one for one, found in zip(debuggers, answers, strict=True) if "packed" in found]
        await asyncio.gather(*(debugger.session.evaluate(probes.as_forgotten(key)) for debugger in holders),
                             return_exceptions=True)  # fmt: skip


async def _ask(debugger: Debugger, expression: str, key: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await debugger.document(probes.as_summary(expression, key))
    except CommandFailed as failed:
        return {"failed": str(failed)}
    return found


def _identity(found: dict[str, Any]) -> object:
    if "failed" in found:
        return found["failed"]
    if "shape" not in found:
        return (found["type"], found["hash"])
    about = (found.get(name) for name in ("part", "places"))
    same: tuple[object, ...] = (found["type"], tuple(found["shape"]), found["dtype"], *map(str, about))
    by_value = [found.get(name) for name in (*_MEASURES, "nan", "inf")]
    return (*same, found["hash"]) if found.get("hash") else (*same, *by_value)


def _lines(groups: list[_EqualValues]) -> list[str]:
    width = max((len(group.name) for group in groups), default=0) + 1
    lines = [f"{f'{group.name}:'.ljust(width)} {_value(group.found)}" for group in groups]
    if len(groups) == 1 and len(groups[0].debuggers) > 1 and not {"failed", "note"} & set(groups[0].found):
        lines[0] += "  (all equal)"
    return lines


def _value(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"*** {found['failed']}"
    if "shape" not in found:
        more = f" ... {found['more']} more characters" if found["more"] else ""
        return visible(found["text"], keep="") + more
    facts = [found["type"], view.shape(found["shape"]), found["dtype"], found["device"]]
    facts += [view.part(found)] if "placements" in found else []
    facts += [found["layout"]] if "layout" in found else []
    facts += [f"{name} {view.number(found[name])}" for name in _MEASURES if name in found]
    facts += [f"{name} {found[word]}" for name, word in (("NaN", "nan"), ("Inf", "inf")) if found.get(word)]
    facts += [found["note"]] if "note" in found else []
    return visible("  ".join(facts), keep="")


async def _differences(base: _EqualValues, others: list[_EqualValues]) -> list[str]:
    """Return a line for each group of tensors: the distance of its values from those of the first group."""
    if not others:
        unhashed = "norm" in base.found and not base.found.get("hash") and len(base.debuggers) > 1
        return ["  too large to be compared byte by byte: judged by norm, min, max and mean"] if unhashed else []
    lines = []
    for other in others:
        against = f"  {other.first.label} against {base.first.label}:"
        if _shape(base) != _shape(other):
            lines.append(f"{against} another shape")
        elif base.found.get("places") != other.found.get("places"):
            nested = base.found["layout"].startswith("nested")
            lines.append(f"{against} {'rows of other sizes' if nested else 'its values stand elsewhere'}")
        elif "packed" in base.found and "packed" in other.found:
            lines.append(f"{against} {_apart(await _numbers(base), await _numbers(other))}")
        else:
            size = math.prod(base.found["local_shape"]) if "local_shape" in base.found else int(base.found["numel"])
            why = f"{size} elements, at most {COMPARED_ELEMENTS} are compared one by one" if size else "no elements"
            norms = [group.found["norm"] for group in (base, other) if "norm" in group.found]
            far = f"norm differs by {view.number(abs(norms[0] - norms[1]))}; " if len(norms) == 2 else ""
            lines.append(f"{against} {far}{why}")
    return lines


def _whole(groups: list[_EqualValues]) -> list[str]:
    """Return a line about the whole tensor of several shards, from their sums."""
    counts = {group.part[1] for group in groups}
    if counts in (set(), {1}):
        return []
    if any(group.found.get("partial") for group in groups):
        return ["  shares of a result that the ranks have not joined yet: not compared"]
    whole = {(tuple(group.found["shape"]), group.found["dtype"], group.part[1]) for group in groups}
    held = sorted(group.part[0] for group in groups)
    count, here = max(counts), len(set(held))
    if len(whole) > 1:
        return ["  parts of different tensors: not compared"]
    if here < count:
        return [f"  shards, each with values of its own: not compared ({here} of {count} are here)"]
    if len(held) > count:
        return ["  copies of a shard differ: they make no one whole"]
    measured = [group.found for group in groups if "norm" in group.found]  # an empty shard has none
    if not measured:
        return []
    elements = sum(found["finite"] for found in measured)
    joined: dict[str, Any] = {
        "norm": math.hypot(*(found["norm"] for found in measured)),
        "min": min(found["min"] for found in measured),
        "max": max(found["max"] for found in measured),
        "mean": sum(found["mean"] * found["finite"] for found in measured) / elements,
    }
    facts = [f"{name} {view.number(value)}" for name, value in joined.items()]
    bad = {word: sum(group.found.get(word, 0) for group in groups) for word in ("nan", "inf")}
    facts += [f"{name} {bad[word]}" for name, word in (("NaN", "nan"), ("Inf", "inf")) if bad[word]]
    return [f"  the whole, from its {count} shards: {'  '.join(facts)}"]


def _shape(group: _EqualValues) -> object:
    return group.found.get("local_shape", group.found["shape"])


async def _numbers(group: _EqualValues) -> array.array[float]:
    """Fetch the elements of a tensor from the first process of the group, in pieces."""
    starts = range(0, int(group.found["packed"]), _CHUNK_CHARS)
    pieces = [
        await group.first.document(probes.as_packed(group.key, start, start + _CHUNK_CHARS), long=True)
        for start in starts
    ]
    numbers = array.array("d")
    numbers.frombytes(base64.b64decode("".join(pieces)))
    return numbers


def _apart(ours: array.array[float], theirs: array.array[float]) -> str:
    """Return the largest difference and the number of different elements; NaN equals NaN."""
    if len(ours) != len(theirs):
        return "another number of elements"
    largest, count, undefined = 0.0, 0, 0
    for a, b in zip(ours, theirs, strict=True):
        if a == b or (a != a and b != b):
            continue
        count += 1
        gap = abs(a - b)
        if gap != gap:
            undefined += 1
        elif gap > largest:
            largest = gap
    only = f", {undefined} of them NaN on one side" if undefined else ""
    return f"max difference {view.number(largest)}, {count} of {len(ours)} elements differ{only}"


COMMANDS = (
    Command(("ranks",), "ranks", "Every rank at this prompt: state, place, step, how long.", _ranks, bare=True,
            of_all=True),
    Command(("diff",), "diff EXPR", "The value at every rank, equal ones together; tensors: how far apart.", _diff,
            needs="EXPR", of_all=True),
)  # fmt: skip
