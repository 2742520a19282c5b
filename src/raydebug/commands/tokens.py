"""Split the text of a shell script into words and operators, with quotes and expansions taken apart. Runs nothing.

What is understood is what training scripts are written in: quotes, continuations, comments, variables with defaults,
arrays, substitutions, redirections and here-documents. Source: POSIX.1-2024 XCU 2, bash 5.2 manual.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

_META = " \t\n;&|()<>"  # what ends a word
_SKIPPED, _SKIPPED_IN_ARRAY = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)+"), re.compile(r"(?:[ \t\n]|\\\n|#[^\n]*)+")
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|()]")
_REDIRECTION = re.compile(r"<<<|<<-|<<|&>>|&>|>>|>&|>\||<&|<>|[<>]")
# A run of ordinary characters, or the one that is there.
_ORDINARY = re.compile(r"[^\s\\'\"$`;&|()<>]+|.", re.DOTALL)
_ORDINARY_IN_QUOTES = re.compile(r"[^\"\\$`]+|.", re.DOTALL)
_ANSI_QUOTED = re.compile(r"\$'((?:\\.|[^'\\])*)'", re.DOTALL)
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*\\?(?P<quote>['\"]?)(?P<end>[A-Za-z_][\w.-]*)(?P=quote)")
_QUOTE, _BLANKS, _LINE = re.compile(r"\$?'"), re.compile(r"[ \t]*"), re.compile(r"[^\n]*")
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|[@*#?$!0-9-])")
_END_OF_CONDITION = re.compile(r"\s\]\]")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)", re.DOTALL)
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
    plain: ClassVar[None] = None  # no keyword


@dataclass(frozen=True)
class Condition:
    """`[[ ... ]]` or `(( ... ))`, as it is written."""

    text: str
    is_arithmetic: bool
    line: int
    plain: ClassVar[None] = None


@dataclass
class Document:
    """A here-document; its body is known when the lines after the command are read."""

    line: int
    quoted: bool
    body: str = ""
    plain: ClassVar[None] = None


@dataclass(frozen=True)
class Operator:
    """`;`, `&&`, `|`, a newline and their like."""

    text: str
    line: int


Token: TypeAlias = Word | Array | Operator | Condition | Document


def read_tokens(text: str) -> list[Token]:
    """Return the words and operators of a script; redirections and comments are left out.

    Raises:
        Unreadable: a quote or bracket is not closed.
    """
    return _Reader(text).tokens()


def read_parts(text: str) -> tuple[Part, ...]:
    """Return the parts of a single word, such as the default in `${NAME:-default}`."""
    return _Reader(text).word(until="")


def read_quoted(text: str) -> tuple[Part, ...]:
    """Return the parts of the default in `"${NAME:-default}"`: single quotes stand for themselves there."""
    return _Reader(text).literal(("$", "`", '"', "\\", "\n", "}"), drops_quotes=True)


def read_document(text: str) -> tuple[Part, ...]:
    """Return the parts of a here-document, in which quotes are ordinary characters."""
    return _Reader(text).literal(("$", "`", "\\", "\n"), drops_quotes=False)


class _Reader:
    """Reads one text from front to back."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._waiting: list[tuple[str, bool, Document]] = []  # whose bodies begin at the next line
        self._quotes = 0  # open ones
        self._newlines = [found.start() for found in re.finditer("\n", text)]

    def tokens(self) -> list[Token]:
        tokens: list[Token] = []
        while self._match(_SKIPPED) or self._at < len(self._text):
            line = self._line()
            if self._take("\n"):
                tokens.append(Operator("\n", line))
                self._skip_documents()
            elif self._take("(("):
                tokens.append(Condition(self._bracketed("((", "))"), True, line))
            elif redirection := self._match(_REDIRECTION):
                self._redirect(redirection, tokens)
            elif operator := self._match(_OPERATOR):
                tokens.append(Operator(operator, line))
            elif self._at < len(self._text):
                tokens.append(self._word_or_array(line))
        return tokens

    def _match(self, pattern: re.Pattern[str]) -> str:
        """Move behind what a pattern matches here, and return it; empty if it does not match."""
        found = pattern.match(self._text, self._at)
        self._at += len(found[0]) if found else 0
        return found[0] if found else ""

    def _take(self, text: str) -> bool:
        """Move behind a text, if it is here."""
        is_here = self._text.startswith(text, self._at)
        self._at += len(text) if is_here else 0
        return is_here

    def _line(self) -> int:
        return bisect_left(self._newlines, self._at) + 1

    def _word_or_array(self, line: int) -> Token:
        if array := _ARRAY.match(self._text, self._at):
            self._at = array.end()
            return Array(array[1], bool(array[2]), tuple(self._array_words()), line)
        word = Word(self.word(until=_META), line)
        return Condition(self._condition(), False, line) if word.plain == "[[" else word

    def _array_words(self) -> Iterator[Word]:
        while self._match(_SKIPPED_IN_ARRAY) or not self._take(")"):
            if self._at >= len(self._text):
                raise Unreadable(self._line(), "an array is not closed")
            if self._text[self._at] != ")":
                yield Word(self.word(until=" \t\n)"), self._line())

    def word(self, *, until: str) -> tuple[Part, ...]:
        """Read a word up to one of these characters; the end of the text ends one too."""
        parts: list[Part] = []
        while self._at < len(self._text) and self._text[self._at] not in until:
            here = self._text[self._at]
            if here == "\\":
                self._escaped(parts)
            elif quoted := self._match(_ANSI_QUOTED):
                text = re.sub(r"\\(.)", lambda found: _ANSI.get(found[1], found[1]), quoted[2:-1], flags=re.DOTALL)
                parts.append(Text(text, quoted=True))
            elif quote := self._match(_QUOTE):
                parts.append(Text(self._find("'", quote), quoted=True))
            elif self._take('"'):
                parts += self._in_quotes()
            elif here in "$`":
                parts.append(self._expansion(quoted=False))
            else:
                parts.append(Text(self._match(_ORDINARY), quoted=False))
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
            if self._take('"'):
                self._quotes -= 1
                return parts or [Text("", quoted=True)]  # "" is a word too
            if here == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                self._escaped(parts)
            elif here in "$`":
                parts.append(self._expansion(quoted=True))
            else:
                parts.append(Text(self._match(_ORDINARY_IN_QUOTES), quoted=True))
        raise Unreadable(begun, "a quote is not closed")

    def literal(self, escaped: tuple[str, ...], *, drops_quotes: bool) -> tuple[Part, ...]:
        """Read a text without words, in which a backslash is one only before some characters."""
        parts: list[Part] = []
        while self._at < len(self._text):
            here = self._text[self._at]
            if drops_quotes and self._take('"'):
                continue
            if here == "\\" and self._text[self._at + 1 : self._at + 2] in escaped:
                self._escaped(parts)
            elif here in "$`":
                parts.append(self._expansion(quoted=True))
            else:
                parts.append(Text(self._match(_ORDINARY_IN_QUOTES), quoted=True))
        return tuple(parts)

    def _expansion(self, *, quoted: bool) -> Part:
        if self._take("`"):
            return Output(self._find("`", "`"), quoted)
        if self._take("$(("):
            return Arithmetic(self._bracketed("$((", "))"), quoted)
        if self._take("$("):
            return Output(self._bracketed("$(", ")"), quoted)
        if self._take("${"):
            return _braced(self._bracketed("${", "}"), quoted)
        if source := self._match(_VARIABLE):
            return Variable(source[1:], quoted, source=source)
        self._at += 1
        return Text("$", quoted)

    def _bracketed(self, opening: str, closing: str) -> str:
        """Return the text up to the matching closing bracket; in comments and here-documents none is looked for.

        In brackets of its own `<<` is no here-document: it is a shift in `$((1 << N))`.
        """
        begun, line, depth = self._at, self._line(), 0
        is_command, ends = opening in ("$(", "("), list[str]()
        while self._at < len(self._text):
            here = self._text[self._at]
            if depth == 0 and self._take(closing):
                return self._text[begun : self._at - len(closing)]
            if self._take('"'):
                self._in_quotes()
                continue
            if opening[-1] != "{" and self._match(_ANSI_QUOTED):
                continue
            if is_command and here == "#" and (self._at == begun or self._text[self._at - 1] in " \t\n"):
                self._match(_LINE)
                continue
            if is_command and here == "<" and depth == 0 and (found := _DOCUMENT.match(self._text, self._at)):
                ends.append(found["end"])
                self._at = found.end()
                continue
            if here == "\n" and ends:
                self._skip_to(ends.pop(0))
                continue
            if here == "\\":
                self._at += 1
            elif here == "'" and opening[-1] != "{":
                self._at = self._text.find("'", self._at + 1)
                if self._at < 0:
                    break
            depth += (here == opening[-1]) - (here == closing[-1])
            self._at += 1
        raise Unreadable(line, f"{opening} is not closed")

    def _skip_to(self, end: str) -> None:
        """Move behind the body of a here-document in brackets, whose last line may have the closing one."""
        found = re.compile(rf"\n[ \t]*{re.escape(end)}(?=[ \t]*(?:\)|\n|$))").search(self._text, self._at)
        self._at = found.end() if found else len(self._text)

    def _redirect(self, redirection: str, tokens: list[Token]) -> None:
        """Leave out a redirection: its number, its sign and its file."""
        last, before = tokens[-1] if tokens else None, self._text[self._at - len(redirection) - 1]
        if isinstance(last, Word) and (last.plain or "").isdigit() and before.isdigit():
            tokens.pop()
        self._match(_BLANKS)
        if self._take("("):  # <(COMMAND)
            self._bracketed("(", ")")
            return
        word = self.word(until=_META)
        if redirection in ("<<", "<<-"):
            end = "".join(part.text for part in word if isinstance(part, Text))
            document = Document(self._line(), any(part.quoted for part in word))
            tokens.append(document)
            self._waiting.append((end, redirection == "<<-", document))

    def _skip_documents(self) -> None:
        for end, tabs, document in self._waiting:
            lines = []
            while self._at < len(self._text):
                line = self._match(_LINE)
                self._at += 1
                line = line.lstrip("\t") if tabs else line
                if line == end:
                    break
                lines.append(line)
            document.body = "\n".join(lines)
        self._waiting.clear()

    def _condition(self) -> str:
        """Return the text up to the word `]]`; that of [[:digit:]] is none."""
        end = _END_OF_CONDITION.search(self._text, self._at)
        if end is None:
            raise Unreadable(self._line(), "[[ is not closed")
        text = self._text[self._at : end.start()]
        self._at = end.end()
        return text

    def _find(self, end: str, opening: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise Unreadable(self._line(), f"{opening} is not closed")
        text = self._text[self._at : found]
        self._at = found + len(end)
        return text


def _braced(inner: str, quoted: bool) -> Variable:
    source = f"${{{inner}}}"
    found = _BRACED.fullmatch(inner)
    if inner[:1] in ("#", "!") and (of := _BRACED.fullmatch(inner[1:])) and not of["rest"]:  # ${#NAME}, ${!NAME}
        operator = "length" if inner[0] == "#" else "indirect"
        return Variable(of["name"], quoted, of["index"] or "", operator, "", source)
    if found is None or (inner[:1] in "#!" and len(inner) > 1):
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
