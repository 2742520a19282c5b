"""Decide a condition of a shell script whose operands are known: `[ ]`, `[[ ]]`, `test`, `(( ))`. Runs nothing.

A question about files, and one with an operand that only a run can tell, stays undecided: None.
Source: POSIX.1-2024 XCU test, bash 5.2 manual, "Bash Conditional Expressions".
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable

from raydebug.commands.expand import Expander
from raydebug.commands.tokens import Condition, Text, Word, read_parts

CHARS_MAX = 4096  # of a text that a pattern is held against
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip
_ORDER: dict[str, Callable[[str, str], bool]] = {"<": operator.lt, ">": operator.gt}
_BINARY = ("=", "==", "!=", "=~", *_ORDER, *_NUMBERS)
_COMPARED = re.compile(r"(<=|>=|==|!=|<|>)")
_SYMBOLS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def decide_condition(condition: Condition, expand: Expander) -> bool | None:
    """Return whether `[[ ... ]]` or `(( ... ))` holds; None where that is not known."""
    if condition.is_arithmetic:
        return _arithmetic(condition.text, expand)
    words = [Word(read_parts(text), condition.line) for text in _split(condition.text)]
    return _Decider(words, expand, double=True).decide()


def decide_test(words: list[Word], expand: Expander) -> bool | None:
    """Return whether the words of `[ ... ]` or `test ...`, without the first, hold; None where that is not known."""
    if words and words[-1].plain == "]":
        words = words[:-1]
    counts = [expand.count(word) for word in words]
    if max(counts, default=0) > 1:
        return None  # [ -n $TWO_WORDS ] is mostly an error to bash
    left = [word for word, count in zip(words, counts, strict=True) if count]
    if len(left) == 2 < len(words) and not re.fullmatch(r"!|-[a-zA-Z]", left[0].plain or ""):
        return False  # [ $EMPTY = x ] is an error to bash
    words = left
    return _Decider(words, expand, double=False).decide()


def _split(text: str) -> list[str]:
    """Return the words of `[[ ]]`: quotes and expansions stay as they are."""
    pieces = re.findall(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\$\{[^}]*\}|\$\([^)]*\)|\\.|[^\s"'\\])+""", text, re.DOTALL)
    return [word for piece in pieces for word in (_open(piece) if piece[0] in "(!" or piece[-1] == ")" else [piece])]


def _open(piece: str) -> list[str]:
    """Return the brackets around a word by themselves; those of a pattern or an expansion stay."""
    front, back = [], []
    while piece[:1] in ("(", "!") and piece not in ("!=",):
        front.append(piece[0])
        piece = piece[1:]
    while piece.endswith(")") and piece.count("(") < piece.count(")"):
        back.append(")")
        piece = piece[:-1]
    return [*front, *([piece] if piece else []), *back]


class _Decider:
    """Evaluates the words of one condition, from left to right."""

    def __init__(self, words: list[Word], expand: Expander, *, double: bool) -> None:
        self._words, self._expand, self._double, self._at = words, expand, double, 0

    def decide(self) -> bool | None:
        if not self._words:
            return False
        try:
            found = self._any()
        except (IndexError, ValueError):
            return None
        return found if self._at == len(self._words) else None

    def _sign(self, ahead: int = 0) -> str | None:
        at = self._at + ahead
        return self._words[at].plain if at < len(self._words) else None

    def _any(self) -> bool | None:
        found = self._all()
        while self._sign() in ("||", "-o"):
            self._at += 1
            other = self._all()
            found = True if found or other else None if found is None or other is None else False
        return found

    def _all(self) -> bool | None:
        found = self._one()
        while self._sign() in ("&&", "-a"):
            self._at += 1
            other = self._one()
            found = False if found is False or other is False else None if found is None or other is None else True
        return found

    def _one(self) -> bool | None:
        sign, left = self._sign(), len(self._words) - self._at
        if sign == "!" and left > 1:
            self._at += 1
            found = self._one()
            return None if found is None else not found
        if sign == "(" and left > 2:
            self._at += 1
            found = self._any()
            if self._sign() != ")":
                raise ValueError
            self._at += 1
            return found
        if left >= 3 and (by := self._sign(1)) in _BINARY:
            assert by is not None
            first, second = self._words[self._at], self._words[self._at + 2]
            self._at += 3
            return self._binary(by, first, second)
        if left >= 2 and sign is not None and re.fullmatch(r"-[a-zA-Z]", sign):
            self._at += 2
            return self._unary(sign, self._words[self._at - 1])
        self._at += 1
        text = self._text(self._words[self._at - 1])
        return None if text is None else text != ""

    def _text(self, word: Word) -> str | None:
        """Return the text of a word; None where only a run can tell it."""
        return self._expand.operand(word)

    def _unary(self, sign: str, word: Word) -> bool | None:
        text = self._text(word)
        if text is None:
            return None
        if sign in ("-z", "-n"):
            return (text == "") == (sign == "-z")
        if sign == "-v":
            return self._expand.is_set(text)
        return False if text == "" else None  # a file, a terminal

    def _binary(self, sign: str, first: Word, second: Word) -> bool | None:
        one, other = self._text(first), self._text(second)
        if one is None or other is None or len(one) > CHARS_MAX:
            return None
        if sign == "=~":
            return _matches(second, other, one)
        if sign in _NUMBERS:
            return _NUMBERS[sign](int(one or "0"), int(other or "0"))
        if sign in _ORDER:
            return _ORDER[sign](one, other)
        is_plain = not self._double or all(isinstance(part, Text) and part.quoted for part in second.parts)
        if not is_plain:
            return None if (same := matches(one, second, self._expand)) is None else same != (sign == "!=")
        same = one == other
        return same != (sign == "!=")


def matches(text: str, pattern: Word, expand: Expander) -> bool | None:
    """Return whether a text matches a pattern of the shell; None where only a run can tell it, or it is @(A|B)."""
    if expand.operand(pattern) is None:
        return None
    plain = _pattern(pattern, expand)
    return None if re.search(r"[@?*+!]\(", plain) else fnmatch.fnmatchcase(text, plain)


def _pattern(word: Word, expand: Expander) -> str:
    """Return a word as a pattern: what is quoted in it stands for itself."""
    texts = [(expand.operand(Word((part,), word.line)) or "", part.quoted) for part in word.parts]
    return "".join(re.sub(r"([*?\[])", r"[\1]", text) if quoted else text for text, quoted in texts)


def _matches(word: Word, pattern: str, text: str) -> bool | None:
    """Return whether the right side of `=~` is in a text; what is quoted stands for itself. In linear time."""
    import re2  # google-re2: 40 ms that scripts without `=~` do without

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(re.escape(pattern) if all(part.quoted for part in word.parts) else pattern, options)
    except re2.error:
        return None
    return compiled.search(text) is not None


def _arithmetic(text: str, expand: Expander) -> bool | None:
    """Return whether `(( ... ))` is not 0: one comparison, or a plain calculation."""
    one, sign, other = ([*_COMPARED.split(text, maxsplit=1), "", ""])[:3]
    first, second = expand.operand_of_number(one), expand.operand_of_number(other or "0")
    if first is None or second is None:
        return None
    return _SYMBOLS[sign](first, second) if sign else first != 0
