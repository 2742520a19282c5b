"""What a client may ask: checked before anything of it reaches a process. Pure."""

from __future__ import annotations

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
    return command, arguments


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


def texts(value: Any) -> list[str]:
    """Return the texts of a list, whatever else a client put there."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
