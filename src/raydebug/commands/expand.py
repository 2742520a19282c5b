"""Expand the words of a script with what its shell knows. Runs nothing.

Source: bash 5.2 manual, "Shell Expansions": braces, tildes, parameters, commands, arithmetic, splitting, file names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from raydebug.commands import patterns
from raydebug.commands.arithmetic import assigned_names, calculate
from raydebug.commands.state import HELD, Note, NotFollowed, State, Value, Variable, hidden, is_name
from raydebug.commands.syntax import Node, Script, literal

NESTED_AT_MOST = 32  # expansions in expansions: scripts have three or four
_UNSET = "{} is not set here, and `set -u` ends the script there"
FIELDS_MAX = 4096  # that a word becomes
_RUN_ONLY = frozenset((  # what bash itself sets
    "BASH", "BASHOPTS", "BASHPID", "BASH_ARGV0", "BASH_COMMAND", "BASH_LINENO", "BASH_SUBSHELL", "BASH_VERSINFO",
    "BASH_VERSION", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS",
    "HISTCMD", "HOSTNAME", "HOSTTYPE", "LINENO", "MACHTYPE", "OSTYPE", "PATH", "PIPESTATUS", "PPID", "PS4", "RANDOM",
    "SECONDS", "SHELL", "SHELLOPTS", "SHLVL", "SRANDOM", "TERM", "UID", "_",
))  # fmt: skip
_ALWAYS = frozenset((  # set or not
    "RANDOM", "SECONDS", "SRANDOM", "EPOCHSECONDS", "LINENO", "PIPESTATUS", "_", "?", "$", "!", "-", "BASH_SOURCE",
))  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_CASES: dict[str, Callable[[str], str]] = {"^": str.upper, ",": str.lower}
_RANGE = re.compile(r"\{(-?[1-9]\d{0,3}|0)\.\.(-?[1-9]\d{0,3}|0)\}")
Piece: TypeAlias = tuple[str, bool]  # a text, and whether it is quoted


@dataclass(frozen=True)
class Run:
    """A piece of a word: quoted text is neither split nor a pattern; only what an expansion gives is split."""

    text: str
    quoted: bool = False
    splits: bool = False


_BREAK = Run("", splits=True)  # between two elements of a list; compared by identity
_STAR = Run("", splits=True)  # the same of `$*`, which are joined in another way where nothing is split


class Expander:
    """Expands the words of one script, and collects what is uncertain about them.

    `capture` returns what the statements of `$(...)` print, None where only a run can tell.
    """

    def __init__(self, state: State, capture: Callable[[list[Node]], str | None]) -> None:
        self.state = state
        self.script: Script
        self.notes: set[Note] = set()
        self._capture = capture
        self._depth = 0

    def taken(self) -> set[Note]:
        """Return what was uncertain since the last call."""
        notes, self.notes = self.notes, set()
        return notes

    def words(self, words: Iterable[Node]) -> list[str]:
        """Return the words that the words of a command become."""
        return [field for word in words for field in self.fields(word)]

    def fields(self, word: Node) -> list[str]:
        """Return the words that a word becomes: none, one, or several."""
        if "B" in self.state.options and (made := self._braces(word)) is not None:
            return made
        done = [name for pieces in self._split(self._runs(word["Parts"], tildes="=")) for name in self._files(pieces)]
        if len(done) > FIELDS_MAX:
            return [self.unread("...", "a word that becomes thousands of words is not followed")]
        return done

    def text(self, word: Node | None, *, assigns: bool = False) -> str:
        """Return a word that is not split: the value of an assignment, the operand of a condition."""
        runs = self._runs((word or {}).get("Parts") or [], tildes=":" if assigns else "")
        return self._joined(runs)

    def pattern(self, word: Node, *, regex: bool = False) -> str:
        """Return a word as a pattern, or as a regular expression; its quoted parts match literally."""
        pieces = [(self._joined([run]), run.quoted) for run in self._runs(word["Parts"], tildes="", raw=regex)]
        quoted = re.escape if regex else patterns.quoted
        return "".join(quoted(text) if is_quoted else text for text, is_quoted in pieces)

    def document(self, word: Node, *, quoted: bool, tabs: bool) -> str:
        """Return the text of a here-document."""
        texts = list[str]()
        for number, part in enumerate(word.get("Parts") or []):
            if part["Type"] != "Lit":
                texts.append(self._joined(self._part(part, quoted=True)))
                continue
            value = re.sub(r"\n\t+", "\n", part["Value"]) if tabs else part["Value"]
            value = value.lstrip("\t") if tabs and number == 0 else value
            texts.append(value if quoted else re.sub(r"\\([$`\\\n])", lambda it: it[1].strip("\n"), value))
        return "".join(texts)

    def unread(self, source: str, why: str) -> str:
        """Return a placeholder for what could not be read, and note why."""
        self.notes.add(Note(why))
        return source.translate(HELD)

    # Words.

    def _runs(self, parts: Sequence[Node], *, tildes: str, quoted: bool = False, raw: bool = False) -> list[Run]:
        """Return the pieces of a word's parts.

        Tildes are looked for behind the `=` of a word like an assignment (`=`), or behind colons (`:`). In a regular
        expression (`raw`) backslashes stay.
        """
        runs: list[Run] = []
        for number, part in enumerate(parts):
            if part["Type"] != "Lit":
                runs += self._part(part, quoted=quoted)
            elif quoted:
                runs.append(Run(re.sub(r"\\([$`\"\\\n])", lambda it: it[1].strip("\n"), part["Value"]), quoted=True))
            elif raw:
                runs.append(Run(part["Value"]))
            else:
                runs += self._literal(part["Value"], tildes, is_first=number == 0, is_last=number == len(parts) - 1)
        return runs

    def _literal(self, value: str, tildes: str, *, is_first: bool, is_last: bool) -> Iterator[Run]:
        """Yield the pieces of plain text: the home folder, what a backslash quotes, the rest."""
        starts = [0] if is_first else []
        name = re.match(r"[A-Za-z_]\w*\+?=", value) if is_first and tildes == "=" else None
        if name or tildes == ":":
            starts += [at + 1 for at, char in enumerate(value) if char == ":"] + ([name.end()] if name else [])
        at = 0
        for match in re.finditer(r"\\(?P<char>.?)|~(?P<user>[^/:\\]*)", value, re.DOTALL):
            if match["user"] is not None and match.start() not in starts:
                continue
            if match["user"] is not None and match.end() == len(value) and not is_last:
                continue  # ~$USER, which is no home folder
            yield Run(value[at : match.start()])
            at = match.end()
            if match["user"] is None:
                yield Run(match["char"].strip("\n"), quoted=match["char"] != "\n")
            elif match["user"] or (home := self.state.get("HOME").text) is None:
                yield Run(self.unread(match[0], f"{match[0]} was not read"), quoted=True)
            else:
                yield Run(home, quoted=True)
        yield Run(value[at:])

    def _part(self, part: Node, *, quoted: bool) -> list[Run]:
        kind = part["Type"]
        if kind == "SglQuoted":
            value = part.get("Value", "")
            if part.get("Dollar"):
                text = unescaped(value)
                return [
                    Run(self.unread(f"$'{value}'", f"$'{value}' was not read") if text is None else text, quoted=True)
                ]
            if not quoted:
                return [Run(value, quoted=True)]
            if re.search(r"[$`\\\"]", value):  # of "${NAME:-'x'}", where they stand for themselves
                return [Run(self.unread(f"'{value}'", "single quotes in double ones were not read"), quoted=True)]
            return [Run(f"'{value}'", quoted=True)]
        if kind == "DblQuoted":
            runs = self._runs(part.get("Parts") or [], tildes="", quoted=True)
            is_list = any(self._is_list(it) for it in part.get("Parts") or [])
            return runs if is_list else [Run("", quoted=True), *runs]
        if self._depth == NESTED_AT_MOST:
            why = f"more than {NESTED_AT_MOST} expansions are in one another"
            return [Run(self.unread("$(...)", why), quoted=True)]
        self._depth += 1
        try:
            if kind == "ParamExp":
                return _Parameter(self, part, quoted=quoted).runs()
            if kind == "ArithmExp":
                return [Run(self._arithmetic(part), quoted, not quoted)]
            if kind == "CmdSubst":
                return [self._output(part, quoted=quoted)]
            source = self.script.source(part)
            return [Run(self.unread(source, f"{source} was not read"), quoted=True)]
        finally:
            self._depth -= 1

    def _is_list(self, part: Node) -> bool:
        """Return whether an expansion may become no word at all, though it is quoted."""
        return part["Type"] == "ParamExp" and "@" in (part["Param"]["Value"], literal(part.get("Index")))

    def _output(self, part: Node, *, quoted: bool) -> Run:
        ticks = 1 if part.get("Backquotes") else 2
        printed = self._capture(part.get("Stmts") or [])
        if printed is not None:
            return Run(printed.rstrip("\n"), quoted, not quoted)
        source = self.script.between(part["Left"]["Offset"] + ticks, part["Right"]["Offset"])
        shown = " ".join(source.split())
        shown = f"{shown[:60]}..." if len(shown) > 60 else shown
        return Run(self.unread(f"$({source})", f"$({shown}) is a program's output"), quoted=True)

    def separators(self) -> str:
        """Return what a value is split at."""
        variable = self.state.get("IFS")
        self.notes |= variable.notes - self.state.unknowns
        return " \t\n" if variable.text is None else variable.text

    def _joined(self, runs: list[Run]) -> str:
        return "".join(" " if run is _BREAK else self.separators()[:1] if run is _STAR else run.text for run in runs)

    def _split(self, runs: list[Run]) -> list[list[Piece]]:
        """Return the pieces of each word that a word becomes."""
        done: list[list[Piece]] = []
        current: list[Piece] | None = None
        separators = self.separators() if any(run.splits for run in runs) else ""
        blanks = "".join(char for char in separators if char in " \t\n")
        delimiter = re.compile(
            f"[{re.escape(blanks or chr(0))}]*[{re.escape(separators)}][{re.escape(blanks or chr(0))}]*"
            if separators
            else "(?!)"
        )
        for run in runs:
            if run is _BREAK or run is _STAR:
                done += [current] if current is not None else []
                current = None
                continue
            at = 0
            for match in delimiter.finditer(run.text) if run.splits else ():
                if match.start() > at:
                    current = [*(current or []), (run.text[at : match.start()], False)]
                at = match.end()
                if current is not None or match[0].strip(blanks or chr(0)):
                    done.append(current if current is not None else [("", True)])
                current = None
            if run.text[at:] or run.quoted:
                current = [*(current or []), (run.text[at:], run.quoted)]
        return [*done, current] if current is not None else done

    def _files(self, pieces: list[Piece]) -> list[str]:
        """Return the files that a word matches; the word itself if it is no pattern, or matches none."""
        plain = "".join(text for text, _ in pieces)
        pattern = "".join(patterns.quoted(text) if is_quoted else text for text, is_quoted in pieces)
        if "f" in self.state.options or not patterns.is_pattern(pattern):
            return [plain]
        try:
            if self.state.folder_notes and plain[:1] != "/":
                raise NotFollowed("the folder is not known")
            if self.state.get("GLOBIGNORE").value:
                raise NotFollowed("GLOBIGNORE changes what it matches")
            names = patterns.matching_files(pattern, self.state.folder)
        except NotFollowed as failure:
            return [self.unread(plain, f"{plain[:60]} is a pattern of file names, which was not followed: {failure}")]
        return names or ([] if "nullglob" in self.state.options else [plain])

    def _braces(self, word: Node) -> list[str] | None:
        """Return the words of `{1..3}`; of a word with other braces what is known; None where it has none."""
        text = "".join(part["Value"] if part["Type"] == "Lit" else "x" for part in word["Parts"])
        if not re.search(r"(?<![\\$])\{.*(,|\.\.).*\}", text, re.DOTALL):
            return None
        match = _RANGE.fullmatch(literal(word) or "")
        if match is None:
            return [self.unread(self.script.source(word), "braces that stand for several words were not read")]
        first, last = int(match[1]), int(match[2])
        numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
        return [str(number) for number in numbers[: FIELDS_MAX + 1]]

    # Arithmetic.

    def _arithmetic(self, part: Node) -> str:
        before, self.notes = self.notes, set()
        value = self.number(part["X"]) if part.get("X") else 0
        notes, self.notes = self.notes, before | self.notes
        if value is not None and not hidden(notes):
            return str(value)
        start = part["Left"]["Offset"] + (2 if part.get("Bracket") else 3)
        source = self.script.between(start, part["Right"]["Offset"])
        return self.unread(f"$(({source}))", f"$(({source})) was not calculated")

    def number(self, node: Node) -> int | None:
        """Return the value of an expression; None where it is not known, with a note, and what it sets neither."""
        before, saved, source = set(self.notes), self.state.variables, self.script.source(node)[:60]
        self.state.shared |= {"variables"}
        try:
            value = calculate(node, self)
            if not hidden(self.notes - before):
                return value
        except (NotFollowed, LookupError):
            if not hidden(self.notes - before):  # else it may be an error, at which bash leaves the command
                self.state.doubt(f"(({source})) was not calculated")
            self.notes.add(Note(f"(({source})) was not calculated"))
        self.state.variables = saved
        self.state.shared |= {"variables"}
        for name in assigned_names(node):
            self.state.mark(name, {Note(f"what (({source})) sets {name} to was not calculated")})
            if self.state.get(name).value is None:
                self.state.set(name, f"${name}", self.state.get(name).notes)
        return None

    def number_text(self, name: str) -> str:
        """Return the value of a variable in an expression."""
        variable = self.state.get(name)
        if name in _ALWAYS or (variable.value is None and name in _RUN_ONLY):
            return self.unread("0", f"${name} is known to a run only")
        self.notes |= variable.notes
        if variable.value is None and "u" in self.state.options:
            self.state.doubt(_UNSET.format(name))
        return variable.text or ""

    def set_number(self, target: Node, value: int) -> None:
        """Set a variable, or an element, in an expression."""
        part = target["Parts"][0]
        if (name := literal(target)) and is_name(name):
            self.assign(name, None, str(value), self.notes)
        elif part["Type"] == "ParamExp" and part.get("Index") and "Dollar" not in part:
            name = str(part["Param"]["Value"])
            self.assign(name, self.key(self.state.get(name), part["Index"]), str(value), self.notes)
        else:
            raise NotFollowed

    def key(self, variable: Variable, index: Node) -> int | str:
        """Return the key of an element of an array; -1 where there is no such element, with a note."""
        if "A" in variable.flags and index["Type"] == "Word":
            return self.text(index)
        if "A" in variable.flags and not re.search(r"[$`'\"\\]", source := self.script.source(index)):
            return source
        number = self.number(index) if "A" not in variable.flags else None
        if number is not None and number < 0:
            number += max((int(key) for key in variable.elements), default=-1) + 1
        if number is None or number < 0:
            self.notes.add(Note(f"an element with the index {self.script.source(index)} is not known here"))
            return -1
        return number

    def assign(
        self, name: str, key: int | str | None, value: Value, notes: Iterable[Note], *, appends: bool = False
    ) -> None:
        """Set a variable, all elements of an array, or the one with a key."""
        variable = self.state.get(name)
        notes = {*notes, *variable.notes} if appends or key is not None else notes
        if "r" in variable.flags:
            self.state.doubt(f"{name} is read-only: bash leaves the command there")
        elif not isinstance(value, str):
            self.state.set(name, value, notes)
        elif key is None and not isinstance(variable.value, dict):
            self.state.set(name, f"{variable.text or ''}{value}" if appends else value, notes)
        elif key == -1:
            self.state.mark(name, {*notes, Note(f"an element of {name} is set that is not known here")})
        else:
            key = ("0" if "A" in variable.flags else 0) if key is None else key
            before = variable.elements.get(key, "") if appends else ""
            elements = {**variable.elements, key: before + value}
            ordered = dict(sorted(elements.items())) if "A" not in variable.flags else elements
            self.state.set(name, ordered, {*variable.notes, *notes})


class _Parameter:
    """One `$NAME` or `${NAME...}`."""

    def __init__(self, expand: Expander, node: Node, *, quoted: bool) -> None:
        self._expand, self._node, self._quoted, self._state = expand, node, quoted, expand.state
        self._name: str = node["Param"]["Value"]
        self._index: Any = node.get("Index")
        self._subscript = literal(self._index) or "" if self._index is not None else None

    def runs(self) -> list[Run]:
        """Return its pieces."""
        try:
            return self._read(self._node, self._node.get("Exp") or {})
        except NotFollowed as failure:
            source = self._expand.script.source(self._node)
            return [Run(self._expand.unread(source, f"{source}: {failure}"), quoted=True)]

    def _read(self, node: Node, expression: Node) -> list[Run]:
        if node.get("Names") or node.get("Width"):
            raise NotFollowed
        if node.get("Excl") and self._is_list:
            variable = self._state.get(self._name)
            self._expand.notes |= variable.notes
            return self._listed([str(key) for key in variable.elements])
        if node.get("Excl"):  # the variable that `${!NAME}` names
            name = (self._values() or [""])[0]
            if not re.fullmatch(r"\w+", name) or hidden(self._expand.notes):
                raise NotFollowed
            self._name, self._index, self._subscript = name, None, None
        values = self._values()
        if expression and expression["Op"].lstrip(":") in ("-", "=", "?", "+"):
            return self._chosen(expression["Op"], values)
        self._check_set(values)
        if node.get("Length"):
            length = len(values or ()) if self._is_list else len((values or [""])[0])
            return [Run(str(length), self._quoted, not self._quoted)]
        values = self._slice(node["Slice"], values or []) if node.get("Slice") else values or []
        values = self._replaced(node["Repl"], values) if node.get("Repl") else values
        return self._listed(self._changed(expression, values) if expression else values)

    @property
    def _is_list(self) -> bool:
        return self._name in ("@", "*") if self._subscript is None else self._subscript in ("@", "*")

    def _values(self) -> list[str] | None:
        """Return its value, or its elements; None where it is not set."""
        state, name, notes = self._state, self._name, self._expand.notes
        if name in ("@", "*", "#") or name.isdigit():
            notes |= state.argument_notes if name != "0" else set()
            words = [state.name, *state.arguments]
            if name.isdigit():
                return words[int(name) : int(name) + 1] or None
            return [str(len(words) - 1)] if name == "#" else words[1:]
        if name == "?" and state.status is not None:
            return [str(state.status)]
        if name == "PWD":
            notes |= state.folder_notes
            return [str(state.folder)]
        if name == "BASH_SOURCE" and self._subscript in (None, "0") and (state.source or state.file):
            return [state.source or state.file]
        variable = state.get(name)
        if name in _ALWAYS or (variable.value is None and name in _RUN_ONLY):
            raise NotFollowed("it is known to a run only")
        notes |= variable.notes
        if self._subscript is None:
            return None if variable.text is None else [variable.text]
        if self._is_list:
            return list(variable.elements.values())
        key = self._expand.key(variable, self._index)
        if key == -1:
            raise NotFollowed
        return None if key not in variable.elements else [variable.elements[key]]

    def _check_set(self, values: list[str] | None) -> None:
        if values is not None or self._is_list:
            return
        if "u" in self._state.options:
            self._state.doubt(_UNSET.format(self._name))
        if self._name in self._state.variables:
            return  # one that the script itself has unset is no surprise
        why = f"${self._name} is not given" if self._name.isdigit() else f"{self._name} is not set here"
        self._expand.notes.add(Note(why, "remark"))

    def _listed(self, values: list[str]) -> list[Run]:
        """Return the pieces of a value, or of the elements of a list."""
        is_at = (self._subscript or self._name) == "@"
        if self._is_list and self._quoted and not is_at:
            separators = self._expand.separators()
            return [Run(separators[:1].join(values), quoted=True)]
        runs: list[Run] = []
        for value in values:
            if self._is_list and runs:
                runs.append(_BREAK if is_at else _STAR)
            runs.append(Run(value, self._quoted, not self._quoted))
        return runs

    def _chosen(self, operator: str, values: list[str] | None) -> list[Run]:
        """Return the value, or the word behind `:-`, `:=`, `:+` or `:?`."""
        is_list_empty = self._is_list and not values
        lacks = values is None or is_list_empty or (operator[0] == ":" and not any(values) and len(values) < 2)
        word = self._node["Exp"].get("Word")
        if operator[-1] == "+":
            return [] if lacks else self._word(word)
        if not lacks:
            return self._listed(values or [])
        if operator[-1] == "?":
            why = f"{self._name} is not set, and the script needs it"
            self._state.doubt(why)
            return [Run(self._expand.unread(self._expand.script.source(self._node), why), quoted=True)]
        if operator[-1] == "=":
            before, self._expand.notes = self._expand.notes, set()
            text = "".join(run.text for run in self._word(word))
            key = None if self._index is None else self._expand.key(self._state.get(self._name), self._index)
            self._expand.assign(self._name, key, text, self._expand.notes)
            self._expand.notes |= before
            return [Run(text, self._quoted, not self._quoted)]
        return self._word(word)

    def _word(self, word: Node | None) -> list[Run]:
        runs = self._expand._runs((word or {}).get("Parts") or [], tildes="", quoted=self._quoted)
        if self._quoted:
            return [run if run in (_BREAK, _STAR) else Run(run.text, quoted=True) for run in runs]
        return [run if run.quoted or run.splits else Run(run.text, splits=True) for run in runs]

    def _slice(self, node: Node, values: list[str]) -> list[str]:
        """Return `${NAME:OFFSET:LENGTH}` of a text or a list, whose first argument is number 1."""
        numbers = [self._expand.number(node[key]) for key in ("Offset", "Length") if node.get(key)]
        first, length = (*numbers, None, None)[:2]
        if first is None or None in numbers:
            raise NotFollowed
        if not self._is_list:
            text = "".join(values)
            first += len(text) if first < 0 else 0
            end = len(text) if length is None else first + length if length >= 0 else len(text) + length
            if first >= 0 and end < first:
                raise NotFollowed
            return [text[first:end] if first >= 0 else ""]
        elements = self._state.get(self._name).elements if self._subscript else {}
        if list(elements) != list(range(len(elements))) or (length is not None and length < 0):
            raise NotFollowed
        values = values if self._subscript else [self._state.name, *values]
        first += len(values) if first < 0 else 0
        return [] if first < 0 else values[first:] if length is None else values[first : first + length]

    def _replaced(self, node: Node, values: list[str]) -> list[str]:
        pattern = self._expand.pattern(node["Orig"]) if node.get("Orig") else ""
        text = self._expand.text(node.get("With"))
        if "&" in text:
            raise NotFollowed("& in a replacement is not followed")
        return [patterns.replaced(value, pattern, text, every=bool(node.get("All"))) for value in values]

    def _changed(self, expression: Node, values: list[str]) -> list[str]:
        operator, word = expression["Op"], expression.get("Word")
        if operator == "@" or (operator[0] in _CASES and word):
            raise NotFollowed
        if operator[0] in _CASES:
            change = _CASES[operator[0]]
            return [change(value) if len(operator) == 2 else change(value[:1]) + value[1:] for value in values]
        pattern = self._expand.pattern(word) if word else ""
        return [patterns.cut(value, operator, pattern) for value in values]


def unescaped(text: str) -> str | None:
    """Return the text of `$'...'`; None where it has other signs than those of `_ESCAPES`."""
    if any(sign not in _ESCAPES for sign in re.findall(r"\\(.)", text, re.DOTALL)):
        return None
    return re.sub(r"\\(.)", lambda it: _ESCAPES[it[1]], text)
