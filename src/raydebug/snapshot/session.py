"""A snapshot as a debug session for editors: it answers the Debug Adapter Protocol from the file alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping

from raydebug.console.frames import Frame, read_local
from raydebug.protocol import wire
from raydebug.protocol.snapshot import SnapshotDocument
from raydebug.protocol.wire import Message
from raydebug.render import visible
from raydebug.snapshot.console import dap_frame, exception_lines, raised_frames, source_lines
from raydebug.snapshot.values import NotThere, Values

CAPABILITIES = {"supportsConfigurationDoneRequest": True, "supportsExceptionInfoRequest": True,
                "supportsEvaluateForHovers": True, "supportTerminateDebuggee": False}  # fmt: skip
VALUE_CHARS = 2_000
NOT_RUNNING = "a snapshot does not run: it has no process"


class SnapshotSession:
    """Answers the requests of one editor. Each exception that has frames is a thread; thread 1 is the raised one."""

    def __init__(self, document: SnapshotDocument) -> None:
        self._document, self._values = document, Values(document["values"])
        self._answers: dict[str, Callable[[Message], Message]] = {
            "threads": self._threads,
            "stackTrace": self._stack,
            "scopes": self._scopes,
            "variables": self._variables,
            "evaluate": self._evaluate,
            "exceptionInfo": self._exception,
            "source": self._source,
            "setBreakpoints": self._breakpoints,
            **dict.fromkeys(("setExceptionBreakpoints", "setFunctionBreakpoints", "disconnect"), lambda _: {}),
        }

    def answer(self, request: Message) -> list[Message]:
        """Return what to send after a request: its response, and events."""
        command, given = str(request.get("command")), request.get("arguments")
        if command in ("attach", "launch"):
            return [wire.event(0, "capabilities", {"capabilities": CAPABILITIES}), wire.response(0, request),
                    wire.event(0, "initialized")]  # fmt: skip
        if command == "configurationDone":
            crashed = self._document["exceptions"]
            text = visible(exception_lines(self._document)[0]) if crashed else ""
            why = {"reason": "exception" if crashed else "pause", "description": "Crashed" if crashed else "Paused"}
            stopped = {**why, "text": text, "threadId": 1, "allThreadsStopped": True}
            return [wire.response(0, request), wire.event(0, "stopped", stopped)]
        try:
            if command not in self._answers:
                raise NotThere(NOT_RUNNING)
            return [wire.response(0, request, self._answers[command](given if isinstance(given, dict) else {}))]
        except NotThere as error:
            return [wire.refusal(0, request, visible(str(error), keep=""))]
        except (LookupError, TypeError, ValueError):
            return [wire.refusal(0, request, f"the snapshot does not have what '{command}' asks for")]

    def _threads(self, given: Message) -> Message:
        lines = exception_lines(self._document) or [self._document.get("thread", "thread")]
        names = {at: line for at, line in enumerate(lines) if at == 0 or raised_frames(self._document, at)}
        threads = [{"id": at + 1, "name": visible(line.split("\n")[0], keep="")} for at, line in names.items()]
        return {"threads": threads}

    def _stack(self, given: Message) -> Message:
        indices = raised_frames(self._document, _number(given, "threadId") - 1)
        first = given.get("startFrame") or 0
        shown = indices[first : first + given["levels"] if given.get("levels") else None]
        return {"stackFrames": [self._frame(index) for index in shown], "totalFrames": len(indices)}

    def _frame(self, index: int) -> Message:
        saved = self._document["frames"][index]
        frame = dap_frame(index, saved)
        frame["name"] = visible(frame["name"], keep="")
        source = frame["source"]
        if Frame.parse(frame).folded:
            source["presentationHint"] = "deemphasize"
        if index not in self._here:
            source |= {"sourceReference": index + 1, "origin": "snapshot"}
        return frame

    @functools.cached_property
    def _here(self) -> set[int]:
        """The frames whose file is on this machine and still has the lines that were saved; a file is read once."""
        found = set[int]()
        frames = sorted(enumerate(self._document["frames"]), key=lambda one: one[1].get("file", ""))
        for file, same in itertools.groupby(frames, key=lambda one: one[1].get("file", "")):
            lines = [line.rstrip() for line in read_local(file) or ()]
            for index, frame in same:
                saved, first = [line.rstrip() for line in frame.get("source", [])], frame.get("source_from", 1) - 1
                if lines and lines[first : first + len(saved)] == saved:
                    found.add(index)
        return found

    def _scopes(self, given: Message) -> Message:
        frame = _number(given, "frameId")
        self._document["frames"][frame - 1]
        scope = {"name": "Locals", "presentationHint": "locals", "variablesReference": frame, "expensive": False}
        return {"scopes": [scope]}

    def _variables(self, given: Message) -> Message:
        reference, frames = _number(given, "variablesReference"), self._document["frames"]
        if reference <= len(frames):
            found: Iterable[tuple[str, int]] = frames[reference - 1].get("locals", {}).items()
        else:
            found = self._values.children(reference - len(frames) - 1)
        named = ((visible(name.removeprefix("."), keep=""), index) for name, index in found)
        return {"variables": [{"name": name, **self._value(index, "value")} for name, index in named]}

    def _value(self, index: int, text: str) -> Message:
        value = self._values[index]
        inside = index + len(self._document["frames"]) + 1 if self._values.has_children(index) else 0
        kind = visible(value.get("type", ""), keep="")
        return {text: self._values.text(index, VALUE_CHARS), "type": kind, "variablesReference": inside}

    def _evaluate(self, given: Message) -> Message:
        names: Mapping[str, int] = self._document["frames"][_number(given, "frameId", 1) - 1].get("locals", {})
        return self._value(self._values.evaluate(names, str(given.get("expression", ""))), "result")

    def _exception(self, given: Message) -> Message:
        exception = self._document["exceptions"][_number(given, "threadId") - 1]
        lines = "\n".join(exception_lines(self._document))
        details = {"message": visible(exception.get("text", "")), "stackTrace": visible(exception.get("remote", lines))}
        return {"exceptionId": visible(exception.get("type", "?"), keep=""), "description": visible(lines),
                "breakMode": "unhandled", "details": details}  # fmt: skip

    def _source(self, given: Message) -> Message:
        reference = given.get("sourceReference") or (given.get("source") or {}).get("sourceReference")
        lines = source_lines(self._document["frames"][_number({"of": reference}, "of") - 1])
        if not lines:
            raise NotThere("the source of this frame is not in the snapshot")
        return {"content": visible("\n".join(lines)), "mimeType": "text/x-python"}

    def _breakpoints(self, given: Message) -> Message:
        return {"breakpoints": [{"verified": False, "message": NOT_RUNNING} for _ in given.get("breakpoints") or ()]}


def _number(given: Message, name: str, default: int = 0) -> int:
    """Return a number of a request, from 1; LookupError where it is none."""
    found = given.get(name, default)
    if type(found) is not int or found < 1:
        raise LookupError(name)
    return found
