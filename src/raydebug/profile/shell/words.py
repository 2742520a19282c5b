"""What the text of a shell script consists of: words of parts, arrays, operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


class Unreadable(Exception):
    """Text that is no shell script, or not one that is understood.

    Args:
        line: where, counted from 1.
        why: what is wrong.
    """

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why


@dataclass(frozen=True)
class Text:
    """Characters that stand for themselves."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Variable:
    """`$NAME` or `${NAME...}`; what follows the name is kept as it is written."""

    name: str
    quoted: bool
    index: str = ""
    operator: str = ""
    argument: str = ""
    source: str = ""


@dataclass(frozen=True)
class Output:
    """`$(COMMAND)`."""

    command: str
    quoted: bool


@dataclass(frozen=True)
class Arithmetic:
    """`$((EXPRESSION))`."""

    expression: str
    quoted: bool


Part: TypeAlias = Text | Variable | Output | Arithmetic


@dataclass(frozen=True)
class Word:
    """One word: its parts, in order."""

    parts: tuple[Part, ...]
    line: int

    @property
    def plain(self) -> str | None:
        """The word, where nothing in it is quoted or expanded: a keyword can be one."""
        texts = [part.text for part in self.parts if isinstance(part, Text) and not part.quoted]
        return "".join(texts) if len(texts) == len(self.parts) else None


@dataclass(frozen=True)
class Array:
    """`NAME=(...)` or `NAME+=(...)`."""

    name: str
    appends: bool
    words: tuple[Word, ...]
    line: int


@dataclass(frozen=True)
class Operator:
    """`;`, `&&`, `|`, a newline and their like."""

    text: str
    line: int


Token: TypeAlias = Word | Array | Operator
