"""Write a snapshot: the frames, locals and exceptions of a crash, or of a paused thread, as one document.

It runs in the crashed thread while the job waits. Innermost frames are read first, so a limit of time or size cuts only
the outer ones. No code of the user's classes is called (saved_values.py): the text of an exception comes from Python's
own classes, or from its arguments.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import gzip
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

import raydebug
from raydebug.protocol.secrets import Scrubber, is_secret, without_secret_arguments
from raydebug.protocol.snapshot import (
    CAUSE,
    CONTEXT,
    FORMAT,
    MAX_BYTES,
    MEMBER,
    RAISED,
    VERSION,
    SavedException,
    SavedFrame,
    SnapshotDocument,
    SnapshotSummary,
)
from raydebug.worker import dial_in, frame_locals, records, training_step
from raydebug.worker.frames import lines_of
from raydebug.worker.saved_values import MAX_CHARS, Values, attributes_of, type_name

LIMIT_S = 0.25
MAX_VALUE_BYTES = MAX_BYTES * 3 // 4  # the rest is for sources and texts
DEEP_FRAMES, DEEP, SHALLOW = 3, 3, 1  # levels of locals to open: in the inner frames of an exception, in the others
MAX_INNER, MAX_OUTER, MAX_EXCEPTIONS = 50, 10, 16  # frames at each end of one traceback
MAX_LOCALS = 100
LINES_BEFORE, LINES_AFTER, MAX_LINE = 8, 6, 300
MAX_TEXT, MAX_REMOTE = 8_000, 64 * 1024
CO_VARARGS, CO_VARKEYWORDS = 4, 8  # as in the module inspect, whose import takes 10 ms
VERSIONS_OF = ("ray", "torch", "vllm", "verl")

_Place = tuple[FrameType, int]
_CAUSE, _CONTEXT, _TRACE, _ARGS, _SUPPRESSED = (
    BaseException.__dict__[f"__{name}__" if name != "args" else name]
    for name in ("cause", "context", "traceback", "args", "suppress_context")
)
# Classes of Python whose `__str__` runs no code of the user's if these fields are plain values.
_TEXT_OF: dict[int, tuple[str, ...]] = {
    id(BaseException): (),
    id(OSError): ("errno", "strerror", "filename", "filename2"),
    id(UnicodeDecodeError): ("encoding", "object", "reason"),
    id(UnicodeEncodeError): ("encoding", "object", "reason"),
}


# Exceptions


def frames_of(error: BaseException) -> list[_Place]:
    """Return the frames of an exception, innermost first; the middle of a very deep traceback is left out."""
    found = _all_frames_of(error)
    return found if len(found) <= MAX_INNER + MAX_OUTER else found[:MAX_INNER] + found[-MAX_OUTER:]


def _all_frames_of(error: BaseException) -> list[_Place]:
    found: list[_Place] = []
    trace: TracebackType | None = _TRACE.__get__(error)
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.endswith(".pyx"):  # Cython's have neither locals nor source
            found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    found.reverse()
    return found


def text_of(error: BaseException) -> str:
    """Return the text of an exception: Python's own if that runs no code of the user's, else its plain arguments."""
    arguments = _ARGS.__get__(error)
    if issubclass(type(error), BaseExceptionGroup):
        arguments = arguments[:1]
    if len(arguments) != 1 and all(map(_is_plain, arguments)):
        for base in type.__dict__["__mro__"].__get__(type(error)):
            own = type.__dict__["__dict__"].__get__(base)
            fields = _TEXT_OF.get(id(base))
            if fields is not None and all(_is_plain(own[name].__get__(error)) for name in fields):
                return str(own["__str__"](error))
            if "__str__" in own:
                break
    return ", ".join(
        argument[:MAX_TEXT]
        if type(argument) is str
        else repr(argument)
        if _is_plain(argument)
        else type_name(type(argument))
        for argument in arguments[:8]
    )


def _is_plain(value: object) -> bool:
    """Return whether a value is of a built-in type and has a short text."""
    if type(value) is str or type(value) is bytes:
        return len(value) <= MAX_TEXT
    return value is None or type(value) is float or (type(value) is int and value.bit_length() < MAX_TEXT)


def _chain(error: BaseException) -> list[tuple[BaseException, str, int]]:
    """Return an exception with its causes, contexts and members, each with its relation and its parent's index."""
    found = [(error, RAISED, -1)]
    for index, (one, _, _) in enumerate(found):  # the loop appends to it
        cause, context = _CAUSE.__get__(one), _CONTEXT.__get__(one)
        behind = [(cause, CAUSE)] if cause is not None else []
        if context is not None and cause is None and not _SUPPRESSED.__get__(one):
            behind.append((context, CONTEXT))
        if issubclass(type(one), BaseExceptionGroup):
            members = BaseExceptionGroup.__dict__["exceptions"].__get__(one)
            behind += [(member, MEMBER) for member in members]
        for other, relation in behind:
            if len(found) < MAX_EXCEPTIONS and not any(other is known for known, _, _ in found):
                found.append((other, relation, index))
    return found


