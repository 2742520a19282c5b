"""Commands for breakpoints: b, tbreak, log, cl."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path

from raydebug.console import probes
from raydebug.console.breakpoint_table import Breakpoint
from raydebug.console.debugger import Command, CommandFailed, Debugger
from raydebug.render import visible


async def _break(debugger: Debugger, argument: str) -> str:
    return await _set(debugger, argument) if argument else _table(debugger)


async def _temporary(debugger: Debugger, argument: str) -> str:
    return await _set(debugger, argument, temporary=True) if argument else _table(debugger)


async def _set(debugger: Debugger, argument: str, *, temporary: bool = False) -> str:
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
        raise CommandFailed(f"{where!r} is no function, line or file:line")
    return str(found[0]), int(found[1])


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
        return str(loaded[0])
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
    for one in debugger.breakpoints.table:
        kind = "log point" if one.log else "breakpoint"
        rows.append(f"{one.number:<4}{kind:<13}{'del ' if one.temporary else 'keep'} yes   at {visible(one.place)}")
        if one.log:
            rows.append(f"        says {visible(one.log)!r}")
        if one.condition:
            rows.append(f"        stop only if {visible(one.condition)}")
        if one.hits:
            rows.append(f"        breakpoint already hit {one.hits} time{'s' if one.hits > 1 else ''}")
    return "\n".join(rows)


async def _clear(debugger: Debugger, argument: str) -> str:
    gone = await _named(debugger, argument) if argument else list(debugger.breakpoints.table)
    await debugger.breakpoints.remove(gone)
    return "\n".join(f"Deleted breakpoint {one.number} at {visible(one.place)}" for one in gone) or "(no breakpoints)"


async def _named(debugger: Debugger, argument: str) -> list[Breakpoint]:
    table = debugger.breakpoints.table
    if ":" in argument:
        path, line = await _place(debugger, argument)
        found = [one for one in table if one.path == path and one.line == line]
        if not found:
            raise CommandFailed(f"There are no breakpoints at {argument}")
        return found
    numbered = {str(one.number): one for one in table}
    for number in argument.split():
        if number not in numbered:
            raise CommandFailed(f"No breakpoint numbered {number}")
    return [numbered[number] for number in argument.split()]


COMMANDS = (
    Command(("b", "break"), "b [WHERE][, condition]", "Set a breakpoint: line, file:line, function; or list.", _break),
    Command(("tbreak",), "tbreak WHERE[, condition]", "Set a breakpoint that stops once.", _temporary),
    Command(("log",), 'log WHERE, "loss={loss}"', "Print a text whenever this line is reached; no stop.", _log,
            needs="WHERE"),
    Command(("cl", "clear"), "cl [number | file:line]", "Remove breakpoints; without argument, all.", _clear),
)  # fmt: skip
