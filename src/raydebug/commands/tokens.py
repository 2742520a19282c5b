"""Split the text of a shell script into words and operators, with quotes and expansions taken apart. Runs nothing.

What is understood is what training scripts are written in: quotes, continuations, comments, variables with defaults,
arrays, substitutions, redirections and here-documents. Source: POSIX.1-2024 XCU 2, bash 5.2 manual.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

_BLANK, _META = " \t", " \t\n;&|()<>"
_OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", ";", "&", "|", "(", ")")
_REDIRECTIONS = ("<<<", "<<-", "<<", "&>>", "&>", ">>", ">&", ">|", "<&", "<>", ">", "<")
_ORDINARY, _ORDINARY_IN_QUOTES = re.compile(r"[^\s\\'\"$`;&|()<>]+"), re.compile(r"[^\"\\$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_SPECIAL = "@*#?$!-0123456789"
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*|[@*#?$!0-9-]|\d+)(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)", re.DOTALL)
NESTED_AT_MOST = 32  # quotes in $(...) in quotes, and expansions in expansions: scripts have three or four
_BRACED_OPERATORS = (*(":-", ":=", ":+", ":?", "##", "%%", ",,", "^^"), *("-", "=", "+", "?", "#", "%", ",", "^", ":"))


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
    """Literal characters."""

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


def read_tokens(text: str) -> list[Token]:
    """Return the words and operators of a script; redirections and comments are left out.

    Raises:
        Unreadable: a quote or bracket is not closed.
    """
    return _Reader(text).tokens()


def read_parts(text: str) -> tuple[Part, ...]:
    """Return the parts of a single word, such as the default in `${NAME:-default}`."""
    return _Reader(text).word(until="", quoted=False)


class _Reader:
    """Reads one text from front to back."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._waiting: list[tuple[str, bool]] = []  # here-documents whose bodies begin at the next line
        self._quotes = 0  # open ones
        self._counted = (0, 1)  # a place in the text, and the line that it is on

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while self._at < len(self._text):
            line, rest = self._line(), self._text[self._at]
            if rest in _BLANK:
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif rest == "#":
                self._skip_to("\n")
            elif rest == "\n":
                self._at += 1
                found.append(Operator("\n", line))
                self._skip_documents()
            elif self._text.startswith("((", self._at):
                self._at += 2
                self._bracketed("((", "))")
            elif redirection := next((r for r in _REDIRECTIONS if self._text.startswith(r, self._at)), None):
                self._redirect(redirection, found)
            elif operator := next((o for o in _OPERATORS if self._text.startswith(o, self._at)), None):
                self._at += len(operator)
                found.append(Operator(operator, line))
            else:
                found.append(self._word_or_array(line))
        return found

    def _word_or_array(self, line: int) -> Token:
        array = _ARRAY.match(self._text, self._at)
        if array and self._text.startswith("(", array.end()):
            self._at = array.end() + 1
            return Array(array[1], bool(array[2]), self._array_words(), line)
        word = Word(self.word(until=_META, quoted=False), line)
        if word.plain == "[[":
            self._find("]]", "[[")
        return word

    def _array_words(self) -> tuple[Word, ...]:
        words: list[Word] = []
        while True:
            if self._at >= len(self._text):
                raise Unreadable(self._line(), "an array is not closed")
            here = self._text[self._at]
            if here == ")":
                self._at += 1
                return tuple(words)
            if here in " \t\n":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif here == "#":
                self._skip_to("\n")
            else:
                before = self._at
                words.append(Word(self.word(until=" \t\n)", quoted=False), self._line()))
                if self._at == before:
                    raise Unreadable(self._line(), f"{here!r} in an array")

    def word(self, *, until: str, quoted: bool) -> tuple[Part, ...]:
        """Read a word up to one of these characters; the end of the text ends one too."""
        parts: list[Part] = []
        while self._at < len(self._text) and self._text[self._at] not in until:
            here = self._text[self._at]
            if here == "\\":
                self._escaped(parts)
            elif here == "'":
                self._at += 1
                parts.append(Text(self._find("'", "'"), quoted=True))
            elif self._text.startswith("$'", self._at):
                self._at += 2
                parts.append(Text(self._find("'", "$'"), quoted=True))
            elif here == '"':
                self._at += 1
                parts += self._in_quotes()
            elif here in "$`":
                parts.append(self._expansion(quoted))
            else:
                parts.append(Text(self._run(_ORDINARY), quoted))
        return tuple(_joined(parts))

    def _escaped(self, parts: list[Part]) -> None:
        escaped = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if escaped and escaped != "\n":
            parts.append(Text(escaped, quoted=True))

    def _in_quotes(self) -> list[Part]:
        parts: list[Part] = []
        begun = self._line()
        if self._quotes == NESTED_AT_MOST:
            raise Unreadable(begun, f"more than {NESTED_AT_MOST} quotes in one another")
        self._quotes += 1
        while self._at < len(self._text):
            here = self._text[self._at]
            if here == '"':
                self._at += 1
                self._quotes -= 1
                return parts or [Text("", quoted=True)]  # "" is a word too
            if here == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                self._escaped(parts)
            elif here in "$`":
                parts.append(self._expansion(True))
            else:
                parts.append(Text(self._run(_ORDINARY_IN_QUOTES), quoted=True))
        raise Unreadable(begun, "a quote is not closed")

    def _expansion(self, quoted: bool) -> Part:
        text, at = self._text, self._at
        if text[at] == "`":
            self._at += 1
            return Output(self._find("`", "`"), quoted)
        if text.startswith("$((", at):
            self._at += 3
            return Arithmetic(self._bracketed("$((", "))"), quoted)
        if text.startswith("$(", at):
            self._at += 2
            return Output(self._bracketed("$(", ")"), quoted)
        if text.startswith("${", at):
            self._at += 2
            return _braced(self._bracketed("${", "}"), quoted)
        name = _NAME.match(text, at + 1)
        if name:
            self._at = name.end()
            return Variable(name[0], quoted, source=f"${name[0]}")
        if text[at + 1 : at + 2] and text[at + 1] in _SPECIAL:
            self._at += 2
            return Variable(text[at + 1], quoted, source=text[at : at + 2])
        self._at += 1
        return Text("$", quoted)

    def _bracketed(self, opening: str, closing: str) -> str:
        """Return the text up to the matching closing bracket."""
        begun, line, depth = self._at, self._line(), 0
        pairs = {"(": ")", "{": "}"}
        inner = opening[-1]
        while self._at < len(self._text):
            here = self._text[self._at]
            if depth == 0 and self._text.startswith(closing, self._at):
                found = self._text[begun : self._at]
                self._at += len(closing)
                return found
            if here == "\\":
                self._at += 1
            elif here == "'" and inner != "{":
                self._at = self._text.find("'", self._at + 1)
                if self._at < 0:
                    break
            elif here == '"':
                self._at += 1
                self._in_quotes()
                continue
            elif here == inner:
                depth += 1
            elif here == pairs[inner]:
                depth -= 1
            self._at += 1
        raise Unreadable(line, f"{opening} is not closed")

    def _redirect(self, redirection: str, found: list[Token]) -> None:
        """Leave out a redirection: its number, its sign and its file."""
        last = found[-1] if found else None
        if isinstance(last, Word) and (last.plain or "").isdigit() and self._text[self._at - 1].isdigit():
            found.pop()
        self._at += len(redirection)
        while self._text[self._at : self._at + 1] and self._text[self._at] in _BLANK:
            self._at += 1
        if self._text.startswith("(", self._at):  # <(COMMAND)
            self._at += 1
            self._bracketed("(", ")")
            return
        word = self.word(until=_META, quoted=False)
        if redirection in ("<<", "<<-"):
            end = "".join(part.text for part in word if isinstance(part, Text))
            self._waiting.append((end, redirection == "<<-"))

    def _skip_documents(self) -> None:
        for end, tabs in self._waiting:
            while self._at < len(self._text):
                begun = self._at
                self._skip_to("\n")
                line = self._text[begun : self._at]
                self._at += 1
                if (line.lstrip("\t") if tabs else line) == end:
                    break
        self._waiting.clear()

    def _run(self, ordinary: re.Pattern[str]) -> str:
        """Return the ordinary characters here, or the one that is here."""
        found = ordinary.match(self._text, self._at)
        run = found[0] if found else self._text[self._at]
        self._at += len(run)
        return run

    def _find(self, end: str, opening: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise Unreadable(self._line(), f"{opening} is not closed")
        text = self._text[self._at : found]
        self._at = found + len(end)
        return text

    def _skip_to(self, end: str) -> None:
        found = self._text.find(end, self._at)
        self._at = len(self._text) if found < 0 else found

    def _line(self) -> int:
        place, line = self._counted
        if self._at >= place:
            self._counted = (self._at, line + self._text.count("\n", place, self._at))
            return self._counted[1]
        return self._text.count("\n", 0, self._at) + 1


def _braced(inner: str, quoted: bool) -> Variable:
    source = f"${{{inner}}}"
    found = _BRACED.fullmatch(inner)
    if found is None or (inner[:1] in "#!" and len(inner) > 1):  # ${#NAME}, ${!NAME}
        return Variable("", quoted, operator="?unknown", source=source)
    rest = found["rest"]
    operator = next((o for o in _BRACED_OPERATORS if rest.startswith(o)), "?unknown" if rest else "")
    argument = rest if operator == "?unknown" else rest[len(operator) :]
    return Variable(found["name"], quoted, found["index"] or "", operator, argument, source)


def _joined(parts: list[Part]) -> list[Part]:
    """Return the parts with neighbouring texts of one kind made one."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text) and part.quoted == last.quoted:
            joined[-1] = Text(last.text + part.text, part.quoted)
        else:
            joined.append(part)
    return joined
