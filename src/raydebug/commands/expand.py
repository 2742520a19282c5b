"""Expand the words of a script with the values of its variables. Runs nothing."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from raydebug.commands.arithmetic import calculate
from raydebug.commands.tokens import (
    NESTED_AT_MOST,
    Arithmetic,
    Operator,
    Part,
    Text,
    Unreadable,
    Variable,
    Word,
    read_document,
    read_parts,
    read_quoted,
    read_tokens,
)
from raydebug.commands.values import HELD, Values, readable

_CASES: dict[str, Callable[[str], str]] = {
    ",,": str.lower,
    "^^": str.upper,
    ",": lambda text: text[:1].lower() + text[1:],
    "^": lambda text: text[:1].upper() + text[1:],
}
# $(cat <<EOF ... EOF), whose output is its text.
_CAT = re.compile(
    r"\s*cat\s*<<(?P<tabs>-?)\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)[ \t]*\n(?P<body>.*?)\n?[ \t]*(?P=end)\s*",
    re.DOTALL,
)
_BRACES = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")
CUT_CHARS_MAX = 4096  # ${NAME%%PATTERN} tries the pattern at each length: 60,000 characters would take half a minute


class Expander:
    """Expands words into a program's arguments and collects what could not be read."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._taints: set[str] = set()
        self._unset_is_empty = False
        self._depth = 0

    def operand(self, word: Word) -> str | None:
        """Return the text of an operand of a condition; None where only a run can tell it. What is not set is empty."""
        with self._as_operand():
            text = self.one(word)
            return text if not self._taints else None

    def operand_of_number(self, expression: str) -> int | None:
        """Return the result of a plain calculation in a condition; None where only a run can tell it."""
        with self._as_operand():
            result = self._arithmetic(expression)
            return int(result) if not self._taints and result.lstrip("-").isdigit() else None

    @contextlib.contextmanager
    def _as_operand(self) -> Iterator[None]:
        before, self._taints, self._unset_is_empty = self._taints, set(), True
        try:
            yield
        finally:
            self._taints, self._unset_is_empty = before, False

    def count(self, word: Word) -> int:
        """Return how many words a word of a command becomes: none of an unquoted variable that is empty, or not set."""
        with self._as_operand():
            return len(self.fields(word))

    def is_set(self, name: str) -> bool:
        """Return whether a variable has a value."""
        return self._values.get(name) is not None

    def document(self, body: str) -> str:
        """Return the text of a here-document whose delimiter is not quoted."""
        return "".join(" ".join(self._part(part)) for part in read_document(body))

    def taken(self) -> set[str]:
        """Return what could not be read since the last call."""
        taken, self._taints = self._taints, set()
        return taken

    def argv(self, words: list[Word]) -> tuple[list[str], set[str]]:
        """Return a command's words, and what of them could not be read."""
        self.taken()
        argv = [readable(one) for word in words for one in self.fields(word)]
        return argv, self.taken()

    def one(self, word: Word) -> str:
        """Return a word that is not split: the value of an assignment."""
        parts = self._with_home(word.parts)
        return "".join((" ".join if _is_list(part) else self._joined)(self._part(part)) for part in parts)

    def fields(self, word: Word) -> list[str]:
        """Return the words that a word becomes: none, one, or several where it is split."""
        done: list[str] = []
        current: str | None = None
        parts = tuple(inner for part in self._with_home(word.parts) for inner in self._chosen(part))
        if _BRACES.search("".join(it.text if isinstance(it, Text) and not it.quoted else "\0" for it in parts)):
            self._taints.add("a word with {...} is several words for bash, which are not followed")
        for part in parts:
            pieces = self._part(part)
            if isinstance(part, Text) or (part.quoted and not _is_list(part)):
                current = (current or "") + self._joined(pieces)  # of "$*" there are several
                continue
            for number, piece in enumerate(pieces):
                split = [piece] if part.quoted else self._split(piece)
                if current is not None and (number or (len(split) > 1 and not split[0])):
                    done.append(current)
                    current = None
                words = [one for one in split if one or part.quoted]
                if words:
                    done += [(current or "") + words[0], *words[1:]]
                    current = done.pop() if part.quoted or split[-1] else None
        return [*done, current] if current is not None else done

    def _chosen(self, part: Part, depth: int = 0) -> tuple[Part, ...]:
        """Return the parts of an unquoted variable's default, if that is taken: it may have quotes of its own."""
        if not isinstance(part, Variable) or part.quoted or part.operator not in (":-", "-", ":+", "+"):
            return (part,)
        value = self._looked_up(part)
        is_set = value is not None and (not part.operator.startswith(":") or value not in ([""], []))
        if is_set != part.operator.endswith("+") or not any(sign in part.argument for sign in "'\"") or depth > 1:
            return (part,)
        default = self._with_home(read_parts(part.argument))
        return tuple(inner for one in default for inner in self._chosen(one, depth + 1))

    def _split(self, text: str) -> list[str]:
        """Return the words of a text that is not quoted; an empty one at an end is a blank there."""
        separators = self._values.get("IFS")
        if not isinstance(separators, str):
            separators = " \t\n"
        elif set(separators) - set(" \t\n") & set(text):
            self._taints.add("IFS is not what it is at first: how a value is split is not followed")
        return re.split(f"[{re.escape(separators)}]+", text) if separators else [text]

    def _joined(self, pieces: list[str]) -> str:
        """Return the elements of a list as one text."""
        separators = self._values.get("IFS")
        return (separators[:1] if isinstance(separators, str) else " ").join(pieces)

    def _unread(self, source: str, why: str) -> str:
        """Return a placeholder for what could not be read, and note why; it is never split."""
        self._taints.add(why)
        return source.translate(HELD)

    def _part(self, part: Part) -> list[str]:
        if isinstance(part, Text):
            return [part.text]
        if self._depth == NESTED_AT_MOST:
            return [self._unread("$(...)", f"more than {NESTED_AT_MOST} expansions are in one another")]
        self._depth += 1
        try:
            if isinstance(part, Variable):
                return self._variable(part)
            if isinstance(part, Arithmetic):
                return [self._arithmetic(part.expression)]
            return [self._output(part.command)]
        finally:
            self._depth -= 1

    def _variable(self, part: Variable) -> list[str]:
        if part.operator == "length":
            found = self._looked_up(part)
            of_list = _is_list(part) or part.index == "*"
            return [str(len(found if of_list else "".join(found[:1])) if found else 0)]
        if part.operator == "indirect" and part.index in ("@", "*"):  # the keys of an array
            return [self._unread(part.source, f"{part.source} was not read")]
        if part.operator == "indirect":
            named = self._looked_up(part)
            if not named or not re.fullmatch(r"\w+", named[0]):
                return [self._unread(part.source, f"{part.source} was not read")]
            return self._variable(Variable(named[0], part.quoted, source=part.source))
        if part.operator == "?unknown":
            return [self._unread(part.source, f"{part.source} was not read")]
        value = self._looked_up(part)
        if part.operator in (":-", "-", ":=", "=", ":?", "?"):
            lacking = value is None or (part.operator.startswith(":") and value in ([""], []))
            if lacking and part.operator in (":?", "?"):
                return [self._unread(part.source, f"{part.name} is not set, and the script needs it")]
            if lacking:
                value = [self._default(part)]
                if part.operator in (":=", "="):
                    self._values.assign(part.name, value[0], set())
        elif part.operator in (":+", "+"):
            filled = value is not None and (part.operator == "+" or value not in ([""], []))
            return [self._default(part)] if filled else [""]
        elif part.operator in ("#", "##", "%", "%%") and value is not None:
            if any(len(one) > CUT_CHARS_MAX for one in value):
                return [self._unread(part.source, f"{part.source}: the value is too long to be cut")]
            value = [_cut(one, part.operator, self._argument(part.argument)) for one in value]
        elif part.operator in _CASES and value is not None:
            value = [_CASES[part.operator](one) for one in value]
        elif part.operator == ":" and value is not None:
            value = self._slice(part, value)
        if value is None:
            if part.name in "@*":
                return []
            if self._unset_is_empty:
                return [""]
            if part.name.isdigit():
                return [self._unread(part.source, f"${part.name} is not given")]
            self._taints.add(f"{part.name} is not set here")
            return [""]
        return value

    def _slice(self, part: Variable, value: list[str]) -> list[str]:
        """Return `${NAME:OFFSET:LENGTH}` of a text, or of a list, whose first argument is number 1."""
        numbers = [self._arithmetic(number) for number in part.argument.split(":")]
        if not all(number.isdigit() for number in numbers) or len(numbers) > 2:
            return [self._unread(part.source, f"{part.source} was not read")]
        first, length = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else None
        first -= part.name in ("@", "*") and first > 0
        end = None if length is None else first + length
        return value[first:end] if _is_list(part) else [value[0][first:end]]

    def _looked_up(self, part: Variable) -> list[str] | None:
        values, name = self._values, part.name
        if name in ("@", "*"):
            return list(values.arguments)
        if name == "#":
            return [str(len(values.arguments))]
        if name in ("0", "BASH_SOURCE"):
            is_inner = name != "0" and part.index in ("", "0")
            return [(is_inner and values.source) or values.script]
        if name.isdigit():
            at = int(name) - 1
            return [values.arguments[at]] if at < len(values.arguments) else None
        if name == "PWD":
            return [str(values.folder)]
        if name in "?$!-":
            return [self._unread(part.source, f"${name} is known to a run only")]
        if name in values.keyed:
            return [self._unread(part.source, f"{name} is an array with keys, which are not followed")]
        found = values.get(name)
        if found is None:
            return None
        self._taints |= values.taints.get(name, set())
        elements = [found] if isinstance(found, str) else found
        if part.index in ("@", "*"):
            return list(elements)
        number = self.number(part.index) if part.index else 0
        if number is None:
            return [self._unread(part.source, f"{part.source} was not read")]
        return [elements[number]] if -len(elements) <= number < len(elements) else None

    def _default(self, part: Variable) -> str:
        """Return the default of a variable, whose quotes are those of the word around it."""
        if not part.quoted:
            return self._argument(part.argument)
        return "".join(self._joined(self._part(inner)) for inner in read_quoted(part.argument))

    def _argument(self, text: str) -> str:
        return "".join(" ".join(self._part(part)) for part in self._with_home(read_parts(text)))

    def _with_home(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Return the parts with a leading `~/` made the home folder."""
        first, home = parts[0] if parts else None, self._values.get("HOME")
        if isinstance(first, Text) and not first.quoted and first.text.startswith("~/") and isinstance(home, str):
            return (Text(home + first.text[1:], quoted=False), *parts[1:])
        return parts

    def number(self, expression: str) -> int | None:
        """Return the result of a plain calculation; None where there is none, with a note."""
        result = self._arithmetic(expression)
        return int(result) if result.lstrip("-").isdigit() else None

    def _arithmetic(self, expression: str) -> str:
        """Return the result of a plain calculation; the expression itself where it is none."""
        text = self._argument(expression)
        names = re.sub(r"(?<!\w)[A-Za-z_]\w*", lambda name: self._number_of(name[0]), text)
        result = calculate(names)
        if result is None:
            return self._unread(f"$(({expression}))", f"$(({expression})) was not calculated")
        return str(result)

    def _number_of(self, name: str) -> str:
        found = self._looked_up(Variable(name, quoted=True, source=name))
        return f"({found[0]})" if found and found[0] else "0"

    def _output(self, command: str) -> str:
        """Return what a command about paths would print; the command itself where it is another."""
        if found := _CAT.fullmatch(command):
            body = (
                "\n".join(line.lstrip("\t") for line in found["body"].splitlines()) if found["tabs"] else found["body"]
            )
            return body if found["quote"] else self.document(body)
        try:
            printed = self._paths(command)
        except Unreadable:
            printed = None
        if printed is None:
            shown = " ".join(command.split())
            shown = f"{shown[:60]}..." if len(shown) > 60 else shown
            return self._unread(f"$({command})", f"$({shown}) is a program's output")
        return printed

    def _paths(self, command: str) -> str | None:
        """Work out `cd`, `pwd`, `dirname`, `basename`, `realpath`: how scripts find their own folder."""
        folder, printed = self._values.folder, None
        words: list[Word] = []
        for token in [*read_tokens(command), Operator(";", 0)]:
            if isinstance(token, Word):
                words.append(token)
                continue
            if not isinstance(token, Operator) or token.text not in (";", "&&", "\n"):
                return None
            if not words:
                continue
            program, *rest = [one for word in words for one in self.fields(word)] or [""]
            rest = [one for one in rest if one not in ("-P", "-L", "-f", "-e", "-m", "--")]
            words = []
            if program == "cd" and len(rest) == 1:
                folder = folder / rest[0]
            elif program == "pwd":
                printed = os.path.normpath(folder)
            elif program == "dirname" and len(rest) == 1:
                printed = os.path.dirname(rest[0]) or "."  # noqa: PTH120 - `dirname` as the shell's, not a Path's parent
            elif program == "basename" and rest:
                printed = Path(rest[0]).name.removesuffix(rest[1] if len(rest) > 1 else "")
            elif program in ("realpath", "readlink") and len(rest) == 1:
                printed = os.path.normpath(folder / rest[0])
            else:
                return None
        return printed


def _is_list(part: Part) -> bool:
    return isinstance(part, Variable) and (part.name == "@" or part.index == "@")


def _cut(text: str, sign: str, pattern: str) -> str:
    """Cut off what a pattern matches at the front (`#`) or the end (`%`), the shortest or, doubled, the longest."""
    lengths = range(len(text) + 1) if len(sign) == 1 else range(len(text), -1, -1)
    for length in lengths:
        piece = text[:length] if sign[0] == "#" else text[len(text) - length :]
        if fnmatch.fnmatchcase(piece, pattern):
            return text[length:] if sign[0] == "#" else text[: len(text) - length]
    return text
