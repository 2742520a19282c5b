"""Follow the statements of a shell script without running it: what is read, what is not, and why.

Assignments, exports, defaults, arrays and arguments are followed; conditions are not: both branches are read, and a
value that depends on one gets a note. What only a run can tell (the output of a command, a file that is sourced) stays
as it is written, and gets a note too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from raydebug.commands.expand import Expander, Values
from raydebug.commands.tokens import Array, Operator, Text, Token, Unreadable, Word, read_tokens

EVALS_AT_MOST = 8
_OPEN, _CLOSE = ("if", "for", "while", "until", "select", "case", "{", "function"), ("fi", "done", "esac", "}")
_PASSED = ("then", "elif", "else", "do", "!", "time", "exec", "command", "nohup", "builtin")
_STRUCTURE = frozenset((*_OPEN, *_CLOSE, *_PASSED))
_BLANK_WORDS = ((Text(" ", quoted=True),), (Text("\t", quoted=True),))  # of a backslash that continues no line
_DECLARING = ("export", "declare", "local", "readonly", "typeset")

Run: TypeAlias = Callable[[Values, list[str], frozenset[str]], None]


class Statements:
    """Reads the tokens of a script, command by command.

    Args:
        values: its variables, which change.
        run: called with each program's command, the values known there, and notes about words that could not be read.
    """

    def __init__(self, values: Values, run: Run, evals: int = 0) -> None:
        self._evals = evals
        self._values = values
        self._expand = Expander(values)
        self._run = run
        self._open: list[str] = []
        self._after_condition = False

    def read(self, tokens: list[Token]) -> None:
        """Read all statements."""
        at = 0
        command: list[Word | Array] = []
        while at < len(tokens):
            token = tokens[at]
            at += 1
            if not isinstance(token, Operator):
                if not command and isinstance(token, Word) and token.plain in _STRUCTURE:
                    at = self._structure(token.plain, tokens, at)
                else:
                    command.append(token)
                continue
            if token.text == "(" and len(command) == 1 and _is(tokens[at : at + 1], ")"):
                command, at = [], at + 1  # NAME () { ... }
                self._open.append("function")
                at += _is(tokens[at : at + 1], "\n")
                at += _is(tokens[at : at + 1], "{")
                continue
            self._finish(command)
            command = []
            self._after_condition = token.text in ("&&", "||")
            if token.text in (";;", ";&", ";;&") and "case" in self._open:
                at = _past_pattern(tokens, at)
        self._finish(command)

    def _structure(self, word: str, tokens: list[Token], at: int) -> int:
        """Open or close a block of the script; return the index of the next statement."""
        if word in _CLOSE:
            del self._open[-1:]
        elif word in _OPEN:
            self._open.append(word)
        if word == "function":
            return _past(tokens, at, "{")
        if word == "case":
            return _past_pattern(tokens, _past(tokens, at, "in"))
        return self._loop(tokens, at) if word in ("for", "select") else at

    def _loop(self, tokens: list[Token], at: int) -> int:
        """Give a loop's variable its first value."""
        end = next((n for n in range(at, len(tokens)) if isinstance(tokens[n], Operator)), len(tokens))
        head = [token for token in tokens[at:end] if isinstance(token, Word)]
        if head and (name := head[0].plain):
            values = [field for word in head[2:] for field in self._expand.fields(word)]
            note = f"{name} is a loop's: its first value is shown"
            self._values.assign(name, values[0] if values else "", {note})
        return end

    @property
    def _is_conditional(self) -> bool:
        return self._after_condition or any(block != "{" for block in self._open)

    def _finish(self, command: list[Word | Array]) -> None:
        """Follow one simple command. Assignments before a program hold for it alone."""
        before = self._values.overlay
        assignments = [*itertools.takewhile(bool, map(_assignment, command))]
        for assignment in assignments:
            self._assign(assignment, alone=len(assignments) == len(command))
        words = [word for word in command[len(assignments) :] if isinstance(word, Word)]
        if not words:
            return
        if words[0].plain in _DECLARING:
            self._declare(command[len(assignments) + 1 :], exported=words[0].plain == "export")
            return
        argv, notes = self._expand.argv(words)
        if not argv:
            return
        self._built_in(argv, words, notes)
        self._values.overlay = before

    def _assign(self, assigned: Array | _Assignment | None, *, alone: bool) -> None:
        """Evaluate an assignment that stands alone, or one before a program."""
        assert assigned is not None
        name, condition = assigned.name, f"line {assigned.line}" if self._is_conditional else ""
        if isinstance(assigned, Array):
            fields = [field for word in assigned.words for field in self._expand.fields(word)]
            taken = self._expand.taken()
            self._values.assign_array(name, fields, taken, appends=assigned.appends, conditional=condition)
            return
        value = self._expand.one(assigned.value)
        taken = self._expand.taken()
        if not alone:
            self._values.overlay = {**self._values.overlay, name: value}
        elif assigned.appends:
            self._values.append(name, value, taken, conditional=condition)
        else:
            self._values.assign(name, value, taken, conditional=condition)

    def _declare(self, words: list[Word | Array], *, exported: bool) -> None:
        for word in words:
            assigned = _assignment(word)
            if assigned is not None:
                self._assign(assigned, alone=True)
            name = assigned.name if assigned else word.plain
            if exported and name:
                self._values.exported.add(name)

    def _built_in(self, argv: list[str], words: list[Word], notes: set[str]) -> None:
        """Apply a shell builtin to the script's values; report any other command."""
        program, *rest = argv
        line = words[0].line
        if program == "cd":
            self._values.change_folder(rest[-1] if rest else "~", notes, line)
        elif program == "unset":
            for name in rest:
                self._values.forget(name)
        elif program == "shift" and self._is_conditional:
            self._values.doubts.add(f"line {line}: `shift` depends on a condition that is not known here")
        elif program == "shift":
            del self._values.arguments[: int(rest[0]) if rest and rest[0].isdigit() else 1]
        elif program == "set":
            self._set(rest)
        elif program == "eval":
            if self._evals >= EVALS_AT_MOST:
                raise Unreadable(line, f"more than {EVALS_AT_MOST} evals in one another")
            Statements(self._values, self._run, self._evals + 1).read(read_tokens(" ".join(rest)))
        elif program in ("source", "."):
            self._values.doubts.add(f"line {line}: what {' '.join(argv)[:80]} sets is not known here")
        elif program in ("conda", "mamba", "micromamba", "module") and rest[:1] and rest[0] in ("activate", "load"):
            self._values.doubts.add(f"line {line}: the environment of {' '.join(argv)[:80]} was not looked into")
        elif program == "read":
            for name in rest:
                self._values.assign(name, f"${name}", {f"line {line}: {name} is read from input"})
        else:
            if words[-1].parts in _BLANK_WORDS:
                notes = {*notes, f"line {words[-1].line}: a blank follows the backslash, so the command ends there"}
            self._run(self._values, argv, frozenset(notes | self._values.doubts))

    def _set(self, rest: list[str]) -> None:
        if "--" in rest:
            self._values.arguments[:] = rest[rest.index("--") + 1 :]
        elif any(option.startswith("-") and "a" in option for option in rest):
            self._values.exports_all = True


