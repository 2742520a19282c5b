"""Commands for stopping and continuing (steps, `continue`, breakpoints, log points, `quit`), and what a stop shows."""

from __future__ import annotations

import ast
import contextlib
from functools import partial
from pathlib import Path

from raydebug.console import probes
from raydebug.console.commands.inspect import changed_displays
from raydebug.console.debugger import Breakpoint, Command, CommandFailed, Debugger
from raydebug.console.view import location, opening
from raydebug.render import visible

# Steps


async def _step(debugger: Debugger, argument: str = "", *, last: str) -> str:
    """Take a step of the selected frame's: as in pdb, `n` after `u` is one of the caller; `stepIn` is of the newest."""
    if debugger.session.post_mortem:
        raise CommandFailed(
            "nothing can be stepped after an exception: look around; `c` lets the task fail as it would"
        )
    above = 0 if last == "stepIn" else debugger.session.stack.selected
    first, *debugger.steps_left = [*["stepOut"] * above, last]
    await debugger.session.resume(first)
    return ""


async def _until(debugger: Debugger, argument: str) -> str:
    frame, function = debugger.frame, await debugger.function()
    if argument and not argument.isdigit():
        raise CommandFailed(f"Error in argument: {argument!r}")
    target = int(argument) if argument else frame.line + 1
    if target <= frame.line:
        raise CommandFailed('"until" line number is smaller than current line number')
    if function is None or debugger.session.post_mortem:
        return await _step(debugger, last="next")
    # Breakpoints on every later statement of the function, and the return: the loop body runs at full speed until then.
    await debugger.breakpoints.stop_once_at(frame.path, [line for line in function.statements if line >= target])
    return await _step(debugger, last="stepOut")


async def _continue(debugger: Debugger, argument: str) -> str:
    await debugger.session.resume("continue")
    return ""


async def leave(debugger: Debugger, argument: str) -> str:
    """Note that the person leaves."""
    debugger.leaving = True
    return ""


# The next stop


async def wait_for_stop(debugger: Debugger) -> str:
    """Wait until the thread stops again, and return the text to show.

    Raises:
        RaydebugError: the session is lost.
    """
    session = debugger.session
    before = session.stack
    fresh = await session.wait_stop()
    while debugger.steps_left and session.stop.get("reason") == "step" and not fresh:
        await session.resume(debugger.steps_left.pop(0))
        fresh = await session.wait_stop()
    debugger.steps_left = []
    debugger.listed_to = None
    await debugger.breakpoints.forget_once()
    newest = session.stack.frames[0] if session.stack.frames else None
    used = await debugger.breakpoints.note_stop(newest.path, newest.line) if newest else []
    if session.post_mortem or (fresh and debugger.interactive):
        return "\n".join(filter(None, [await opening(debugger), await changed_displays(debugger)]))
    lines = [f"Deleted breakpoint {point.number} at {visible(point.place)}" for point in used]
    returned = len(before.frames) - len(session.stack.frames)
    if returned > 0 and not fresh:
        lines.append(await _return_value(debugger, before.frames[returned - 1].function))
    lines += [await location(debugger), await changed_displays(debugger)]
    return "\n".join(filter(None, lines))


async def _return_value(debugger: Debugger, function: str) -> str:
    """Return a line with the value that a function has just returned; empty when pydevd does not report it."""
    name = f"(return) {function}"  # pydevd 1.8.22 with showReturnValue; of methods `(return) Class.method`
    for variable in await debugger.session.locals():
        reported = str(variable.get("name", ""))
        if reported == name or (reported.startswith("(return) ") and reported.endswith("." + function)):
            return debugger.paint(visible(f"--Return-- {function} -> {variable.get('value')}"), "dim")
    return ""


# Breakpoints


async def _break(debugger: Debugger, argument: str, *, temporary: bool = False) -> str:
    if not argument:
        return _table(debugger)
    where, _, condition = (part.strip() for part in argument.partition(","))
    if condition:
        debugger.expression(condition)
    path, line = await _place(debugger, where)
    try:
        new = await debugger.breakpoints.add(path, line, condition=condition, temporary=temporary)
    except ValueError as error:
        raise CommandFailed(f"no breakpoint at {visible(path)}:{line}: {visible(str(error))}") from error
    moved = f" (line {line} holds no code)" if new.line != line else ""
    return f"{'Temporary breakpoint' if temporary else 'Breakpoint'} {new.number} at {visible(new.place)}{moved}"


