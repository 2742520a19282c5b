"""The line below the prompt: who, at which step, how long already, and the nearest limit."""

from __future__ import annotations

from raydebug.console.debugger import Debugger
from raydebug.console.screen import duration
from raydebug.dap.wire import Message
from raydebug.render import visible


def status(debugger: Debugger, *, others: int = 0) -> str:
    """Return the words of the status line.

    Args:
        debugger: the current rank's.
        others: how many more ranks are at the prompt.
    """
    session = debugger.session
    parts = [debugger.label]
    if session.pause.get("step") is not None:
        parts.append(f"step {session.pause['step']}")
    if session.running:
        parts.append("running")
    else:
        parts += [f"paused {duration(session.paused_for_s)}", nearest_limit(session.pause, session.paused_for_s)]
    parts += [f"{others} more at this prompt, `ranks` lists them"] if others else []
    return visible(" | ".join(filter(None, parts)), keep="")


def nearest_limit(pause: Message, paused_for_s: float) -> str:
    """Return which watchdog ends a pause first, and when; empty where none is known.

    Args:
        pause: its record; `watchdog` has a name and after how many seconds it strikes.
        paused_for_s: seconds since the pause began.
    """
    watchdog = pause.get("watchdog")
    if not isinstance(watchdog, dict) or not isinstance(watchdog.get("after_s"), (int, float)):
        return ""
    left = float(watchdog["after_s"]) - paused_for_s
    return f"{watchdog.get('name')} " + (f"ends it in {duration(left)}" if left > 0 else "is overdue")
