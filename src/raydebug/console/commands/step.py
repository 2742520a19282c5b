"""Commands that resume the thread (steps, until, continue), and quit."""

from __future__ import annotations

from raydebug.console.debugger import Command, CommandFailed, Debugger


async def _next(debugger: Debugger, argument: str) -> str:
    return await _step(debugger, *_returns_above(debugger), "next")


async def _step_in(debugger: Debugger, argument: str) -> str:
    return await _step(debugger, "stepIn")


async def _return(debugger: Debugger, argument: str) -> str:
    return await _step(debugger, *_returns_above(debugger), "stepOut")


def _returns_above(debugger: Debugger) -> list[str]:
    """Return the steps up to the selected frame: as in pdb, `n` after `u` is a step of the caller."""
    return ["stepOut"] * debugger.session.stack.selected


async def _step(debugger: Debugger, *steps: str) -> str:
    if debugger.session.post_mortem:
        raise CommandFailed(
            "nothing can be stepped after an exception: look around; `c` lets the task fail as it would"
        )
    debugger.steps_left = list(steps[1:])
    await debugger.session.resume(steps[0])
    return ""


async def _until(debugger: Debugger, argument: str) -> str:
    frame, function = debugger.frame, await debugger.function()
    if argument and not argument.isdigit():
        raise CommandFailed(f"Error in argument: {argument!r}")
    target = int(argument) if argument else frame.line + 1
    if target <= frame.line:
        raise CommandFailed('"until" line number is smaller than current line number')
    if function is None or debugger.session.post_mortem:
        return await _next(debugger, "")
    # Breakpoints on every later statement of the function, and the return: the loop body runs at full speed until then.
    await debugger.breakpoints.stop_once_at(frame.path, [line for line in function.statements if line >= target])
    return await _return(debugger, "")


async def _continue(debugger: Debugger, argument: str) -> str:
    await debugger.session.resume("continue")
    return ""


async def _quit(debugger: Debugger, argument: str) -> str:
    debugger.leaving = True
    return ""


COMMANDS = (
    Command(("n", "next"), "n", "Run to the next line of this function.", _next, bare=True),
    Command(("s", "step"), "s", "Run to the next line, into functions that are called.", _step_in, bare=True),
    Command(("r", "return"), "r", "Run until this function returns; stops in its caller.", _return, bare=True),
    Command(("unt", "until"), "until [line]", "Run to a later line of this function: out of a loop.", _until),
    Command(("c", "cont", "continue"), "c", "Resume until the next breakpoint.", _continue, bare=True),
    Command(("q", "quit", "exit"), "q", "Leave; asks whether to resume the task.", _quit, bare=True),
)  # fmt: skip
