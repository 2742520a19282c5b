"""Follow the statements of a shell script without running it: what is read, what is not, and why.

Assignments, exports, defaults, arrays, arguments, functions and conditions with known operands are followed. At a
condition that is not decided one branch is taken; `choices` takes another one, so that a caller can read them all.
A file that is sourced is read in its place. What only a run can tell, such as the output of a command, stays as it is
written, and gets a note.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from raydebug.commands.arithmetic import assigned_names, assignment
from raydebug.commands.assignments import Assignment, Parts, assignment_of, declared_name, has_keys
from raydebug.commands.blocks import (
    CLOSE,
    LOOPS,
    STRUCTURE,
    Block,
    end_of_group,
    end_of_subshell,
    exits,
    exits_of_case,
    is_here,
    name_of,
    past,
    past_pattern,
)
from raydebug.commands.conditions import decide_condition, decide_test, matches
from raydebug.commands.expand import Expander
from raydebug.commands.tokens import (
    NESTED_AT_MOST,
    Arithmetic,
    Array,
    Condition,
    Document,
    Operator,
    Text,
    Token,
    Unreadable,
    Word,
    read_tokens,
)
from raydebug.commands.values import Saved, Values
from raydebug.settings.files import NotPlainText, decode, read_bounded

EVALS_AT_MOST = 8  # evals, functions and sourced files in one another
# In all functions and sourced files, each time that they are read: one that calls itself ten times would be read a
# hundred million times.
TOKENS_MAX, TOKENS_OF_ONE = 300_000, 100  # and so many for each time
SCRIPT_BYTES_MAX = 256 * 1024
ITERATIONS_MAX = 256  # of all loops of a script together
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_CHAINS = ("&&", "||")
_BLANK_WORDS = ((Text(" ", quoted=True),), (Text("\t", quoted=True),))  # of a backslash that continues no line
_DECLARING = ("export", "declare", "local", "readonly", "typeset")

Run: TypeAlias = Callable[[Values, list[str], frozenset[str]], None]


@dataclass
class Choices:
    """The branches that are taken where a condition is not decided, by place: `line 3`, `line 3 of env.sh`.

    Args:
        asked: place -> number of the branch; others take the first one that does not end the script.
        met: each such place that was reached -> the branch taken, and how many there are.
    """

    asked: Mapping[str, int] = field(default_factory=dict)
    met: dict[str, tuple[int, int]] = field(default_factory=dict)

    def choose(self, place: str, exits: list[bool]) -> int:
        """Return the branch to take; `exits` says of each one whether it ends the script."""
        default = next((at for at, ends in enumerate(exits) if not ends), 0)
        taken = self.asked.get(place, default)
        self.met.setdefault(place, (taken, len(exits)))
        return taken


class Statements:
    """Reads the tokens of a script, command by command.

    Args:
        values: its variables, which change.
        run: called with each program's command, the values known there, and notes about words that could not be read.
        choices: where conditions are not decided.
    """

    def __init__(self, values: Values, run: Run, choices: Choices | None = None) -> None:
        self._choices = choices or Choices()
        self._values = values
        self._expand = Expander(values)
        self._run = run
        self._blocks: list[Block] = []
        self._status: bool | None = True
        self._connector = ""
        self._is_piped = False  # behind `|`: in a process of its own
        self._negated = False
        self._ended = False
        self._rounds = 0  # of all loops
        self._is_endless = False  # `while true`: what ends it is not known
        self._repeats = 0  # loops in a later round, whose trainings are not shown again
        self._depth = self._tokens_read = 0  # of evals, functions and sourced files
        self._functions: dict[str, tuple[str, list[Token]]] = {}  # the sourced file, and the body
        self._called: set[str] = set()
        self._subshells: list[Block] = []
        self._replaces = False  # `exec`: the command runs in the shell's place
        self._locals: list[dict[str, Saved]] = []  # of each function that is called: what its locals were before

    def read(self, tokens: list[Token]) -> None:
        """Read all statements; a function of the script that nobody calls is read at the end, as somebody may."""
        self._read(tokens)
        while not self._ended and (left := self._uncalled()):
            self._values.arguments = []
            self._call(left[0], [])

    def _uncalled(self) -> list[str]:
        return [name for name, (source, _) in self._functions.items() if not source and name not in self._called]

    def _read(self, tokens: list[Token]) -> None:
        at = 0
        command: list[Parts] = []
        while at < len(tokens) and not self._ended:
            token = tokens[at]
            at += 1
            if not isinstance(token, Operator):
                if not command and isinstance(token, Word) and token.plain in STRUCTURE:
                    at = self._structure(token.plain, token.line, tokens, at)
                else:
                    command.append(token)
                continue
            if token.text == "(" and len(command) == 1 and is_here(tokens, at, ")"):
                at = self._define(name_of(command[0]), tokens, at + 1)  # NAME () { ... }
                command = []
                continue
            if token.text == "\n" and not command and (self._connector or self._is_piped):
                continue  # the line ends behind && or |
            self._finish(command, piped=token.text in ("|", "|&"))
            command = []
            if token.text == "(":
                self._open_group(token, tokens, at)
                continue
            if token.text == ")":
                self._close_subshell(tokens, at)
            self._connector = token.text if token.text in _CHAINS else ""
            self._is_piped = token.text in ("|", "|&")
            if token.text in (";;", ";&", ";;&") and self._blocks and self._blocks[-1].kind == "case":
                at = self._next_pattern(tokens, at)
        self._finish(command, piped=False)

    @property
    def _runs(self) -> bool:
        return all(block.runs for block in (*self._blocks, *self._subshells))

    @property
    def _doubt(self) -> str:
        """The place of a condition that was not decided, on which the statement depends; empty if there is none."""
        return next((block.doubt for block in reversed(self._blocks) if block.doubt), "")

    def _place(self, line: int) -> str:
        """Return where a line of the script, or of the file that it sources, is."""
        return f"line {line} of {self._values.source}" if self._values.source else f"line {line}"

    def _structure(self, word: str, line: int, tokens: list[Token], at: int) -> int:
        """Open, turn or close a block of the script; return the index of the next statement."""
        block = self._blocks[-1] if self._blocks else None
        if word == "{":
            self._open_group(tokens[at - 1], tokens, at)
        elif word == "}" and block is not None and block.kind != "function":
            self._blocks.pop()
            self._end_group(block, tokens, at)
        elif word in ("if", "while", "until"):
            self._blocks.append(Block(word, self._place(line), start=at))
        elif word in ("for", "select"):
            return self._loop(word, line, tokens, at)
        elif word == "case":
            return self._case(line, tokens, at)
        elif word == "function":
            return self._define(name_of(tokens[at]) if at < len(tokens) else "", tokens, at + 1)
        elif word == "exec":
            self._replaces = True
        elif word == "!":
            self._negated = not self._negated
        elif block is not None and word in ("then", "elif", "else"):
            self._branch(block, word, tokens, at)
        elif block is not None and word == "do":
            self._begin_round(block)
        elif block is not None and word == "done" and self._again(block):
            return block.start
        elif word in CLOSE:
            del self._blocks[-1:]
        return at

    def _open_group(self, token: Token, tokens: list[Token], at: int) -> None:
        """Open `{` or `(`: it runs if the condition before it holds, and a subshell has values of its own."""
        group = Block(name_of(token) or "(", self._place(token.line), negated=self._negated)
        if (self._connector == "&&" and self._status is False) or (self._connector == "||" and self._status is True):
            group.runs = False
        elif self._connector and self._status is None:
            group.kind, group.doubt = self._connector, group.place
        if isinstance(token, Operator):
            if len(self._subshells) == NESTED_AT_MOST:
                raise Unreadable(token.line, f"more than {NESTED_AT_MOST} subshells in one another")
            group.saved = self._values.copied() if self._runs and group.runs else self._values
            self._subshells.append(group)
        self._connector, self._negated = "", False
        self._blocks.append(group)

    def _close_subshell(self, tokens: list[Token], at: int) -> None:
        """Close the innermost subshell of the script or function that is read, and forget what it has changed."""
        if not self._subshells or all(block is not self._subshells[-1] for block in self._blocks):
            return
        group = self._subshells.pop()
        del self._blocks[next(n for n, block in enumerate(self._blocks) if block is group) :]
        assert group.saved is not None
        self._values.restore(group.saved)
        self._end_group(group, tokens, at)

    def _end_group(self, group: Block, tokens: list[Token], at: int) -> None:
        """Keep the status of a group: that of its last command, if it is known whether it ran."""
        is_piped = is_here(tokens, at, "|") or is_here(tokens, at, "|&")
        if group.doubt or (is_piped and group.runs):
            self._status = None
        elif group.negated and group.runs and self._status is not None:
            self._status = not self._status

    def _branch(self, block: Block, word: str, tokens: list[Token], at: int) -> None:
        """Take a branch of an `if`, or pass it."""
        if word != "then":
            block.runs = not block.done
            return
        block.runs = True
        if block.done or not self._runs:
            block.runs = False
            return
        holds = self._status
        if holds is None:
            place = block.place = self._place(tokens[at - 1].line) if block.doubt else block.place
            block.doubt = place
            holds = self._choices.choose(place, [exits(tokens, at), False]) == 0
        block.runs = block.done = holds

    def _begin_round(self, block: Block) -> None:
        """Begin the body of a loop; one whose condition is not decided is read once."""
        if block.kind in ("for", "select"):
            return
        holds = self._status if block.kind == "while" or self._status is None else not self._status
        if holds is None or self._is_endless:
            block.doubt, block.done = block.place, True
        block.runs = holds is not False

    def _again(self, block: Block) -> bool:
        """Return whether the body of a loop is read once more."""
        block.rounds += 1
        if block.kind in ("for", "select"):
            self._repeats += block.rounds == 1
            self._rounds += 1
            goes_on = bool(block.values) and not block.done and self._rounds < ITERATIONS_MAX
            block.runs = goes_on
            if goes_on and self._runs:
                self._values.assign(block.name, block.values.pop(0), set())
                return True
            self._repeats -= 1
            return False
        self._rounds += 1
        goes_on = block.runs and not block.done and self._rounds < ITERATIONS_MAX
        self._repeats += goes_on and block.rounds == 1
        self._repeats -= not goes_on and block.rounds > 1
        return goes_on and self._runs

    def _loop(self, kind: str, line: int, tokens: list[Token], at: int) -> int:
        """Open a `for`; its variable gets one value after the other, and the first one has a note."""
        ends = (n for n in range(at, len(tokens)) if isinstance(tokens[n], Operator) or is_here(tokens, n, "do"))
        end = next(ends, len(tokens))
        start = past(tokens, end, "do")
        block = Block(kind, self._place(line), start=start)
        head = [token for token in tokens[at:end] if isinstance(token, Word)]
        if self._runs and head and (name := head[0].plain):
            values = [one for word in head[2:] for one in self._expand.fields(word)]
            notes = self._expand.taken()
            many = {f"{name} is a loop's: its first value is shown"} if len(values) != 1 else set()
            self._values.assign(name, values[0] if values else "", notes | many)
            block.name, block.values = name, values[1:]
        self._blocks.append(block)
        return start

    def _case(self, line: int, tokens: list[Token], at: int) -> int:
        """Open a `case`, and go to its first pattern."""
        inner = past(tokens, at, "in")
        block = Block("case", self._place(line), start=inner)
        if self._runs and isinstance(subject := tokens[at], Word):
            block.word = self._expand.operand(subject)
            if block.word is None:
                block.doubt = block.place
                block.branch = self._choices.choose(block.place, exits_of_case(tokens, inner))
        self._blocks.append(block)
        return self._next_pattern(tokens, inner)

    def _next_pattern(self, tokens: list[Token], at: int) -> int:
        """Decide whether the next branch of a `case` is taken; return where its commands begin, or `esac`."""
        block = self._blocks[-1]
        end = past_pattern(tokens, at)
        if is_here(tokens, end, "esac"):
            return end
        patterns = [token for token in tokens[at:end] if isinstance(token, Word)]
        if block.done:
            block.runs = block.runs and is_here(tokens, at - 1, ";&")
        elif block.word is None:
            block.runs = block.done = block.passed == block.branch
        else:
            word = block.word
            block.runs = block.done = any(matches(word, pattern, self._expand) for pattern in patterns)
        block.passed += 1
        return end

    def _define(self, name: str, tokens: list[Token], at: int) -> int:
        """Keep the body of a function, a group or a subshell; return the index behind it."""
        at += 2 if is_here(tokens, at, "(") and is_here(tokens, at + 1, ")") else 0  # function NAME ()
        while is_here(tokens, at, "\n"):
            at += 1
        if is_here(tokens, at, "{"):
            end = end_of_group(tokens, at + 1)
            body = tokens[at + 1 : end]
        elif is_here(tokens, at, "("):
            end = end_of_subshell(tokens, at + 1)
            body = tokens[at : end + 1]
        else:
            return at
        if self._runs:
            self._functions[name] = self._values.source, body
        return end + 1

    def _call(self, name: str, arguments: list[str]) -> None:
        """Read the body of a function, with its arguments."""
        self._called.add(name)
        source, body = self._functions[name]
        if not self._may_read(body):
            return
        self._locals.append({})
        try:
            with self._entered(source, arguments):
                self._read([*body, Operator(";", 0)])
        finally:
            for local, saved in self._locals.pop().items():
                self._values.restore_variable(local, saved)

    def _source(self, argv: list[str], place: str) -> bool | None:
        """Read a file as if it stood here, with arguments of its own if some are given; one that cannot be is a note.

        Source: bash 5.2 manual, `source`.
        """
        name, *arguments = [*argv[1:], ""][: max(1, len(argv) - 1)]
        unknown = f"{place}: what {' '.join(argv)[:80]} sets is not known here"
        if not name or "$" in name:
            self._values.doubts.add(unknown)
            return None
        try:
            text, doubts = read_script(self._values.folder / name)
            tokens = _tokens_of(text)
            self._values.doubts |= doubts
            if not self._may_read(tokens):
                raise Unreadable(0, "too many files source one another")
            with self._entered(name, arguments or self._values.arguments):
                self._status = True
                self._read(tokens)
        except (NotPlainText, Unreadable) as failure:
            self._values.doubts.add(f"{unknown}: {str(failure).removeprefix('line 0: ')}")
            return None
        return self._status

    def _may_read(self, tokens: list[Token]) -> bool:
        """Return whether a function, a sourced file or an `eval` is read; there is a limit to how often."""
        self._tokens_read += len(tokens) + TOKENS_OF_ONE
        return self._depth < EVALS_AT_MOST and self._tokens_read < TOKENS_MAX

    @contextlib.contextmanager
    def _entered(self, source: str, arguments: list[str]) -> Iterator[None]:
        """Be inside a function or a sourced file, until its end or a `return`."""
        values = self._values
        before, subshells = (values.source, values.arguments, self._blocks), len(self._subshells)
        values.source, values.arguments, self._blocks = source, arguments, [Block("function", "", doubt=self._doubt)]
        self._depth += 1
        try:
            yield
        except _Returned:
            self._status = None
        finally:
            while len(self._subshells) > subshells:
                values.restore(self._subshells.pop().saved or values)
            self._depth -= 1
            values.source, values.arguments, self._blocks = before

    def _finish(self, command: list[Parts], *, piped: bool) -> None:
        """Follow one simple command, if it runs. Assignments before a program hold for it alone."""
        connector, negated, replaces = self._connector, self._negated, self._replaces
        self._negated = self._replaces = False
        if not command or not self._runs:
            return
        if (connector == "&&" and self._status is False) or (connector == "||" and self._status is True):
            return
        doubtful = bool(connector) and self._status is None
        if doubtful:
            place = self._place(command[0].line)
            self._blocks.append(Block(connector, place, doubt=place))
        try:
            status = self._simple(command)
        finally:
            if doubtful:
                self._blocks.pop()
        if replaces and not (piped or self._is_piped or doubtful) and any(_is_program(word) for word in command):
            self._leave("exit", [], "")
        status = None if piped or doubtful else status
        self._status = status if status is None or not negated else not status

    def _simple(self, command: list[Parts]) -> bool | None:
        """Follow one command; return whether it succeeds, None where that is not known."""
        self._is_endless = False  # whatever the command before it was
        if isinstance(command[0], Condition):
            if command[0].is_arithmetic and assigned_names(command[0].text):
                return self._calculate(command[0].text, command[0].line)
            return decide_condition(command[0], self._expand)
        before = self._values.overlay
        assignments = [*itertools.takewhile(bool, map(assignment_of, command))]
        for assigned in assignments:
            self._assign(assigned, alone=len(assignments) == len(command))
        words = [word for word in command[len(assignments) :] if isinstance(word, Word)]
        if not words:
            return True
        if words[0].plain in _DECLARING:
            self._declare(words[0], command[len(assignments) + 1 :])
            return True
        if words[0].plain in ("[", "test"):
            return decide_test(words[1:], self._expand)
        argv, notes = self._expand.argv(words)
        if not argv:
            return None
        documents = [it for it in command if isinstance(it, Document)]
        if documents and not any(not word.startswith("-") for word in argv[_shell_at(argv) + 1 :]):
            document = documents[-1]
            text = document.body if document.quoted else self._expand.document(document.body)
            argv, notes = [*argv, "-c", text], notes | self._expand.taken()
        self._is_endless = argv[0] in ("true", ":")
        status = self._built_in(argv, words, notes)
        self._values.overlay = before
        return status

    def _assign(self, assigned: Array | Assignment | None, *, alone: bool) -> None:
        """Evaluate an assignment that stands alone, or one before a program."""
        assert assigned is not None
        name = assigned.name
        if any(block.kind in _CHAINS for block in self._blocks) and self._values.get(name) not in (None, ""):
            self._values.taints[name] = {*self._values.taints.get(name, ()), self._undecided(name)}
            return
        doubt = {self._undecided(name)} if self._doubt else set()
        if isinstance(assigned, Array) and has_keys(assigned):
            self._values.keyed.add(name)
        if isinstance(assigned, Array):
            fields = [one for word in assigned.words for one in self._expand.fields(word)]
            self._values.assign_array(name, fields, self._expand.taken() | doubt, appends=assigned.appends)
            return
        value = self._expand.one(assigned.value)
        taken = self._expand.taken() | doubt
        if assigned.index is not None:
            number = self._expand.number(self._expand.one(assigned.index))
            taken |= self._expand.taken()
            self._values.assign_element(name, number, value, taken, appends=assigned.appends)
            return
        if not alone:
            self._values.overlay = {**self._values.overlay, name: value}
        elif assigned.appends:
            self._values.append(name, value, taken)
        else:
            self._values.assign(name, value, taken)

    def _calculate(self, text: str, line: int) -> bool | None:
        """Follow `(( ... ))` or `let` that assigns; what cannot be calculated leaves a note about each variable."""
        pair = assignment(text)
        if pair is not None and assigned_names(text) == {pair[0]}:
            value = self._expand.number(pair[1])
            if not self._expand.taken() and value is not None:
                self._assign(Assignment(pair[0], False, Word((Text(str(value), quoted=True),), line), line), alone=True)
                return value != 0 if "=" in text else None  # N++ is what N was before
        for name in assigned_names(text):
            why = f"{self._place(line)}: what it sets {name} to was not calculated"
            self._values.taints[name] = {*self._values.taints.get(name, ()), why}
            self._values.variables.setdefault(name, f"${name}")
        return None

    def _undecided(self, name: str) -> str:
        return f"{name} depends on a condition ({self._doubt}), which was not decided"

    def _declare(self, first: Word, words: list[Parts]) -> None:
        """Assign what `export` and its like name, and export it."""
        options = "".join(name_of(word) for word in words if isinstance(word, Word) and name_of(word).startswith("-"))
        makes_local = self._locals and first.plain in ("local", "declare", "typeset") and "g" not in options
        for word in words:
            names = [word.plain or ""]
            if makes_local and (name := declared_name(word)) and name not in self._locals[-1]:
                self._locals[-1][name] = self._values.saved_variable(name)
                if not assignment_of(word):
                    self._values.assign(name, [], set())  # as one that is not set
            if assigned := assignment_of(word):
                if "i" in options and isinstance(assigned, Assignment):
                    text = self._expand.one(assigned.value)
                    assigned = replace(assigned, value=Word((Arithmetic(text, quoted=True),), word.line))
                self._assign(assigned, alone=True)
                names = [assigned.name]
            elif isinstance(word, Word) and word.plain is None:  # "NAME=VALUE", $(cat .env)
                pairs = [field.partition("=") for field in self._expand.fields(word)]
                taken, names = self._expand.taken(), [name for name, _, _ in pairs if name.isidentifier()]
                for name, sign, value in pairs:
                    if sign and name in names:
                        self._values.assign(name, value, taken)
                if taken and not names:
                    self._values.doubts.add(f"{self._place(first.line)}: what {first.plain} sets is not known here")
            if "A" in options:
                self._values.keyed.update(name for name in names if name.isidentifier())
            if first.plain == "export":
                self._values.exported.update(filter(None, names))

    def _built_in(self, argv: list[str], words: list[Word], notes: set[str]) -> bool | None:
        """Apply a shell builtin to the script's values; report any other command. Return whether it succeeds."""
        program, *rest = argv
        place = self._place(words[0].line)
        loops = [block for block in self._blocks if block.kind in LOOPS]
        if program in self._functions:
            self._call(program, rest)
            return None
        if program == "cd":
            self._values.change_folder(rest[-1] if rest else "~", notes, place)
        elif program in ("pushd", "popd"):
            self._values.push_folder(argv, notes, place)
        elif program == "unset":
            for name in rest:
                self._values.forget(name)
        elif program == "shift" and self._doubt:
            self._values.doubts.add(f"{place}: `shift` depends on a condition that is not known here")
        elif program == "shift":
            del self._values.arguments[: int(rest[0]) if rest and rest[0].isdigit() else 1]
        elif program == "set":
            self._set(rest)
        elif program in ("exit", "return"):
            self._leave(program, rest, place)
            return rest[:1] in ([], ["0"])
        elif program in ("break", "continue") and loops:
            inner = itertools.takewhile(lambda block: block is not loops[-1], reversed(self._blocks))
            if not any(block.kind in _CHAINS for block in inner):  # else it is not known whether it runs
                loops[-1].runs = False
                loops[-1].done |= program == "break"
        elif program == "let":
            for expression in rest:
                self._calculate(expression, words[0].line)
            return None
        elif program in ("true", ":", "false"):
            return program != "false"
        elif program == "eval":
            tokens = read_tokens(" ".join(rest))
            if not self._may_read(tokens):
                raise Unreadable(words[0].line, f"more than {EVALS_AT_MOST} evals in one another")
            self._depth += 1
            try:
                self._read(tokens)
            finally:
                self._depth -= 1
            return None
        elif program in ("source", "."):
            return self._source(argv, place)
        elif program in ("conda", "mamba", "micromamba", "module") and rest[:1] and rest[0] in ("activate", "load"):
            self._values.doubts.add(f"{place}: the environment of {' '.join(argv)[:80]} was not looked into")
        elif names := _names_set(argv):
            for name in names:
                why = "is read from input" if program == "read" else f"is set by {program}, to what is not known here"
                self._values.assign(name, f"${name}", {f"{place}: {name} {why}"})
            return None if program == "getopts" else True
        else:
            if words[-1].parts in _BLANK_WORDS:
                notes = {
                    *notes,
                    f"{self._place(words[-1].line)}: a blank follows the backslash, so the command ends there",
                }
            if not self._repeats:
                self._run(self._values, argv, frozenset(notes | self._values.doubts))
            return None
        return True

    def _leave(self, program: str, rest: list[str], place: str) -> None:
        """Leave a function, a sourced file, or the script; where it complains about its call, it is read on."""
        if self._doubt:
            return
        if self._subshells and (program == "exit" or any(block is self._subshells[-1] for block in self._blocks)):
            self._subshells[-1].runs = False  # it alone ends
            return
        if program == "return" and any(block.kind == "function" for block in self._blocks):
            raise _Returned
        if program == "exit" and rest[:1] not in ([], ["0"]):
            self._values.doubts.add(f"{place}: called like this, the script ends here")
        elif program == "exit":
            self._ended = True

    def _set(self, rest: list[str]) -> None:
        options = [*itertools.takewhile(lambda word: word != "--", rest)]
        if options != rest:
            self._values.arguments[:] = rest[len(options) + 1 :]
        for option, value in itertools.pairwise([*options, ""]):
            if option[:1] in ("-", "+") and ("a" in option or (option[1:] == "o" and value == "allexport")):
                self._values.exports_all = option[0] == "-"


