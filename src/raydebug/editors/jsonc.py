r"""JSON with comments and trailing commas, and the position of each value, so that the rest of a file stays as it is.

>>> text = '{\n  // mine\n  "a": [1, 2,],\n}'
>>> root = parse_jsonc(text)
>>> root.value
{'a': [1, 2]}
>>> items = root.members["a"].items
>>> text[items[1].start : items[1].end]
'2'
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

MAX_DEPTH = 100
_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*[\s\S]*?\*/)*")
_STRING = re.compile(r'"(?:[^"\\\r\n]|\\.)*"')
_WORD = re.compile(r"[-+.\w]+")


class JsoncError(ValueError):
    """Text that is not JSON, with the line (from 1) of the error."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")
        self.line = line


@dataclass
class Node:
    """A value and its position: text[start:end]."""

    value: Any
    start: int
    end: int
    members: dict[str, Node] = field(default_factory=dict)
    items: list[Node] = field(default_factory=list)


def parse_jsonc(text: str) -> Node:
    """Parse a document.

    Raises:
        JsoncError: it is not JSON.
    """
    parser = _Parser(text)
    node = parser.value(parser.skip(0), 0)
    rest = parser.skip(node.end)
    if rest != len(text):
        raise parser.error(rest, "text after the end of the document")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text

    def error(self, at: int, what: str) -> JsoncError:
        return JsoncError(self._text.count("\n", 0, at) + 1, what)

    def skip(self, at: int) -> int:
        found = _BLANK.match(self._text, at)
        assert found is not None
        if self._text.startswith("/*", found.end()):
            raise self.error(found.end(), "an unterminated comment")
        return found.end()

    def value(self, at: int, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error(at, f"nested deeper than {MAX_DEPTH}")
        first = self._text[at : at + 1]
        if first == "{":
            return self._object(at, depth)
        if first == "[":
            return self._array(at, depth)
        found = (_STRING if first == '"' else _WORD).match(self._text, at)
        if found is None:
            raise self.error(at, f"a value is expected, not {first!r}" if first else "unexpected end")
        try:
            return Node(json.loads(found[0]), at, found.end())
        except ValueError as error:
            raise self.error(at, f"{found[0][:40]} is not a value") from error

    def _object(self, at: int, depth: int) -> Node:
        node = Node({}, at, at)
        at = self.skip(at + 1)
        while not self._text.startswith("}", at):
            name = self.value(at, depth)
            if not isinstance(name.value, str):
                raise self.error(at, "a name in quotes is expected")
            at = self.skip(name.end)
            if not self._text.startswith(":", at):
                raise self.error(at, f'a colon is expected after "{name.value[:40]}"')
            member = self.value(self.skip(at + 1), depth + 1)
            node.members[name.value], node.value[name.value] = member, member.value
            at = self._comma(member.end, "}")
        node.end = at + 1
        return node

    def _array(self, at: int, depth: int) -> Node:
        node = Node([], at, at)
        at = self.skip(at + 1)
        while not self._text.startswith("]", at):
            item = self.value(at, depth + 1)
            node.items.append(item)
            node.value.append(item.value)
            at = self._comma(item.end, "]")
        node.end = at + 1
        return node

    def _comma(self, at: int, closing: str) -> int:
        at = self.skip(at)
        if self._text.startswith(",", at):
            return self.skip(at + 1)
        if not self._text.startswith(closing, at):
            raise self.error(at, f"a comma or {closing} is expected")
        return at