async def _log(debugger: Debugger, argument: str) -> str:
    where, comma, text = (part.strip() for part in argument.partition(","))
    if not comma or not text:
        raise CommandFailed('log needs a place and a text: log WHERE, "loss={loss}"')
    with contextlib.suppress(ValueError, SyntaxError):  # text without quotes is used as it is
        text = str(ast.literal_eval(text))
    path, line = await _place(debugger, where)
    try:
        new = await debugger.breakpoints.add(path, line, log=text)
    except ValueError as error:
        raise CommandFailed(f"no log point at {visible(path)}:{line}: {visible(str(error))}") from error
    return f"Log point {new.number} at {visible(new.place)}"


async def _place(debugger: Debugger, where: str) -> tuple[str, int]:
    """Return file and line of `line`, `file:line` or `function`."""
    if where.isdigit():
        return debugger.frame.path, int(where)
    file, colon, line = where.rpartition(":")
    if colon and line.strip().isdigit():
        return await _file(debugger, file.strip()), int(line)
    found = await debugger.document(probes.as_code_place(debugger.expression(where)))
    if not found:
        raise CommandFailed(f"{where!r} is not a function, line or file:line")
    return debugger.session.named_here(str(found[0])), int(found[1])


async def _file(debugger: Debugger, name: str) -> str:
    """Return the path of a file as the process knows it."""
    if name.startswith("/"):
        return name
    ending = name.removeprefix("./")
    for frame in debugger.session.stack.frames:
        if ("/" + frame.path).endswith("/" + ending):
            return frame.path
    loaded = await debugger.document(probes.as_loaded_files(ending))
    if len(loaded) > 1:
        raise CommandFailed(f"{name!r} may be {' or '.join(loaded)}: give more of its path")
    if loaded:
        return debugger.session.named_here(str(loaded[0]))
    if (here := _local(name)) is not None:  # not loaded there yet
        return here
    raise CommandFailed(f"no file {name!r} is loaded in the process; give its full path")


def _local(name: str) -> str | None:
    path = Path(name)
    return str(path.resolve()) if path.is_file() else None


def _table(debugger: Debugger) -> str:
    if not debugger.breakpoints.table:
        return "(no breakpoints)"
    rows = ["Num Type         Disp Enb   Where"]
    for point in debugger.breakpoints.table:
        kind, keeps = "log point" if point.log else "breakpoint", "del " if point.temporary else "keep"
        rows.append(f"{point.number:<4}{kind:<13}{keeps} yes   at {visible(point.place)}")
        if point.log:
            rows.append(f"        says {visible(point.log)!r}")
        if point.condition:
            rows.append(f"        stop only if {visible(point.condition)}")
        if point.hits:
            rows.append(f"        breakpoint already hit {point.hits} time{'s' if point.hits > 1 else ''}")
    return "\n".join(rows)


async def _clear(debugger: Debugger, argument: str) -> str:
    gone = await _named(debugger, argument) if argument else list(debugger.breakpoints.table)
    await debugger.breakpoints.remove(gone)
    lines = [f"Deleted breakpoint {point.number} at {visible(point.place)}" for point in gone]
    return "\n".join(lines) or "(no breakpoints)"


async def _named(debugger: Debugger, argument: str) -> list[Breakpoint]:
    table = debugger.breakpoints.table
    if ":" in argument:
        path, line = await _place(debugger, argument)
        found = [point for point in table if point.path == path and point.line == line]
        if not found:
            raise CommandFailed(f"There are no breakpoints at {argument}")
        return found
    numbered = {str(point.number): point for point in table}
    for number in argument.split():
        if number not in numbered:
            raise CommandFailed(f"No breakpoint numbered {number}")
    return [numbered[number] for number in argument.split()]


COMMANDS = (
    Command(("n", "next"), "n", "Run to the next line of this function.", partial(_step, last="next"), bare=True),
    Command(("s", "step"), "s", "Run to the next line, into functions that are called.",
            partial(_step, last="stepIn"), bare=True),
    Command(("r", "return"), "r", "Run until this function returns; stops in its caller.",
            partial(_step, last="stepOut"), bare=True),
    Command(("unt", "until"), "until [line]", "Run to a later line of this function: out of a loop.", _until),
    Command(("c", "cont", "continue"), "c", "Resume until the next breakpoint.", _continue, bare=True),
    Command(("q", "quit", "exit"), "q", "Leave; asks whether to resume the task.", leave, bare=True),
    Command(("b", "break"), "b [WHERE][, condition]", "Set a breakpoint: line, file:line, function; or list.", _break),
    Command(("tbreak",), "tbreak WHERE[, condition]", "Set a breakpoint that stops once.",
            partial(_break, temporary=True)),
    Command(("log",), 'log WHERE, "loss={loss}"', "Print a text whenever this line is reached; no stop.", _log,
            needs="WHERE"),
    Command(("cl", "clear"), "cl [number | file:line]", "Remove breakpoints; without argument, all.", _clear),
)  # fmt: skip
