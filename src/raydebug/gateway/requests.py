"""What a client may ask: checked before anything of it reaches a process. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raydebug.dap import wire
from raydebug.dap.wire import Message
from raydebug.gateway import refusals

MAX_DEPTH = 64  # of a request's JSON: pydevd's own parser must get by with the stack that it has
# What a client may ask of pydevd; nothing else is handed on. `terminate` and the like stay out: a debugger that
# leaves must not take a training worker with it.
HANDED_ON = frozenset(
    {
        *("threads", "stackTrace", "scopes", "variables", "evaluate", "setVariable", "setExpression", "source"),
        *("completions", "exceptionInfo", "modules", "next", "stepIn", "stepOut", "stepInTargets", "continue"),
        *("pause", "goto", "gotoTargets", "setBreakpoints", "setFunctionBreakpoints", "setExceptionBreakpoints"),
    }
)
SUPPORTED = (
    *("supportsConfigurationDoneRequest", "supportsConditionalBreakpoints", "supportsHitConditionalBreakpoints"),
    *("supportsFunctionBreakpoints", "supportsLogPoints", "supportsEvaluateForHovers", "supportsClipboardContext"),
    *("supportsSetVariable", "supportsSetExpression", "supportsCompletionsRequest", "supportsExceptionInfoRequest"),
    *("supportsModulesRequest", "supportsDelayedStackTraceLoading", "supportsValueFormattingOptions"),
)
RESUMING = frozenset({"continue", "next", "stepIn", "stepOut", "goto"})

# What pydevd goes by in the arguments of the requests above.
NUMBERS = frozenset(
    {
        *("threadId", "frameId", "variablesReference", "sourceReference", "levels", "startFrame", "start", "count"),
        *("line", "column", "endLine", "endColumn", "targetId"),
    }
)
TEXTS = frozenset({"path", "expression", "context", "name", "value", "text", "condition", "hitCondition", "logMessage"})
LISTS: dict[str, Callable[[Any], bool]] = {
    "breakpoints": lambda one: isinstance(one, dict),
    "lines": lambda one: _is_number(one),
    "filters": lambda one: isinstance(one, str),
}
LEFT_OUT = frozenset({"exceptionOptions", "filterOptions"})  # not among `SUPPORTED`


def capabilities() -> Message:
    """Return the answer to `initialize`."""
    filters = [{"filter": "uncaught", "label": "Uncaught Exceptions", "default": True}]
    return {**dict.fromkeys(SUPPORTED, True), "exceptionBreakpointFilters": filters}


def read(message: Message) -> tuple[str, Message]:
    """Return a request's command and arguments.

    Raises:
        WireError: it cannot be answered.
        Refused: they are of the wrong kind, or nested so deep that somebody's parser might give up.
    """
    if not isinstance(message.get("seq", 0), int):
        raise wire.WireError("a request's seq is not a number")  # nothing that an answer could name
    command, arguments = message.get("command"), message.get("arguments")
    if not isinstance(command, str):
        raise refusals.malformed("its command is no text")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise refusals.malformed("its arguments are no object")
    if _is_deep(arguments):
        raise refusals.malformed(f"its arguments are nested deeper than {MAX_DEPTH}")
    if command in HANDED_ON:
        arguments = _checked(arguments)
        _check_breakpoints(command, arguments)
    return command, arguments


def _checked(given: Any) -> Message:
    """Return an object of a request without what is null, its known fields being of their kind.

    pydevd's reader ends, and with it the session, on a path or a line of another kind (debugpy 1.8.22,
    pydevd_process_net_command_json.py, on_setbreakpoints_request).
    """
    if not isinstance(given, dict):
        raise refusals.malformed("an object is expected")
    checked: Message = {}
    for name, value in given.items():
        if value is None or name in LEFT_OUT:
            continue
        if name in NUMBERS and not _is_number(value):
            raise refusals.malformed(f"'{name}' is no number")
        if name in TEXTS and not _is_text(value):
            raise refusals.malformed(f"'{name}' is no text")
        if name in LISTS:
            if not isinstance(value, list) or not all(LISTS[name](one) for one in value):
                raise refusals.malformed(f"'{name}' is no such list")
            value = [_checked(one) if isinstance(one, dict) else one for one in value]
        checked[name] = _checked(value) if name in ("source", "format") else value
    return checked


def _check_breakpoints(command: str, arguments: Message) -> None:
    needed = {"setBreakpoints": "line", "setFunctionBreakpoints": "name"}.get(command)
    if command == "setBreakpoints" and not arguments.get("source", {}).get("path"):
        raise refusals.malformed("it names no file")
    if needed and not all(needed in one for one in arguments.get("breakpoints", ())):
        raise refusals.malformed(f"a breakpoint has no {needed}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**53


def _is_text(value: Any) -> bool:
    # No file's name has a NUL in it, and half of a surrogate pair cannot be one either.
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def source_reference(arguments: Message) -> Any:
    """Return the reference that a `source` request asks for; the older field is beside the newer one."""
    source = arguments.get("source")
    inside = source.get("sourceReference") if isinstance(source, dict) else None
    return inside or arguments.get("sourceReference")
