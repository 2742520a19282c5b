"""Commands that inspect: the stack, source, values, threads."""

from __future__ import annotations

import ast
import os
from functools import partial

from raydebug.console import probes
from raydebug.console.debugger import Command, CommandFailed, Debugger
from raydebug.console.frames import AROUND, listing, where
from raydebug.console.view import draw_tensor, location
from raydebug.render import visible

_FULL_CHARS = 64 << 20  # of `full`
_PIECE_CHARS = 1 << 20  # of one answer: each character may take six bytes of JSON, and a DAP message has 16 MiB
_VALUE_CHARS = 2000  # of one variable in a list of them, where stdout is no terminal


async def _where(debugger: Debugger, argument: str) -> str:
    if argument not in ("", "-a", "all"):
        raise CommandFailed("w takes nothing, or `all` to show Ray's frames too")
    debugger.stack.unfolded = bool(argument)
    stack = debugger.stack
    shown = [frame for frame in stack.frames if argument or not frame.folded or frame is stack.frame]
    source = {frame.id: await debugger.line_of(frame) for frame in shown}
    return where(stack, source, all_frames=bool(argument), paint=debugger.paint)


async def _select(debugger: Debugger, argument: str, *, sign: int, end: str) -> str:
    stack, older_by = debugger.stack, sign * _count(argument)
    if not stack.move(older_by):
        folded = 0 if stack.unfolded else stack.folded_beyond(older_by)
        more = f"; {'1 frame' if folded == 1 else f'{folded} frames'} of Ray beyond, after `w all`" if folded else ""
        raise CommandFailed(end + more)
    debugger.listed_to = None
    return await location(debugger)


def _count(argument: str) -> int:
    if not argument:
        return 1
    if not argument.isdigit():
        raise CommandFailed(f"Invalid frame count ({argument})")
    return int(argument) or 10**6  # pdb: `u 0` goes to the end; here in the direction of the command


async def _list(debugger: Debugger, argument: str) -> str:
    current, lines = debugger.frame.line, await _source(debugger)
    start, last = debugger.listed_to, None
    if argument in ("", "."):
        first = max(1, current - AROUND) if start is None or argument == "." else start + 1
    else:
        try:
            first, *rest = (int(part) for part in argument.split(","))
        except ValueError:
            raise CommandFailed(f"Error in argument: {argument!r}") from None
        if rest:
            last = rest[0] if rest[0] >= first else first + rest[0]  # pdb: a smaller number is a count
        else:
            first = max(1, first - AROUND)
    last = last if last is not None else first + 2 * AROUND
    if first > len(lines):
        return "[EOF]"
    debugger.listed_to = min(last, len(lines))
    return _listing(debugger, lines, first, last)


async def _longlist(debugger: Debugger, argument: str) -> str:
    lines, function = await _source(debugger), await debugger.function()
    first, last = (function.first, function.last) if function else (1, len(lines))
    return _listing(debugger, lines, first, last)


async def _source(debugger: Debugger) -> list[str]:
    lines = await debugger.lines(debugger.frame)
    if not lines:
        raise CommandFailed(f"no source of {visible(debugger.frame.path)}, here or in the process")
    return lines


def _listing(debugger: Debugger, lines: list[str], first: int, last: int) -> str:
    frame = debugger.frame
    breaks = debugger.lines_with_breakpoints(frame.path)
    if last < debugger.first_line:
        raise CommandFailed(f"the source is known from line {debugger.first_line}")
    first = max(first, debugger.first_line)
    return listing(lines, first, last, current=frame.line, breakpoints=breaks, paint=debugger.paint)


async def _print(debugger: Debugger, argument: str) -> str:
    return await debugger.shown(argument)


async def _full(debugger: Debugger, argument: str) -> str:
    key = f"full.{os.getpid()}"
    length = int(await debugger.document(probes.as_kept_text(debugger.expression(argument), key, _FULL_CHARS)))
    try:
        pieces = [
            await debugger.document(probes.as_packed(key, start, start + _PIECE_CHARS), long=True)
            for start in range(0, length, _PIECE_CHARS)
        ]
    finally:
        await debugger.session.evaluate(probes.as_forgotten(key))
    cut = f"\n... cut at {_FULL_CHARS:,} characters" if length == _FULL_CHARS else ""
    return visible("".join(pieces)) + cut


async def _pretty(debugger: Debugger, argument: str) -> str:
    return await debugger.value(probes.as_pretty(debugger.expression(argument), debugger.width)) or ""


async def _whatis(debugger: Debugger, argument: str) -> str:
    return await debugger.value(probes.as_kind(debugger.expression(argument))) or ""


async def _source_of(debugger: Debugger, argument: str) -> str:
    found, first = await debugger.document(probes.as_source(debugger.expression(argument)), long=True)
    lines = [line.rstrip("\n") for line in found]
    first = max(first, 1)
    return listing([""] * (first - 1) + lines, first, first + len(lines) - 1, paint=debugger.paint)


