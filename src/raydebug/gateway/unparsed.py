"""Questions and answers that are handed on without a look inside, as they come most and somebody waits for each.

A request passes so only in a form that requests.py would let pass as well: flat arguments, each of its kind. An answer
of pydevd has its own fields before its body, but its `seq` last, and the number of its command behind that (debugpy
1.8.22, pydevd_schema.py, `to_dict` of each response; pydevd_base_schema.py; pydevd_net_command.py:77).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from raydebug.dap.wire import Message, RawJson
from raydebug.gateway import requests

SHORT = ("evaluate", "variables", "scopes", "threads")
NAMING_FILES = ("stackTrace",)  # for clients that know all files by the cluster's names
MAX_QUESTION_BYTES = 4 * 1024
TAIL_BYTES = 80

_HEADER = rb"Content-Length: (?P<length>\d{1,7})\r\n\r\n"
_NUMBER = rb"(?:0|-?[1-9]\d{0,14})"
_TEXT = rb'"[ !#-\[\]-~]*(?:\\["\\/bfnrt][ !#-\[\]-~]*)*"'


def _one_of(names: Iterable[str]) -> bytes:
    return "|".join(sorted(names)).encode("ascii")


_MEMBER = rb'"(?:(?:%b)": ?%b|(?:%b)": ?%b)' % (_one_of(requests.NUMBERS), _NUMBER, _one_of(requests.TEXTS), _TEXT)
_SEQ = rb'"seq": ?(?P<seq>[1-9]\d{0,8})'
_REQUEST = rb'"type": ?"request"'
_COMMAND = rb'"command": ?"(?P<command>%b)"' % _one_of((*SHORT, *NAMING_FILES))
_ARGUMENTS = rb'"arguments": ?(?P<arguments>\{(?:%b(?:, ?%b)*)?\})' % (_MEMBER, _MEMBER)
_QUESTIONS = tuple(
    re.compile(rb"%b(?P<body>\{%b\})" % (_HEADER, rb", ?".join(fields)))
    for fields in (
        (_SEQ, _REQUEST, _COMMAND, _ARGUMENTS),  # as our own sessions write it
        (_COMMAND, _ARGUMENTS, _REQUEST, _SEQ),  # as VS Code does
    )
)


def _answer_to(commands: Iterable[str]) -> re.Pattern[bytes]:
    head = rb'\{"type": "response", "request_seq": (\d+), "success": true, "command": "(%b)", "body": (?=\{)'
    return re.compile(head % _one_of(commands))


_SHORT_ANSWER, _ANSWER = _answer_to(SHORT), _answer_to((*SHORT, *NAMING_FILES))
_FRAMED = re.compile(_HEADER)
_TAIL = re.compile(rb', "seq": \d+(?:, "pydevd_cmd_id": \d+)?\}$')


def question(data: bytes) -> Message | None:
    """Return a whole request with its arguments unparsed; None for whatever else has arrived."""
    if len(data) > MAX_QUESTION_BYTES:
        return None
    for form in _QUESTIONS:
        found = form.fullmatch(data)
        if found is not None and int(found["length"]) == len(found["body"]):
            seq, command = int(found["seq"]), found["command"].decode("ascii")
            return {"seq": seq, "type": "request", "command": command, "arguments": RawJson(found["arguments"])}
    return None


def framed_answer(data: bytes) -> Message | None:
    """Return a whole response, header and all, with its body unparsed; None for whatever else has arrived."""
    header = _FRAMED.match(data)
    if header is None or int(header["length"]) != len(data) - header.end():
        return None
    return _read(_ANSWER.match(data, header.end()), data)


def answer(message: bytes) -> Message | None:
    """Return a response that names no file, with its body unparsed; None for a message that has to be looked into."""
    return _read(_SHORT_ANSWER.match(message), message)


def _read(head: re.Match[bytes] | None, data: bytes) -> Message | None:
    tail = _TAIL.search(data, max(0, len(data) - TAIL_BYTES))
    if head is None or tail is None:
        return None
    body = RawJson(memoryview(data)[head.end() : tail.start()])
    return {"type": "response", "request_seq": int(head[1]), "success": True, "command": head[2].decode(), "body": body}
