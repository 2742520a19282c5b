"""What the debugger shows: a stop, the line below the prompt, a tensor; as text, without any I/O of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from raydebug.console.debugger import Debugger
from raydebug.console.frames import AROUND, listing
from raydebug.protocol.tripwires import history_lines
from raydebug.protocol.wire import Message
from raydebug.render import Paint, duration, visible

EXCEPTION_LINES = 12
COMPILED = (
    "torch.compile runs this function: variables that only its graph needs are",
    "not set. They are with TORCH_COMPILE_DISABLE=1 in the job's environment.",
)


def heading(pause: Message, *, exception: str = "", function: str = "", place: str = "", depth: str = "", paint: Paint,
            width: int = 80) -> str:  # fmt: skip
    """Return who stopped, where and why, in a few lines."""
    kind = str(pause.get("kind") or "breakpoint")
    kind = "paused on request" if kind == "requested" else kind
    lines = [paint(visible(f"{kind} in {function}", keep=""), "bold", "red" if exception else "yellow")]
    if exception:
        shown = visible(exception).splitlines()
        more = [f"... {len(shown) - EXCEPTION_LINES} more lines"] if len(shown) > EXCEPTION_LINES else []
        lines += [paint(f"  {line}", "red") for line in shown[:EXCEPTION_LINES] + more]
    if tripwire := pause.get("tripwire"):
        reason = [f"{pause.get('where')}: {tripwire.get('text')}", *history_lines(tripwire)]
        lines += [paint(f"  {visible(line, keep='')}", "yellow") for line in reason]
    lines.append(f"  {visible(place, keep='')}")
    lines += [paint(line, "dim") for line in _wrapped([*who(pause), depth], width)]
    if pause.get("compiled"):
        lines += [f"  {line}" for line in COMPILED]
    return "\n".join(lines)


def who(pause: Message) -> list[str]:
    """Return the known facts about the process of a pause, the most important first."""
    facts: list[str] = []

    def add(name: str, value: Any) -> None:
        if value not in (None, ""):
            facts.append(visible(f"{name} {value}", keep=""))

    add("rank", pause.get("rank"))
    if pause.get("child_of"):
        add("child of", f"{_name(pause.get('actor')) or 'worker'} pid {pause['child_of']}")
    else:
        add("actor", _name(pause.get("actor")))
    add("task", _name(pause.get("task")))
    add("attempt", pause.get("attempt") if (pause.get("attempt") or 1) > 1 else None)
    if pause.get("thread") not in (None, "", "MainThread"):
        add("thread", pause["thread"])
    add("pid", pause.get("pid"))
    add("node", " at ".join(str(part) for part in (str(pause.get("node_id") or "")[:8], pause.get("ip")) if part))
    add("job", pause.get("job_id"))
    if isinstance(pause.get("since_s"), (int, float)):
        facts.append(f"paused for {duration(float(pause['since_s']), whole=True)}")
    return facts


def _name(entry: Any) -> Any:
    return entry.get("name") or entry.get("id") if isinstance(entry, dict) else entry


def _wrapped(facts: list[str], width: int) -> list[str]:
    lines = [""]
    for fact in filter(None, facts):
        longer = f"{lines[-1]}, {fact}" if lines[-1] else f"  {fact}"
        if len(longer) > width - 1 and lines[-1]:
            lines[-1] += ","
            lines.append(f"  {fact}")
        else:
            lines[-1] = longer
    return lines


async def opening(debugger: Debugger) -> str:
    """Return the view of a new pause: the heading, then the source with the current line marked."""
    session = debugger.session
    frame = session.stack.frame
    folded = sum(frame.folded for frame in session.stack.frames)
    depth = _frames(len(session.stack.frames) - folded) + (f" and {folded} of Ray" if folded else "")
    if session.stack.selected:
        depth += f" ({_frames(session.stack.selected)} newer than this one, `d` shows them)"
    text = heading(
        session.pause,
        exception=exception_text(session.exception, session.pause) if session.post_mortem else "",
        function=frame.function if frame else "?",
        place=f"{frame.path}:{frame.line}" if frame else "?",
        depth=depth,
        paint=debugger.paint,
        width=debugger.width,
    )
    if frame is None:
        return text
    lines = await debugger.lines(frame)
    if not lines:
        return f"{text}\n\n  (no source of this file, here or in the process)\n"
    breaks = debugger.breakpoints.lines_in(frame.path)
    source = listing(lines, frame.line - AROUND, frame.line + AROUND, current=frame.line, breakpoints=breaks,
                     paint=debugger.paint)  # fmt: skip
    return f"{text}\n\n{source}\n"


def _frames(count: int) -> str:
    return "1 frame" if count == 1 else f"{count} frames"


def exception_text(info: Message | None, pause: Message) -> str:
    """Return type and message of the exception, from pydevd's exceptionInfo or the record of the pause."""
    if not info:
        recorded = pause.get("exception")
        if isinstance(recorded, dict):
            return ": ".join(str(recorded[key]) for key in ("type", "message") if recorded.get(key))
        return str(recorded or "an exception")
    kind = str(info.get("exceptionId") or (info.get("details") or {}).get("typeName") or "an exception")
    # pydevd 1.8.22 appends a note about its own stop to the name of the type.
    kind = kind.split("\n")[0].split(" (note:")[0].strip().removeprefix("builtins.")
    message = str((info.get("details") or {}).get("message") or info.get("description") or "")
    return f"{kind}: {message}" if message and message != kind else kind


