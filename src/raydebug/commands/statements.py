"""Follow the statements of a shell script without running it: what is read, what is not, and why.

Assignments, exports, defaults, arrays and arguments are followed; conditions are not: both branches are read, and a
value that depends on one gets a note. What only a run can tell (the output of a command, a file that is sourced) stays
as it is written, and gets a note too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from raydebug.commands.expand import Expander, Values
from raydebug.commands.tokens import Array, Operator, Text, Token, Unreadable, Word, read_tokens

EVALS_AT_MOST = 8
_OPEN, _CLOSE = ("if", "for", "while", "until", "select", "case", "{"), ("fi", "done", "esac", "}")
_PASSED = ("then", "elif", "else", "do", "!", "time", "exec", "command", "nohup", "builtin")
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
                if not command and isinstance(token, Word) and self._is_structure(token):
                    at = self._structure(str(token.plain), tokens, at)
                else:
                    command.append(token)
                continue
            if token.text == "(" and len(command) == 1 and at < len(tokens) and _is(tokens[at], ")"):
                command, at = [], at + 1  # NAME () { ... }
                self._open.append("function")
                at += at < len(tokens) and _is(tokens[at], "\n")
                at += at < len(tokens) and isinstance(tokens[at], Word) and tokens[at].plain == "{"  # type: ignore[union-attr]
                continue
            self._finish(command)
            command = []
            self._after_condition = token.text in ("&&", "||")
            if token.text in (";;", ";&", ";;&") and "case" in self._open:
                at = _past_pattern(tokens, at)
        self._finish(command)

    def _is_structure(self, word: Word) -> bool:
        return word.plain in (*_OPEN, *_CLOSE, *_PASSED, "function")

    def _structure(self, word: str, tokens: list[Token], at: int) -> int:
        """Open or close a block of the script; return the index of the next statement."""
        if word in _CLOSE:
            if self._open:
                self._open.pop()
        elif word == "function":
            self._open.append("function")
            while at < len(tokens) and not (isinstance(tokens[at], Word) and getattr(tokens[at], "plain", "") == "{"):
                at += 1
            return at + 1
        elif word in _OPEN:
            self._open.append(word)
            if word == "case":
                while at < len(tokens) and not (
                    isinstance(tokens[at], Word) and getattr(tokens[at], "plain", "") == "in"
                ):
                    at += 1
                return _past_pattern(tokens, at + 1)
            if word in ("for", "select"):
                return self._loop(tokens, at)
        return at

    def _loop(self, tokens: list[Token], at: int) -> int:
        """Give a loop's variable its first value."""
        head: list[Word] = []
        while at < len(tokens) and not isinstance(tokens[at], Operator):
            token = tokens[at]
            at += 1
            if isinstance(token, Word):
                head.append(token)
        name = head[0].plain if head else None
        if name:
            values = [one for word in head[2:] for one in self._expand.fields(word)]
            note = f"{name} is a loop's: its first value is shown"
            self._values.assign(name, values[0] if values else "", {note})
        return at

    @property
    def _is_conditional(self) -> bool:
        return self._after_condition or any(block != "{" for block in self._open)

    def _finish(self, command: list[Word | Array]) -> None:
        """Follow one simple command."""
        before = self._values.overlay
        assigned = self._assignments(command)
        words = [word for word in command[assigned:] if isinstance(word, Word)]
        if not words:
            return
        if words[0].plain in _DECLARING:
            self._declare(command[assigned + 1 :], exported=words[0].plain == "export")
            return
        argv, notes = self._expand.argv(words)
        if not argv:
            return
        self._built_in(argv, words, notes)
        self._values.overlay = before

    def _assignments(self, command: list[Word | Array]) -> int:
        """Evaluate the assignments at the start of a command; return their number.

        Those before a program hold for it alone.
        """
        count = 0
        pairs = []
        for word in command:
            pair = (word.name, None) if isinstance(word, Array) else _assignment(word)
            if pair is None:
                break
            pairs.append((word, pair))
            count += 1
        alone = count == len(command)
        for word, pair in pairs:
            self._assign(word, pair, alone=alone)
        return count

    def _assign(self, word: Word | Array, pair: tuple[str, Word | None], *, alone: bool) -> None:
        name = pair[0].removesuffix("+")
        if isinstance(word, Array):
            fields = [one for inner in word.words for one in self._expand.fields(inner)]
            taken = self._expand.taken()
            self._values.assign_array(
                name, fields, taken, appends=word.appends, conditional=self._conditional(word.line)
            )
            return
        assert pair[1] is not None
        value = self._expand.one(pair[1])
        taken = self._expand.taken()
        if not alone:
            self._values.overlay = {**self._values.overlay, name: value}
        elif pair[0].endswith("+"):
            self._values.append(name, value, taken, conditional=self._conditional(word.line))
        else:
            self._values.assign(name, value, taken, conditional=self._conditional(word.line))

    def _conditional(self, line: int) -> str:
        return f"line {line}" if self._is_conditional else ""

    def _declare(self, words: list[Word | Array], *, exported: bool) -> None:
        for word in words:
            pair = (word.name, None) if isinstance(word, Array) else _assignment(word)
            if pair is not None:
                self._assign(word, pair, alone=True)
                name = pair[0].removesuffix("+")
            else:
                name = (word.plain if isinstance(word, Word) else None) or ""
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


def _assignment(word: Word) -> tuple[str, Word] | None:
    """Return the name (with a `+` where it appends) and the value of `NAME=VALUE`; None for another word."""
    first = word.parts[0] if word.parts else None
    if not isinstance(first, Text) or first.quoted:
        return None
    name, sign, rest = first.text.partition("=")
    if not sign or not name.removesuffix("+").isidentifier():
        return None
    return name, Word((Text(rest, quoted=False), *word.parts[1:]) if rest else word.parts[1:], word.line)


def _is(token: Token, text: str) -> bool:
    return isinstance(token, Operator) and token.text == text


def _past_pattern(tokens: list[Token], at: int) -> int:
    """Return where the commands behind a pattern of `case` begin; at `esac` there is none."""
    while at < len(tokens):
        token = tokens[at]
        if isinstance(token, Word) and token.plain == "esac":
            return at
        at += 1
        if _is(token, ")"):
            return at
    return at
