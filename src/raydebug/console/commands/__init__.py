"""The table of the debugger's commands, and the parser of a typed line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from raydebug.console.commands import inspect, ranks, stopping
from raydebug.console.debugger import Command, CommandFailed, Debugger

_WORD = re.compile(r"([a-z]+)(?:\s+(.*)|)", re.DOTALL)
_ASSIGNS = re.compile(r"(=|[-+*/%&|^@]=|//=|\*\*=|<<=|>>=|:=)(?!=)|:\s*\w+\s*=")
_NOT_HERE = frozenset(
    {"alias", "unalias", "commands", "condition", "disable", "enable", "ignore", "interact", "j", "jump", "restart",
     "run", "rv", "retval", "debug", "exceptions"}
)  # fmt: skip


_BESIDE = (
    ("! CODE", "Run Python in the frame; so does any line that is not a command."),
    ("@0,3 COMMAND", "With several ranks at the prompt: at ranks 0 and 3; @0-7, @* (all), @#2 (no rank); also `c @*`."),
    ("@3", "Make rank 3 the current one: commands without an @ are for it."),
)


async def _help(debugger: Debugger, argument: str) -> str:
    return help_text(BY_NAME, argument, _BESIDE)


def help_text(names: Mapping[str, Command], argument: str, beside: Sequence[tuple[str, str]] = ()) -> str:
    """Return the table of commands, or the help of one.

    Raises:
        CommandFailed: there is no such command.
    """
    if argument:
        command = names.get(argument)
        if command is None:
            raise CommandFailed(f"No help for {argument!r}")
        aliases = ", ".join(command.names)
        return f"{command.usage}\n  {command.help}\n  names: {aliases}"
    table = dict.fromkeys(names.values())
    width = max(len(command.usage) for command in table)
    lines = [f"{command.usage.ljust(width)}  {command.help}" for command in table]
    return "\n".join([*lines, *(f"{usage.ljust(width)}  {words}" for usage, words in beside)])


TABLE = (
    *inspect.COMMANDS,
    *stopping.COMMANDS,
    *ranks.COMMANDS,
    Command(("h", "help"), "h [command]", "This table, or one command.", _help),
)
BY_NAME = {name: command for command in TABLE for name in command.names}


def split(line: str) -> list[str]:
    """Split a line into commands at `;;`, as pdb does, but not inside quotes.

    >>> split("n;; p x")
    ['n', 'p x']
    >>> split("p ';;'")
    ["p ';;'"]
    """
    parts, start, quote = [], 0, ""
    for index, character in enumerate(line):
        if quote:
            quote = "" if character == quote and line[index - 1] != "\\" else quote
        elif character in "'\"":
            quote = character
        elif line.startswith(";;", index) and index >= start:
            parts.append(line[start:index])
            start = index + 2
    return [part.strip() for part in [*parts, line[start:]] if part.strip()]


def parse(line: str, names: Mapping[str, Command] | None = None) -> tuple[Command | None, str]:
    """Return the command that a line names, and its argument; no command for Python code.

    A name that is assigned to is no command, nor is one with a bracket, dot or operator directly behind it
    (`l.append(1)`, `a = 5`, `list(x)`); except `p(x)` and `pp(x)`, which mean the same either way.

    >>> parse("p x + 1")[0].names, parse("p x + 1")[1]
    (('p',), 'x + 1')
    >>> parse("c = 5")[0], parse("list(x)")[0]
    (None, None)
    """
    names, line = BY_NAME if names is None else names, line.strip()
    if line.startswith("!"):
        return None, line[1:].strip()
    if line.startswith("?"):
        return names["h"], line[1:].strip()
    bracket = re.match(r"(p|pp)(\(.*\))$", line, re.DOTALL)
    found = bracket or _WORD.fullmatch(line)
    if found is None or found[1] not in names or _ASSIGNS.match(found[2] or ""):
        return None, line
    return names[found[1]], (found[2] or "").strip()


async def run(debugger: Debugger, line: str) -> str:
    """Run one command or line of Python and return its output.

    Raises:
        CommandFailed: the message is for the user.
    """
    command, argument = parse(line)
    if command is None:
        if not argument:
            return ""
        if line.lstrip().startswith("@"):  # not `! @decorator`; among several pauses the group has removed it
            raise CommandFailed("one pause is attached here; `raydebug attach all` takes several")
        try:
            return await inspect.run_code(debugger, argument)
        except CommandFailed as failed:
            word = argument.split()[0]
            if word in _NOT_HERE and "Error" in str(failed):
                raise CommandFailed(f"pdb's {word!r} is not offered here; `h` lists what is") from failed
            raise
    if command.bare and argument:
        raise CommandFailed(f"{line.split()[0]!r} takes no argument; for an expression write: ! {line}")
    if command.needs and not argument:
        raise CommandFailed(f"{command.names[0]} needs {command.needs}: {command.usage}")
    return await command.run(debugger, argument)
