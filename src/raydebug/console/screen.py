"""What the debugger shows when a thread stops."""

from __future__ import annotations

from typing import Any

from raydebug.console.debugger import Debugger
from raydebug.console.paint import Paint
from raydebug.console.source import AROUND, listing
from raydebug.dap.wire import Message
from raydebug.render import visible

EXCEPTION_LINES = 12
COMPILED = (
    "torch.compile runs this function: variables that only its graph needs are",
    "not set. They are with TORCH_COMPILE_DISABLE=1 in the job's environment.",
)


def heading(pause: Message, *, exception: str = "", function: str = "", place: str = "", depth: str = "", paint: Paint,
            width: int = 80) -> str:  # fmt: skip
    """Return who stopped, where and why, in a few lines.

    Args:
        pause: the gateway's record of the pause.
        exception: type and message, for a post-mortem pause.
        function: of the opening frame.
        place: of the opening frame.
        depth: words about the stack.
        paint: colours.
        width: columns to fit in.
    """
    kind = str(pause.get("kind") or "breakpoint")
    kind = "paused on request" if kind == "requested" else kind
    lines = [paint(f"{kind} in {visible(function, keep='')}", "bold", "red" if exception else "yellow")]
    if exception:
        shown = visible(exception).splitlines()
        more = [f"... {len(shown) - EXCEPTION_LINES} more lines"] if len(shown) > EXCEPTION_LINES else []
        lines += [paint(f"  {line}", "red") for line in shown[:EXCEPTION_LINES] + more]
    lines.append(f"  {visible(place, keep='')}")
    lines += [paint(line, "dim") for line in _wrapped([*who(pause), depth], width)]
    if pause.get("compiled"):
        lines += [f"  {line}" for line in COMPILED]
    return "\n".join(lines)


def who(pause: Message) -> list[str]:
    """Return what is known about the process of a pause, most telling first."""
    facts: list[str] = []

    def tell(name: str, value: Any) -> None:
        if value not in (None, ""):
            facts.append(visible(f"{name} {value}", keep=""))

    tell("rank", pause.get("rank"))
    if pause.get("child_of"):
        tell("child of", f"{_name(pause.get('actor')) or 'worker'} pid {pause['child_of']}")
    else:
        tell("actor", _name(pause.get("actor")))
    tell("task", _name(pause.get("task")))
    tell("attempt", pause.get("attempt") if (pause.get("attempt") or 1) > 1 else None)
    if pause.get("thread") not in (None, "", "MainThread"):
        tell("thread", pause["thread"])
    tell("pid", pause.get("pid"))
    tell("node", " at ".join(str(part) for part in (str(pause.get("node_id") or "")[:8], pause.get("ip")) if part))
    tell("job", pause.get("job_id"))
    if isinstance(pause.get("since_s"), (int, float)):
        facts.append(f"paused for {duration(float(pause['since_s']))}")
    return facts


def _name(entry: Any) -> Any:
    return entry.get("name") or entry.get("id") if isinstance(entry, dict) else entry


def duration(seconds: float) -> str:
    """Return a time span in the words one would say."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


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
    """Return the screen for a pause that begins: heading, then source with the current line marked."""
    session = debugger.session
    frame = session.stack.frame
    folded = sum(one.folded for one in session.stack.frames)
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
    """Return type and message of the exception, from pydevd's exceptionInfo or the gateway's record."""
    if not info:
        recorded = pause.get("exception")
        if isinstance(recorded, dict):
            return ": ".join(str(recorded[key]) for key in ("type", "message") if recorded.get(key))
        return str(recorded or "an exception")
    kind = str(info.get("exceptionId") or (info.get("details") or {}).get("typeName") or "an exception")
    # pydevd 1.8.22 appends where it really stopped to the type's name, which says nothing to the reader.
    kind = kind.split("\n")[0].split(" (note:")[0].strip().removeprefix("builtins.")
    message = str((info.get("details") or {}).get("message") or info.get("description") or "")
    return f"{kind}: {message}" if message and message != kind else kind


async def location(debugger: Debugger) -> str:
    """Return the place of the selected frame as pdb shows it after a step."""
    frame = debugger.session.stack.frame
    if frame is None:
        return "(this thread has no Python frame)"
    lines = await debugger.lines(frame)
    text = lines[frame.line - 1] if 0 < frame.line <= len(lines) else "(no source)"
    code = debugger.paint.code([visible(text)])[0]
    return f"{debugger.paint(f'> {frame.place}', 'bold')}\n{debugger.paint('->', 'green', 'bold')} {code}"