async def _args(debugger: Debugger, argument: str) -> str:
    function = await debugger.function()
    if function is None:
        return ""
    local = {variable["name"]: variable for variable in await debugger.locals()}
    shown = [_variable(debugger, name, local[name]["value"]) for name in function.arguments if name in local]
    return "\n".join(shown)


async def _locals(debugger: Debugger, argument: str) -> str:
    shown = [
        _variable(debugger, variable["name"], variable["value"])
        for variable in await debugger.locals()
        if variable.get("type") or variable.get("value")  # pydevd groups (special, function variables) have neither
    ]
    return "\n".join(shown) or "(no locals)"


def _variable(debugger: Debugger, name: str, value: str) -> str:
    limit = max(20, debugger.width - len(name) - 3) if debugger.paint.colour else _VALUE_CHARS
    text = visible(" ".join(value.split("\n")) if debugger.paint.colour else value)
    return f"{debugger.paint(visible(name), 'cyan')} = {text if len(text) <= limit else text[: limit - 3] + '...'}"


async def _tensor(debugger: Debugger, argument: str) -> str:
    found = await debugger.tensor(argument)
    try:
        return draw_tensor(found, debugger.paint)
    except ValueError as error:
        raise CommandFailed(visible(str(error))) from error


async def _threads(debugger: Debugger, argument: str) -> str:
    answer = await debugger.session.request("threads")
    here = debugger.session.stop.get("threadId")
    return "\n".join(
        f"{'>' if thread.get('id') == here else ' '} {visible(str(thread.get('name')), keep='')}"
        for thread in answer.get("threads") or []
    )


async def _display(debugger: Debugger, argument: str) -> str:
    if not argument:
        return "\n".join(f"{expression}: {value}" for expression, value in debugger.displayed.items())
    expression = debugger.expression(argument)
    debugger.displayed[expression] = await _shown(debugger, expression)
    return f"display {expression}: {debugger.displayed[expression]}"


async def _undisplay(debugger: Debugger, argument: str) -> str:
    if argument and argument not in debugger.displayed:
        raise CommandFailed("not displaying " + argument)
    for expression in [argument] if argument else list(debugger.displayed):
        del debugger.displayed[expression]
    return ""


async def _shown(debugger: Debugger, expression: str) -> str:
    try:
        return await debugger.shown(expression)
    except CommandFailed as failed:
        return f"** raised {failed} **"


async def changed_displays(debugger: Debugger) -> str:
    """Return a line for every displayed expression whose value has changed since it was last shown."""
    lines = []
    for expression, old in debugger.displayed.items():
        new = await _shown(debugger, expression)
        if new != old:
            debugger.displayed[expression] = new
            lines.append(f"display {expression}: {new}  [old: {old}]")
    return "\n".join(lines)


async def run_code(debugger: Debugger, code: str) -> str:
    """Run a line that is not a command as Python in the selected frame, as pdb does.

    Raises:
        CommandFailed: it raised, or is not Python.
    """
    try:
        expression = probes.is_expression(code)
    except probes.NotPython as error:
        raise CommandFailed(str(error)) from error
    nodes = ast.walk(ast.parse(code.strip(), mode="eval")) if expression else ()
    # pydevd runs a top-level await only in code that is not wrapped.
    if expression and not any(isinstance(node, ast.Await) for node in nodes):
        code = probes.as_shown_unless_none(code, debugger.value_chars)
    return await debugger.value(code) or ""


COMMANDS = (
    Command(("w", "where", "bt"), "w [all]", "The stack, newest last; all: with Ray's, for u and d too.", _where),
    Command(("u", "up"), "u [count]", "Go to an older frame: the caller.",
            partial(_select, sign=1, end="Oldest frame")),
    Command(("d", "down"), "d [count]", "Go to a newer frame: the one called.",
            partial(_select, sign=-1, end="Newest frame")),
    Command(("l", "list"), "l [. | line | from,to]", "Source around the current line; again: the lines after.", _list),
    Command(("ll", "longlist"), "ll", "The source of the whole function.", _longlist, bare=True),
    Command(("source",), "source EXPR", "The source of a function or class.", _source_of, needs="EXPR"),
    Command(("p",), "p EXPR", "The value of an expression.", _print, needs="EXPR"),
    Command(("full",), "full EXPR", "The value of an expression, however long; `p` cuts it.", _full, needs="EXPR"),
    Command(("pp",), "pp EXPR", "The value of an expression, pretty-printed.", _pretty, needs="EXPR"),
    Command(("tensor",), "tensor EXPR", "Shape, dtype, device, spread, NaN, Inf of a tensor.", _tensor, needs="EXPR"),
    Command(("a", "args"), "a", "The arguments of this function.", _args, bare=True),
    Command(("locals",), "locals", "All local variables.", _locals, bare=True),
    Command(("whatis",), "whatis EXPR", "The type of an expression.", _whatis, needs="EXPR"),
    Command(("display", "watch"), "watch [EXPR]", "Show the value after each stop where it has changed.", _display),
    Command(("undisplay", "unwatch"), "unwatch [EXPR]", "Stop showing it; without EXPR, all.", _undisplay),
    Command(("threads",), "threads", "The threads of the process.", _threads, bare=True),
)  # fmt: skip