async def location(debugger: Debugger) -> str:
    """Return the place of the selected frame as pdb shows it after a step."""
    frame = debugger.stack.frame
    if frame is None:
        return "(this thread has no Python frame)"
    lines = await debugger.lines(frame)
    text = lines[frame.line - 1] if 0 < frame.line <= len(lines) else "(no source)"
    code = debugger.paint.code([visible(text)])[0]
    return f"{debugger.paint(f'> {frame.place}', 'bold')}\n{debugger.paint('->', 'green', 'bold')} {code}"


def status(debugger: Debugger, *, others: int = 0) -> str:
    """Return the status line below the prompt: rank, step, time paused, nearest limit."""
    session = debugger.session
    parts = [debugger.label]
    if session.pause.get("step") is not None:
        parts.append(f"step {session.pause['step']}")
    if session.running:
        parts.append("running")
    else:
        paused_s = session.paused_for_s
        parts += [f"paused {duration(paused_s, whole=True)}", nearest_limit(session.pause, paused_s)]
    parts += [f"{others} more at this prompt, `ranks` lists them"] if others else []
    return visible(" | ".join(filter(None, parts)), keep="")


def nearest_limit(pause: Message, paused_for_s: float) -> str:
    """Return which watchdog ends the pause first, and when; empty when none is known."""
    watchdog = pause.get("watchdog")
    if not isinstance(watchdog, dict) or not isinstance(watchdog.get("after_s"), (int, float)):
        return ""
    left = float(watchdog["after_s"]) - paused_for_s
    return f"{watchdog.get('name')} " + (f"ends it in {duration(left, whole=True)}" if left > 0 else "is overdue")


def draw_tensor(found: Message, paint: Paint | None = None) -> str:
    """Return the description of a tensor (`tensor_probe.describe`) as text.

    Raises:
        ValueError: the value is not a tensor; the message names its type.
    """
    if "error" in found:
        raise ValueError(str(found["error"]))
    paint = paint or Paint()
    clean = partial(visible, keep="\n")  # before a piece is painted: afterwards our escapes look like the job's
    facts = [found["type"], shape(found["shape"]), found["dtype"], found["device"]]
    if found.get("requires_grad"):
        facts.append("requires_grad")
    lines = [paint(clean("  ".join(facts)), "bold")]
    if "placements" in found:
        lines.append(clean(f"  {part(found)}; the values below are this rank's"))
    if found.get("layout"):
        lines.append(clean(f"  {found['layout']}; the values below are the stored ones"))
    spread = [f"{name} {number(found[name])}" for name in ("min", "max", "mean", "std") if name in found]
    if spread:
        lines.append(clean("  " + "  ".join(spread)))
    if "nan" in found:
        counts = f"  NaN {found['nan']}  Inf {found['inf']}"
        if found["nan"] or found["inf"]:
            of_finite = f"the line above is of the {found['finite']} finite values" if spread else "no finite value"
            lines.append(paint(clean(f"{counts}  ({of_finite})"), "red", "bold"))
        else:
            lines.append(clean(counts))
    if "first" in found:
        more = ", ..." if found["numel"] > len(found["first"]) else ""
        lines.append(clean(f"  first [{', '.join(number(item) for item in found['first'])}{more}]"))
    if "note" in found:
        lines.append(clean(f"  {found['note']}"))
    return "\n".join(lines)


def shape(sizes: Sequence[object]) -> str:
    """Return a shape as `[4x8]`."""
    return f"[{'x'.join(map(str, sizes)) or 'scalar'}]"


def part(found: Message) -> str:
    """Return which part of a distributed tensor the rank holds."""
    local, how = shape(found.get("local_shape", [])), ", ".join(found["placements"])
    if "part" not in found:
        return f"all of it {local} by {how}"
    index, count = found["part"]
    return f"{'share' if found.get('partial') else 'shard'} {index} of {count} {local} by {how}"


def number(value: object) -> str:
    """Return a number with at most six significant digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
