"""What a script is made of (words, parts, variables), and the values that its variables have while it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from raydebug.trainers.config import expand_home


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


# Blanks in what could not be read are held as these, from Unicode's private use area, so that no word is split at them.
_HELD = {ord(blank): 0xE000 + ord(blank) for blank in " \t\n"}
_RELEASED = {held: blank for blank, held in _HELD.items()}


VALUE_CHARS_MAX = 64 * 1024  # no setting is longer; a value that doubles in each line is cut off here
VALUE_WORDS_MAX = 4096


def held_together(source: str) -> str:
    """Return the placeholder of what could not be read, with blanks at which no word is split."""
    return source.translate(_HELD)


def readable(text: str) -> str:
    """Return a text with the blanks of what could not be read as they are."""
    return text.translate(_RELEASED)


@dataclass
class Values:
    """What is known of a script's variables at one of its lines.

    Args:
        inherited: the environment that the script starts in.
        script: its path.
        arguments: `$1`, `$2` and so on.
        folder: where it is.
        doubts: what makes everything that follows uncertain.
    """

    inherited: dict[str, str]
    script: str
    arguments: list[str]
    folder: Path
    doubts: set[str] = field(default_factory=set)
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    taints: dict[str, set[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    exports_all: bool = False
    overlay: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str | list[str] | None:
        """Return a variable's value; None if it is not set."""
        found = self.variables.get(name)
        return self.inherited.get(name) if found is None else found

    def assign(self, name: str, value: str | list[str], taints: set[str], *, conditional: str = "") -> None:
        """Set a variable.

        Args:
            name: which.
            value: to what.
            taints: what of the value could not be read.
            conditional: where a condition decides whether it is set at all; a value that it has already is kept then.
        """
        if conditional:
            note = f"{name} depends on a condition ({conditional}), which was not decided"
            if self.get(name) not in (None, "", value):
                self.taints.setdefault(name, set()).add(note)
                return
            taints = {*taints, note}
        self.variables[name] = value
        self.taints[name] = set(taints)
        self._keep_short(name)

    def _keep_short(self, name: str) -> None:
        value = self.variables[name]
        chars = len(value) if isinstance(value, str) else sum(map(len, value))
        if chars > VALUE_CHARS_MAX or (isinstance(value, list) and len(value) > VALUE_WORDS_MAX):
            self.variables[name] = f"${name}"
            self.taints[name].add(f"{name} is too long to be followed")

    def assign_array(self, name: str, value: list[str], taints: set[str], *, appends: bool, conditional: str) -> None:
        """Set an array, or lengthen it."""
        before = self.get(name)
        if not appends or before is None:
            self.assign(name, value, taints, conditional=conditional)
            return
        if conditional:
            taints = {*taints, f"{name} is longer under a condition ({conditional}), which was not decided"}
        else:
            self.variables[name] = [*(before if isinstance(before, list) else [before]), *value]
        self.taints[name] = self.taints.get(name, set()) | taints
        self._keep_short(name)

    def append(self, name: str, value: str, taints: set[str], *, conditional: str) -> None:
        """Lengthen a text."""
        before = self.get(name)
        text = before if isinstance(before, str) else ""
        self.assign(name, text + value, taints | self.taints.get(name, set()), conditional=conditional)

    def forget(self, name: str) -> None:
        """Unset a variable."""
        self.variables.pop(name, None)
        self.inherited.pop(name, None)

    def change_folder(self, target: str, taints: set[str], line: int) -> None:
        """Go to another folder, if it is known which."""
        if taints:
            self.doubts = {*self.doubts, f"line {line}: the folder of `cd {target}` is not known"}
        else:
            self.folder = self.folder / expand_home(target)

    def environ(self) -> dict[str, str]:
        """Return the environment of a program that starts here."""
        mine = {
            name: value
            for name, value in self.variables.items()
            if isinstance(value, str) and (self.exports_all or name in self.exported or name in self.inherited)
        }
        return {name: readable(value) for name, value in {**self.inherited, **mine, **self.overlay}.items()}
