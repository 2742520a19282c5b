"""The requests of clients, before they reach a process: checks and refusals. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raydebug.protocol import wire
from raydebug.protocol.wire import Message

WRONG_TOKEN = "auth.wrong-token"  # noqa: S105 - a code, not a token
MISSING_TOKEN = "auth.missing-token"  # noqa: S105 - as above
LOOK = "list the pauses with `raydebug paused`"
MAX_DEPTH = 64  # of a request's JSON: pydevd's own parser recurses
# Only these requests are forwarded to pydevd. Not `terminate` and its like: a debugger that leaves must not end a
# training worker. Not `goto`: Python can only jump from a trace function, and a pause has none (debugpy 1.8.22,
# pydevd.py:3026 `set_next_statement`).
FORWARDED = frozenset((
    "threads", "stackTrace", "scopes", "variables", "evaluate", "setVariable", "setExpression", "source",
    "completions", "exceptionInfo", "modules", "next", "stepIn", "stepOut", "stepInTargets", "continue",
    "pause", "setBreakpoints", "setFunctionBreakpoints", "setExceptionBreakpoints",
))  # fmt: skip
SUPPORTED = (
    *("supportsConfigurationDoneRequest", "supportsConditionalBreakpoints", "supportsHitConditionalBreakpoints"),
    *("supportsFunctionBreakpoints", "supportsLogPoints", "supportsEvaluateForHovers", "supportsClipboardContext"),
    *("supportsSetVariable", "supportsSetExpression", "supportsCompletionsRequest", "supportsExceptionInfoRequest"),
    *("supportsStepInTargetsRequest", "supportsModulesRequest", "supportsDelayedStackTraceLoading"),
    "supportsValueFormattingOptions",
)
RESUMING = frozenset({"continue", "next", "stepIn", "stepOut"})

# The arguments of these requests that pydevd reads, by type.
NUMBERS = frozenset((
    "threadId", "frameId", "variablesReference", "sourceReference", "levels", "startFrame", "start", "count",
    "line", "column", "endLine", "endColumn", "targetId",
))  # fmt: skip
TEXTS = frozenset({"path", "expression", "context", "name", "value", "text", "condition", "hitCondition", "logMessage"})
LISTS: dict[str, Callable[[Any], bool]] = {
    "breakpoints": lambda one: isinstance(one, dict),
    "lines": lambda one: _is_number(one),
    "filters": lambda one: isinstance(one, str),
}
LEFT_OUT = frozenset({"exceptionOptions", "filterOptions"})  # not among `SUPPORTED`


class Refused(Exception):
    """A refused request; `code` and `fix` are part of the client's error message."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.code = code
        self.fix = fix


def wrong_token() -> Refused:
    """Return the refusal of a token that is not this cluster's."""
    fix = "take the token from the file that `raydebug ps` names (`--name` for another cluster)"
    return Refused(WRONG_TOKEN, "the token is not this cluster's", fix)


def missing_token() -> Refused:
    """Return the refusal of a client that sends no token."""
    by_hand = 'add "token": "..." from the file that `raydebug ps` names'
    fix = f"start `raydebug adapter`, which knows the token, or {by_hand}"
    return Refused(MISSING_TOKEN, "no token was sent", fix)


def process_gone() -> Refused:
    """Return the refusal of a request to a process that has ended."""
    return Refused("pause.gone", "the process has ended", LOOK)


def malformed(why: str) -> Refused:
    """Return the refusal of a request that violates the protocol."""
    return Refused("request.malformed", f"the request is malformed: {why}", "send it as the protocol has it")


def capabilities() -> Message:
    """Return the answer to `initialize`."""
    filters = [{"filter": "uncaught", "label": "Uncaught Exceptions", "default": True}]
    return {**dict.fromkeys(SUPPORTED, True), "exceptionBreakpointFilters": filters}


def read(message: Message) -> tuple[str, Message]:
    """Return a request's command and arguments.

    Raises:
        WireError: the request has no valid number, so no response can name it.
        Refused: an argument has the wrong type, or the arguments are nested too deep for pydevd's parser.
    """
    if not isinstance(message.get("seq", 0), int):
        raise wire.WireError("a request's seq is not a number")
    command, arguments = message.get("command"), message.get("arguments")
    if not isinstance(command, str):
        raise malformed("'command' is not a string")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise malformed("'arguments' is not an object")
    if _is_deep(arguments):
        raise malformed(f"its arguments are nested deeper than {MAX_DEPTH}")
    if command in FORWARDED:
        arguments = _checked(arguments)
        _check_breakpoints(command, arguments)
    return command, arguments


def _checked(given: Any) -> Message:
    """Return an object of a request without null fields, after a check of the types of known fields.

    pydevd's reader thread, and with it the session, ends on a path or a line of another type (debugpy 1.8.22,
    pydevd_process_net_command_json.py, on_setbreakpoints_request).
    """
    if not isinstance(given, dict):
        raise malformed("an object is expected")
    checked: Message = {}
    for name, value in given.items():
        if value is None or name in LEFT_OUT:
            continue
        if name in NUMBERS and not _is_number(value):
            raise malformed(f"'{name}' is not a number")
        # Neither NUL nor a lone surrogate can be part of a file name.
        is_text = isinstance(value, str) and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
        if name in TEXTS and not is_text:
            raise malformed(f"'{name}' is not a string")
        if name in LISTS:
            if not isinstance(value, list) or not all(LISTS[name](item) for item in value):
                raise malformed(f"'{name}' is not a list of the expected items")
            value = [_checked(item) if isinstance(item, dict) else item for item in value]
        checked[name] = _checked(value) if name in ("source", "format") else value
    return checked


def _check_breakpoints(command: str, arguments: Message) -> None:
    needed = {"setBreakpoints": "line", "setFunctionBreakpoints": "name"}.get(command)
    if command == "setBreakpoints" and not arguments.get("source", {}).get("path"):
        raise malformed("it names no file")
    if needed and not all(needed in point for point in arguments.get("breakpoints", ())):
        raise malformed(f"a breakpoint has no {needed}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**53


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
    """Return the reference in a `source` request: in `source`, or in the older field beside it."""
    source = arguments.get("source")
    inside = source.get("sourceReference") if isinstance(source, dict) else None
    return inside or arguments.get("sourceReference")
