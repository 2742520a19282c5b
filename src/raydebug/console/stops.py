"""From a command that lets the thread run to what is shown when it stops again."""

from __future__ import annotations

from raydebug.console.debugger import Debugger
from raydebug.console.look import changed_displays
from raydebug.console.screen import location, opening
from raydebug.render import visible


async def next_stop(debugger: Debugger, *, timeout_s: float | None = None) -> str:
    """Wait until the thread stops again, and return what to show.

    Raises:
        RaydebugError: the session is lost.
        TimeoutError: nothing stopped within timeout_s seconds.
    """
    session = debugger.session
    before = session.stack
    fresh = await session.wait_stop(timeout_s=timeout_s)
    while debugger.steps_left and session.stop.get("reason") == "step" and not fresh:
        await session.resume(debugger.steps_left.pop(0))
        fresh = await session.wait_stop(timeout_s=timeout_s)
    debugger.steps_left = []
    debugger.listed_to = None
    await debugger.breakpoints.forget_once()
    newest = session.stack.frames[0] if session.stack.frames else None
    used = await debugger.breakpoints.note_stop(newest.path, newest.line) if newest else []
    if session.post_mortem or (fresh and debugger.interactive):
        return "\n".join(filter(None, [await opening(debugger), await changed_displays(debugger)]))
    lines = [f"Deleted breakpoint {one.number} at {visible(one.place)}" for one in used]
    left = len(before.frames) - len(session.stack.frames)
    if left > 0 and not fresh:
        lines.append(await _returned(debugger, before.frames[left - 1].function))
    lines += [await location(debugger), await changed_displays(debugger)]
    return "\n".join(filter(None, lines))


async def _returned(debugger: Debugger, function: str) -> str:
    """Return what the function that we stepped out of gave back, when pydevd tells it."""
    name = f"(return) {function}"  # pydevd 1.8.22 with showReturnValue; methods are told as `(return) Class.method`
    for variable in await debugger.session.locals():
        told = str(variable.get("name", ""))
        if told == name or (told.startswith("(return) ") and told.endswith("." + function)):
            return debugger.paint(visible(f"--Return-- {function} -> {variable.get('value')}"), "dim")
    return ""
