"""The line below the prompt: who, at which step, how long already, and the nearest limit."""

from __future__ import annotations

from raydebug.console.debugger import Debugger
from raydebug.console.overview import step_of
from raydebug.console.screen import duration
from raydebug.render import visible


async def note_step(debugger: Debugger) -> None:
    """Find out which step of the training a fresh stop belongs to; the status line cannot ask by itself."""
    debugger.step = await step_of(debugger)


def status(debugger: Debugger, *, others: int = 0) -> str:
    """Return the words of the status line.

    Args:
        debugger: the current rank's.
        others: how many more ranks are at the prompt.
    """
    session = debugger.session
    parts = [debugger.label]
    if debugger.step:
        parts.append(f"step {debugger.step}")
    parts.append("running" if session.running else f"paused {duration(session.paused_for_s)}")
    limit = "" if session.running else debugger.watchdog(session.pause)
    parts += [limit] if limit else []
    parts += [f"{others} more at this prompt, `ranks` lists them"] if others else []
    return visible(" | ".join(parts), keep="")