@dataclass(frozen=True)
class _Assignment:
    """`NAME=VALUE` or `NAME+=VALUE`."""

    name: str
    appends: bool
    value: Word
    line: int


def _assignment(word: Word | Array) -> Array | _Assignment | None:
    """Return what a word assigns; None for another word."""
    first = word.parts[0] if isinstance(word, Word) and word.parts else None
    if isinstance(word, Array) or not isinstance(first, Text) or first.quoted:
        return word if isinstance(word, Array) else None
    target, sign, rest = first.text.partition("=")
    name = target.removesuffix("+")
    if not sign or not name.isidentifier():
        return None
    value = Word((Text(rest, quoted=False), *word.parts[1:]) if rest else word.parts[1:], word.line)
    return _Assignment(name, target != name, value, word.line)


def _is(tokens: list[Token], text: str) -> bool:
    """Return whether the first of these tokens is an operator, or a plain word."""
    return any((token.text if isinstance(token, Operator) else token.plain) == text for token in tokens[:1])


def _past(tokens: list[Token], at: int, text: str) -> int:
    """Return the index behind the next operator or plain word of this text."""
    return next((n + 1 for n in range(at, len(tokens)) if _is(tokens[n : n + 1], text)), len(tokens))


def _past_pattern(tokens: list[Token], at: int) -> int:
    """Return where the commands behind a pattern of `case` begin; at `esac` there is none."""
    for n in range(at, len(tokens)):
        if _is(tokens[n : n + 1], "esac"):
            return n
        if _is(tokens[n : n + 1], ")"):
            return n + 1
    return len(tokens)
