"""Which requests and responses are handed on without being parsed: none that a look inside would refuse or change."""

from __future__ import annotations

import json
import random

import pytest

from raydebug.dap import wire
from raydebug.gateway import requests, unparsed

EVALUATE = {"expression": 'x["a\\b"]\n', "frameId": 7, "context": "repl"}


def _vs_code(seq: int, command: str, arguments: wire.Message) -> bytes:
    """As @vscode/debugadapter-testsupport and VS Code write it: fields in this order, JSON.stringify."""
    message = {"command": command, "arguments": arguments, "type": "request", "seq": seq}
    body = json.dumps(message, separators=(",", ":")).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize(
    "frame", [wire.encode(wire.request(3, "evaluate", EVALUATE)), _vs_code(3, "evaluate", EVALUATE)]
)
def test_plain_question_passes_as_it_is(frame):
    """Our console's and VS Code's evaluate keep their arguments byte by byte."""
    message = unparsed.question(frame)
    assert message is not None
    assert (message["seq"], message["command"]) == (3, "evaluate")
    assert message["arguments"].parsed() == EVALUATE
    (passed,) = wire.Decoder().feed(wire.raw_request(90, message["command"], message["arguments"]))
    assert passed == wire.request(90, "evaluate", EVALUATE)


@pytest.mark.parametrize(
    "arguments",
    [
        {"expression": "x", "frameId": "7"},
        {"expression": 7},
        {"expression": "x\0y"},
        {"expression": "\ud800"},
        {"expression": "x", "format": {"hex": True}},
        {"expression": "x", "unknown": 1},
        {"expression": None},
        {"frameId": 2**53},
        {"frameId": 1.5},
        {"expression": "é"},
    ],
)
def test_whatever_needs_a_look_is_left_alone(arguments):
    """Arguments of a wrong kind, nested, unknown, or with escapes that pydevd may not bear, are parsed as ever."""
    assert unparsed.question(wire.encode(wire.request(3, "evaluate", arguments))) is None


@pytest.mark.parametrize(
    "data",
    [
        wire.encode(wire.request(1, "next", {"threadId": 1})),
        wire.encode(wire.request(1, "setVariable", {"variablesReference": 1, "name": "x", "value": "1"})),
        wire.encode(wire.request(1, "evaluate", EVALUATE))[:-1],
        wire.encode(wire.request(1, "evaluate", EVALUATE)) * 2,
        wire.encode(wire.request(1, "evaluate", EVALUATE)) + b" ",
        wire.encode(wire.request(1, "evaluate", {"expression": "x" * unparsed.MAX_QUESTION_BYTES})),
        wire.encode(wire.request(1, "evaluate", EVALUATE)).replace(b"Length: 1", b"Length: 2"),
        wire.encode(wire.event(1, "stopped", {})),
        b"",
    ],
)
def test_only_one_whole_short_question_is_taken(data):
    """Other requests, half a frame, two frames, a wrong length and long ones go the usual way."""
    assert unparsed.question(data) is None


def test_what_passes_would_have_passed_a_look():
    """Of 20,000 requests with something wrong somewhere, none passes that is no JSON or that requests.read refuses."""
    chance = random.Random(5)
    values = [1, -3, 2**60, True, None, "x", 'a\\"b', "\0", {"a": 1}, [1], 0.5, "\ud800", "~" * 50]
    names = [*sorted(requests.NUMBERS), *sorted(requests.TEXTS), "format", "other"]
    commands = [*unparsed.SHORT, *unparsed.NAMING_FILES]
    passed = 0
    for _ in range(20_000):
        arguments = {chance.choice(names): chance.choice(values) for _ in range(chance.randrange(3))}
        form = chance.choice([lambda *of: wire.encode(wire.request(*of)), _vs_code])
        frame = bytearray(form(chance.randrange(1, 99), chance.choice(commands), arguments))
        if chance.random() < 0.5:
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        message = unparsed.question(bytes(frame))
        if message is None:
            continue
        passed += 1
        (parsed,) = wire.Decoder().feed(bytes(frame))
        command, checked = requests.read(parsed)
        assert (command, checked) == (message["command"], message["arguments"].parsed())
        assert parsed["seq"] == message["seq"]
    assert passed > 500


def _pydevd(command: str, body: wire.Message, **others: object) -> bytes:
    fields = {"type": "response", "request_seq": 12, "success": True, "command": command, "body": body, "seq": 40}
    text = json.dumps({**fields, "pydevd_cmd_id": 502, **others}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(text), text)


@pytest.mark.parametrize("command", [*unparsed.SHORT, *unparsed.NAMING_FILES])
def test_answer_passes_as_it_is(command):
    """A response of pydevd keeps its body and gets the numbers of the client's conversation."""
    body = {"result": '"seq": 3}', "presentationHint": {"attributes": []}}
    answer = unparsed.framed_answer(_pydevd(command, body))
    assert answer is not None
    assert answer["request_seq"] == 12
    (passed,) = wire.Decoder().feed(wire.raw_response(5, {"seq": 3, "command": command}, answer["body"]))
    assert passed == wire.response(5, {"seq": 3, "command": command}, body)


@pytest.mark.parametrize(
    "data",
    [
        _pydevd("evaluate", {}, success=False),
        _pydevd("continue", {}),
        _pydevd("evaluate", {"result": "x"})[:-1],
        _pydevd("evaluate", {"result": "x"}) * 2,
        _pydevd("evaluate", {}, message="later"),
        wire.encode(wire.event(1, "stopped", {})),
    ],
)
def test_other_answers_are_parsed(data):
    """Failed ones, those to other requests, halves and pairs go the usual way."""
    assert unparsed.framed_answer(data) is None


def test_long_answer_that_names_files_is_parsed():
    """Who asked for a long stack is not known: its client may know the files by other names."""
    assert unparsed.answer(_pydevd("stackTrace", {"stackFrames": []}).partition(b"\r\n\r\n")[2]) is None
    assert unparsed.answer(_pydevd("variables", {"variables": []}).partition(b"\r\n\r\n")[2]) is not None