def is_cuda_error(error: BaseException) -> bool:
    """Return whether an exception or one of its chain is a CUDA error; after one, a call of CUDA may never return."""
    return any(
        type_name(type(one)).endswith("AcceleratorError") or "CUDA error" in text_of(one) for one, _, _ in _chain(error)
    )


# The document


def summarize(error: BaseException | None, frames: list[_Place], kind: str) -> SnapshotSummary:
    """Return the summary of a snapshot, of the kind "crash" or "pause"; the frames are innermost first.

    Its message may contain secrets until `document_of` has hidden them.
    """
    name = "" if error is None else type_name(type(error))
    functions = "|".join(frame.f_code.co_qualname for frame, _ in frames)
    code, line = (frames[0][0].f_code, frames[0][1]) if frames else (None, 0)
    rank, process = records.rank(), records.describe_process()
    letters = [letter for letter in name.rpartition(".")[2] if letter.isascii() and letter.isalnum()]
    place = f"rank{rank}-{os.getpid()}" if rank is not None else str(os.getpid())
    return {
        "id": f"{''.join(letters[:60]) or kind}-{place}-{os.urandom(2).hex()}",
        "job": process["job"],
        "kind": kind,
        "exception": name,
        "message": "" if error is None else text_of(error)[:2000],
        "file": code.co_filename if code is not None else "",
        "line": line or 0,
        "function": code.co_qualname[:250] if code is not None else "",
        "rank": rank,
        "pid": os.getpid(),
        "actor": records.describe_work()["actor"],
        "task": records.task_name(),
        "at": time.time(),
        "same": f"{zlib.crc32(f'{name}|{functions}'.encode('utf-8', 'replace')):08x}",
    }


def _scrubber(hidden: list[str]) -> Scrubber:
    values = [value for name, value in os.environ.items() if is_secret(name) and len(value) >= 8]
    with contextlib.suppress(dial_in.NoGateway):
        values.append(dial_in.read_token())
    return Scrubber([*values, *hidden])