class _Returned(Exception):
    """A function or a sourced file has returned."""


def read_script(file: Path) -> tuple[str, set[str]]:
    """Return the text of a script, and what makes all of it uncertain.

    Raises:
        NotPlainText: it is missing, too big, or no text.
    """
    text = decode(read_bounded(file, bytes_max=SCRIPT_BYTES_MAX, what="a script"))
    if "\r\n" not in text:
        return text, set()
    why = f"{file.name} has line ends of Windows, with which bash runs another command"
    return text.replace("\r\n", "\n"), {f"{why}: sed -i 's/\\r$//' {shlex.quote(str(file))}"}


@functools.lru_cache(maxsize=32)
def _tokens_of(text: str) -> list[Token]:
    return read_tokens(text)


def _is_program(word: Parts) -> bool:
    """Return whether a word of `exec` is one of a command, and not `{FD}`, which a redirection follows."""
    return isinstance(word, Word) and not assignment_of(word) and not name_of(word).startswith("{")


def _names_set(argv: list[str]) -> list[str]:
    """Return the variables that a builtin sets to what only a run can tell.

    Source: bash 5.2 manual, "Bourne Shell Builtins" and "Bash Builtin Commands".
    """
    program, *rest = argv
    if program == "read":
        return rest or ["REPLY"]
    if program == "getopts":
        return [*rest[1:2], "OPTARG", "OPTIND"]
    if program in ("mapfile", "readarray"):
        return [rest[-1] if rest and rest[-1].isidentifier() else "MAPFILE"]
    return [word.partition("[")[0] for word in rest[1:2]] if program == "printf" and rest[:1] == ["-v"] else []


def _shell_at(argv: list[str]) -> int:
    """Return the index of the shell in a command; its length without one."""
    return next((at for at, word in enumerate(argv) if Path(word).name in SHELLS), len(argv))
