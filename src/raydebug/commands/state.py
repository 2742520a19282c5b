"""What a shell knows at one of its lines: variables, functions, folder, options, and what of them is uncertain."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from raydebug.commands.syntax import Node, Script

# Blanks in what could not be read are held as these, from Unicode's private use area, so that no word is split at them.
HELD = {ord(blank): 0xE000 + ord(blank) for blank in " \t\n"}
_RELEASED = {held: blank for blank, held in HELD.items()}
VALUE_CHARS_MAX = 64 * 1024  # no setting is longer; a value that doubles in each line is cut off here
VALUE_WORDS_MAX = 4096
_TABLES = frozenset(("variables", "functions", "files"))
ODD_FLAGS = frozenset("ilun")  # of `declare`: what they make of a value is not followed


def readable(text: str) -> str:
    """Return a text with the blanks of what could not be read as they are."""
    return text.translate(_RELEASED)


@dataclass(frozen=True)
class Note:
    """Why a value is uncertain, for the user."""

    text: str
    kind: Literal["hidden", "remark"] = "hidden"  # a `remark`: the value is known, but may not be what is meant


Notes: TypeAlias = frozenset[Note]
Value: TypeAlias = "str | Mapping[int | str, str] | None"


def hidden(notes: Iterable[Note]) -> bool:
    """Return whether a value with these notes is not known."""
    return any(note.kind == "hidden" for note in notes)


@dataclass(frozen=True)
class Variable:
    """A variable: a text, the elements of an array by number or key, or None where it is only declared."""

    value: Value = None
    flags: frozenset[str] = frozenset()  # of `declare`: `x` exported, `r` read-only, `A` with keys, and ODD_FLAGS
    notes: Notes = frozenset()

    @property
    def elements(self) -> Mapping[int | str, str]:
        """The elements by number or key; a text is the first one."""
        return {} if self.value is None else {0: self.value} if isinstance(self.value, str) else self.value

    @property
    def text(self) -> str | None:
        """The text, or the first element."""
        return self.elements.get(0, self.elements.get("0"))


@dataclass(frozen=True)
class Function:
    """A function: its body, the script that the body is of, and the file where that is."""

    body: Node
    script: Script
    source: str


@dataclass
class State:
    """What is known at one line of a script. A copy is cheap: a table is copied when one of its owners changes it."""

    name: str  # `$0`
    arguments: tuple[str, ...]
    folder: Path
    variables: dict[str, Variable]  # `put` changes them
    file: str = ""  # of the script, as it is named; empty for `bash -c`
    source: str = ""  # the file that is being sourced, as it is named; empty for the script itself
    argument_notes: Notes = frozenset()
    folder_notes: Notes = frozenset()
    unknowns: Notes = frozenset()  # why a variable that is not set here may be set
    doubts: frozenset[str] = frozenset()  # what makes everything that follows uncertain
    functions: dict[str, Function] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    files: dict[Path, str | None] = field(default_factory=dict)  # that the script has written; None: not known
    status: int | None = 0  # of the last command; None: not known
    shared: frozenset[str] = _TABLES

    def copied(self) -> State:
        """Return a copy that later changes leave alone."""
        self.shared = _TABLES
        return copy.copy(self)

    def become(self, other: State) -> None:
        """Take over all of another state."""
        other.shared = _TABLES
        vars(self).update(vars(other))

    def own(self, table: str) -> dict[Any, Any]:
        """Return a table that may be changed."""
        if table in self.shared:
            setattr(self, table, dict(getattr(self, table)))
            self.shared -= {table}
        owned: dict[Any, Any] = getattr(self, table)
        return owned

    def get(self, name: str) -> Variable:
        """Return a variable; one without a value where it is not set."""
        return self.variables.get(name) or Variable(notes=self.unknowns)

    def put(self, name: str, variable: Variable | None) -> None:
        """Make a variable this one, or take it away."""
        if variable is None:
            self.own("variables").pop(name, None)
        else:
            self.own("variables")[name] = variable

    def set(self, name: str, value: Value, notes: Iterable[Note] = ()) -> None:
        """Give a variable a value; its flags stay."""
        chars = len(value) if isinstance(value, str) else sum(map(len, (value or {}).values()))
        if chars > VALUE_CHARS_MAX or (not isinstance(value, str) and len(value or ()) > VALUE_WORDS_MAX):
            value, notes = f"${name}", {*notes, Note(f"{name} is too long to be followed")}
        flags = self.variables.get(name, Variable()).flags | ({"x"} if "a" in self.options else set())
        if flags & ODD_FLAGS:
            notes = {*notes, Note(f"{name} has an option of `declare` that is not followed")}
            if "n" in flags:
                self.forget_all(f"what {name} refers to is set, which is not followed")
        self.put(name, Variable(value, flags, frozenset(notes)))

    def hide(self, name: str, why: str) -> None:
        """Make the value of a variable one that is not known."""
        self.set(name, f"${name}", {Note(why)})

    def flag(self, name: str, on: Iterable[str], off: Iterable[str] = ()) -> None:
        """Change the flags of a variable."""
        variable = self.get(name)
        self.put(name, replace(variable, flags=(variable.flags | set(on)) - set(off)))

    def mark(self, name: str, notes: Iterable[Note]) -> None:
        """Note why a variable is uncertain, and leave its value as it is shown."""
        variable = self.get(name)
        self.put(name, replace(variable, notes=variable.notes | set(notes)))

    def doubt(self, text: str) -> None:
        """Make all that follows uncertain."""
        self.doubts |= {text}

    def forget_all(self, text: str) -> None:
        """Make every variable unknown: somebody may have changed them."""
        self.doubt(text)
        self.unknowns |= {Note(text)}
        self.argument_notes |= {Note(text)}
        for name in list(self.variables):
            self.mark(name, {Note(text)})

    def differing(self, other: State) -> frozenset[str]:
        """Return the variables that are not as in another state."""
        if self.variables is other.variables:
            return frozenset()
        names = self.variables.keys() | other.variables.keys()
        return frozenset(name for name in names if self.variables.get(name) != other.variables.get(name))

    def surroundings(self) -> tuple[object, ...]:
        """Return all but the variables, to be compared."""
        left = ("variables", "doubts", "files", "status", "shared")
        return tuple(getattr(self, it.name) for it in fields(self) if it.name not in left)

    def environ(self) -> tuple[dict[str, str], dict[str, Notes]]:
        """Return the environment of a program that starts here, and what is uncertain about it, by name."""
        exported = {name: it for name, it in self.variables.items() if "x" in it.flags and isinstance(it.value, str)}
        notes = {name: frozenset(note for note in it.notes if note.kind != "remark") for name, it in exported.items()}
        return {name: readable(str(it.value)) for name, it in exported.items()}, notes

    def change_folder(self, target: str) -> None:
        """Go to a folder, and keep the one before."""
        self.set("OLDPWD", str(self.folder), self.folder_notes)
        self.folder = Path(os.path.normpath(self.folder / target))  # without `..`, as PWD has it
        self.folder_notes = frozenset()


class NotFollowed(Exception):
    """A form that is not evaluated, and what bash does not evaluate either."""

    def __init__(self, why: str = "it is not followed") -> None:
        super().__init__(why)


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a variable."""
    return text.isidentifier() and text.isascii()