def write(error: BaseException | None, frames: list[_Place], summary: SnapshotSummary, thread: str) -> bytes:
    """Return the file of a snapshot: the document of `document_of`, compressed.

    Python's garbage collector is off meanwhile: it would take longer than the rest, and could call a user's `__del__`.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        return compress(document_of(error, frames, summary, thread))
    finally:
        if is_on:
            gc.enable()


def document_of(
    error: BaseException | None, frames: list[_Place], summary: SnapshotSummary, thread: str
) -> SnapshotDocument:
    """Return the snapshot of an exception, or of a paused thread, within LIMIT_S and MAX_BYTES.

    The raised exception is read first, then the chain: the limits cut causes before anything else. The frames are
    innermost first, the summary is that of `summarize`.
    """
    chain = [] if error is None else _chain(error)
    reads = error is None or not is_cuda_error(error)
    values = Values(time.monotonic() + LIMIT_S, MAX_VALUE_BYTES, read_tensors=reads)
    saved: list[SavedFrame] = []
    known: dict[tuple[int, int], int] = {}

    def save(places: list[_Place]) -> list[int]:
        for number, (frame, line) in enumerate(places):
            if (id(frame), line) not in known:
                known[id(frame), line] = len(saved)
                saved.append(_frame((frame, line), values, DEEP if number < DEEP_FRAMES else SHALLOW))
        return [known[id(frame), line] for frame, line in places]

    indices = [save(frames), *(save(frames_of(one)) for one, _, _ in chain[1:])]
    document: SnapshotDocument = {
        "format": FORMAT,
        "version": VERSION,
        "summary": summary,
        "process": {**records.describe_process(), **records.describe_work()},
        "thread": thread,
        "step": training_step.step_of(frames[0][0]) if frames else None,
        "argv": [*getattr(sys, "orig_argv", [])],
        "versions": _versions(),
        "exceptions": [_exception(*one, its_frames) for one, its_frames in zip(chain, indices, strict=False)],
        "frames": saved,
        "values": values.saved,
    }
    history = sys.modules.get("raydebug.worker.gpu_history")
    if history is not None and history.last and any("OutOfMemory" in type_name(type(one)) for one, _, _ in chain):
        document["gpu_memory"] = history.last
    values.hide_covered()
    _hide_secrets(document, _scrubber(values.hidden))
    return document


def compress(document: SnapshotDocument) -> bytes:
    """Return the file of a snapshot; a value that JSON does not have is saved as the name of its type."""
    how: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False, "default": lambda value: type(value).__name__}
    text = json.dumps(document, **how)
    if len(text) > MAX_BYTES:  # the estimate was wrong: write the frames without their values
        for frame in document["frames"]:
            frame["locals"], frame["cut"] = {}, "size"
        text = json.dumps({**document, "values": []}, **how)
    return gzip.compress(text.encode("ascii"), 1)


def _exception(error: BaseException, relation: str, parent: int, frames: list[int]) -> SavedException:
    saved: SavedException = {"type": type_name(type(error)), "text": text_of(error), "relation": relation}
    saved["frames"] = frames
    if (left_out := len(_all_frames_of(error)) - len(frames)) > 0:
        saved["left_out"] = left_out
    if parent >= 0:
        saved["parent"] = parent
    for name, value in attributes_of(error):
        if name == "traceback_str" and type(value) is str:  # Ray 2.41 to 2.60: RayTaskError
            saved["remote"] = value[-MAX_REMOTE:]
        elif name == "__notes__" and type(value) is list:
            saved["text"] += "".join(f"\n{note[:MAX_TEXT]}" for note in value[:8] if type(note) is str)
    return saved


def _frame(place: _Place, values: Values, depth: int) -> SavedFrame:
    frame, line = place
    code = frame.f_code
    saved: SavedFrame = {"file": code.co_filename, "line": line or 0, "function": code.co_qualname[:250], "locals": {}}
    cut = values.spent()
    if cut:
        saved["cut"] = cut
        return saved
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    named = list(_locals(frame))
    with contextlib.suppress(Exception):
        saved["locals"] = values.add(named[:MAX_LOCALS], depth)
    saved["arguments"] = [name for name in code.co_varnames[:count] if name in saved["locals"]]
    if len(named) > MAX_LOCALS:
        saved["cut"] = "items"
    _add_source(saved)
    values.left_bytes -= sum(map(len, saved.get("source", ())))
    return saved


def _locals(frame: FrameType) -> Iterator[tuple[str, object]]:
    is_function = frame.f_code.co_flags & frame_locals.CO_OPTIMIZED
    if not is_function and frame.f_code.co_name != "<module>":
        return  # a class body, whose namespace may be an object of a user's class
    variables: Any = frame_locals.locals_of(frame) if is_function else frame.f_globals
    if not is_function and type(variables) is not dict:
        return
    for name, value in list(variables.items()):
        if type(name) is str and (is_function or not name.startswith("__")):
            yield name, value


def _add_source(saved: SavedFrame) -> None:
    with contextlib.suppress(Exception):
        lines = lines_of(saved["file"])
        first = max(1, saved["line"] - LINES_BEFORE)
        found = [text.rstrip("\n")[:MAX_LINE] for text in lines[first - 1 : saved["line"] + LINES_AFTER]]
        if found:
            saved["source_from"], saved["source"] = first, found


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0], "raydebug": raydebug.__version__}
    for name in VERSIONS_OF:
        module = sys.modules.get(name)
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str):
            found[name] = str.__str__(version)
    return found


def _hide_secrets(document: SnapshotDocument, scrubber: Scrubber) -> None:
    scrub = functools.cache(scrubber.scrub)  # frames of a recursion have equal sources
    for value in document["values"]:
        if "text" in value and len(value["text"]) > 4:
            value["text"] = scrub(value["text"])[:MAX_CHARS]
    for frame in document["frames"]:
        if "source" in frame:
            frame["source"] = scrub("\n".join(frame["source"]), source=True).split("\n")
    for error in document["exceptions"]:
        error["text"] = scrub(error["text"])[:MAX_TEXT]
        if "remote" in error:
            error["remote"] = scrub(error["remote"])
    document["argv"] = [scrub(word) for word in without_secret_arguments(document["argv"])]
    process = document["process"]
    process["argv"] = " ".join(document["argv"])[:300]
    process["title"] = scrub(process.get("title") or "")
    document["summary"]["message"] = scrub(document["summary"]["message"])
