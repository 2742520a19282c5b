"""The words of a shell command that assign: `NAME=VALUE`, `NAME+=VALUE`, `NAME[INDEX]=VALUE`, `NAME=(...)`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from raydebug.commands.blocks import name_of
from raydebug.commands.tokens import Array, Condition, Document, Text, Word

Parts: TypeAlias = Word | Array | Condition | Document
_ELEMENT, _CLOSED = re.compile(r"([A-Za-z_]\w*)\["), re.compile(r"\](\+?)=")


@dataclass(frozen=True)
class Assignment:
    """`NAME=VALUE`, `NAME+=VALUE` or `NAME[INDEX]=VALUE`."""

    name: str
    appends: bool
    value: Word
    line: int
    index: Word | None = None


def assignment_of(word: Parts) -> Array | Assignment | None:
    """Return what a word assigns; None for another word."""
    if isinstance(word, Array):
        return word
    first = word.parts[0] if isinstance(word, Word) and word.parts else None
    if not isinstance(word, Word) or not isinstance(first, Text) or first.quoted:
        return None
    if element := _ELEMENT.match(first.text):
        return _element_assignment(element[1], word)
    target, sign, rest = first.text.partition("=")
    name = target.removesuffix("+")
    if not sign or not name.isidentifier():
        return None
    value = Word((Text(rest, quoted=False), *word.parts[1:]) if rest else word.parts[1:], word.line)
    return Assignment(name, target != name, value, word.line)


def _element_assignment(name: str, word: Word) -> Assignment | None:
    """Return what `NAME[INDEX]=VALUE` assigns; None for another word."""
    for at, part in enumerate(word.parts):
        closed = _CLOSED.search(part.text) if isinstance(part, Text) and not part.quoted else None
        if closed is not None and isinstance(part, Text):
            index = [*word.parts[:at], Text(part.text[: closed.start()], quoted=False)]
            first = index[0]
            assert isinstance(first, Text)
            index[0] = Text(first.text[len(name) + 1 :], quoted=False)
            value = (Text(part.text[closed.end() :], quoted=False), *word.parts[at + 1 :])
            return Assignment(name, bool(closed[1]), Word(value, word.line), word.line, Word(tuple(index), word.line))
    return None


def has_keys(array: Array) -> bool:
    """Return whether elements of an array are given with their keys: `A=([x]=1)`."""
    firsts = [word.parts[0] for word in array.words if word.parts]
    return any(isinstance(it, Text) and not it.quoted and it.text.startswith("[") for it in firsts) and any(
        isinstance(it, Text) and not it.quoted and "]=" in it.text for word in array.words for it in word.parts
    )


def declared_name(word: Parts) -> str:
    """Return the variable that a word of `local` declares; empty for an option, and for a name that is expanded."""
    assigned = assignment_of(word)
    name = assigned.name if assigned else name_of(word) if isinstance(word, Word) else ""
    return name if name.isidentifier() else ""
