"""The values of a script's variables while it is read, the folder it is in, and what is uncertain about them."""

from __future__ import annotations

import copy
import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeAlias

from raydebug.trainers.config import expand_home

# Blanks in what could not be read are held as these, from Unicode's private use area, so that no word is split at them.
HELD = {ord(blank): 0xE000 + ord(blank) for blank in " \t\n"}
_RELEASED = {held: blank for blank, held in HELD.items()}
VALUE_CHARS_MAX = 64 * 1024  # no setting is longer; a value that doubles in each line is cut off here
VALUE_WORDS_MAX = 4096
Saved: TypeAlias = tuple[str | list[str] | None, set[str], bool, bool]


def readable(text: str) -> str:
    """Return a text with the blanks of what could not be read as they are."""
    return text.translate(_RELEASED)


@dataclass
class Values:
    """What is known of a script's variables at one of its lines.

    Args:
        inherited: the environment that the script starts in.
        script: its path.
        source: the file that it sources, as it names it, while that is read.
        keyed: arrays whose elements have keys of their own, or gaps between them; they are not followed.
        stack: the folders that `pushd` left.
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
    source: str = ""
    keyed: set[str] = field(default_factory=set)
    stack: list[Path] = field(default_factory=list)

    def copied(self) -> Values:
        """Return a copy that later changes leave alone."""
        return Values(**{at.name: copy.copy(getattr(self, at.name)) for at in fields(self)})

    def restore(self, saved: Values) -> None:
        """Become a copy again that was made."""
        for at in fields(self):
            setattr(self, at.name, getattr(saved, at.name))

    def get(self, name: str) -> str | list[str] | None:
        """Return a variable's value; None if it is not set."""
        found = self.variables.get(name)
        return self.inherited.get(name) if found is None else found

    def assign(self, name: str, value: str | list[str], taints: set[str]) -> None:
        """Set a variable; `taints` is what of the value could not be read."""
        self.variables[name] = value
        self.taints[name] = set(taints)
        if self.exports_all:
            self.exported.add(name)
        self._keep_short(name)

    def _keep_short(self, name: str) -> None:
        value = self.variables[name]
        chars = len(value) if isinstance(value, str) else sum(map(len, value))
        if chars > VALUE_CHARS_MAX or (isinstance(value, list) and len(value) > VALUE_WORDS_MAX):
            self.variables[name] = f"${name}"
            self.taints[name].add(f"{name} is too long to be followed")

    def assign_array(self, name: str, value: list[str], taints: set[str], *, appends: bool) -> None:
        """Set an array, or lengthen it."""
        before = self.get(name) if appends else None
        old = [] if before is None else before if isinstance(before, list) else [before]
        self.assign(name, [*old, *value], taints | (self.taints.get(name, set()) if appends else set()))

    def assign_element(self, name: str, number: int | None, value: str, taints: set[str], *, appends: bool) -> None:
        """Set an element of an array, or lengthen it; one of another number is not followed, and the array neither."""
        before = self.get(name)
        elements = [] if before is None else [before] if isinstance(before, str) else list(before)
        if number is None or not -len(elements) <= number <= len(elements) or (not elements and number < 0):
            self.keyed.add(name)
            return
        elements += [""] * (number == len(elements))
        elements[number] = elements[number] + value if appends else value
        self.assign(name, elements, taints | self.taints.get(name, set()))

    def append(self, name: str, value: str, taints: set[str]) -> None:
        """Lengthen a text."""
        before = self.get(name)
        self.assign(name, (before if isinstance(before, str) else "") + value, taints | self.taints.get(name, set()))

    def forget(self, name: str) -> None:
        """Unset a variable, or an element of an array."""
        if found := re.fullmatch(r"(\w+)\[.*\]", name, re.DOTALL):
            self.keyed.add(found[1])
            return
        self.keyed.discard(name)
        self.variables.pop(name, None)
        self.inherited.pop(name, None)

    def saved_variable(self, name: str) -> Saved:
        """Return what a variable is, for `restore_variable`."""
        return self.variables.get(name), self.taints.get(name, set()), name in self.keyed, name in self.exported

    def restore_variable(self, name: str, saved: Saved) -> None:
        """Make a variable what it was."""
        value, taints, is_keyed, is_exported = saved
        if value is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = value
        self.taints[name] = taints
        for names, was in ((self.keyed, is_keyed), (self.exported, is_exported)):
            (names.add if was else names.discard)(name)

    def change_folder(self, target: str, taints: set[str], place: str) -> None:
        """Go to another folder, if it is known which; `-` is the one before."""
        before = self.get("OLDPWD")
        if taints or (target == "-" and not isinstance(before, str)):
            self.doubts = {*self.doubts, f"{place}: the folder of `cd {target}` is not known"}
            return
        self.assign("OLDPWD", str(self.folder), set())
        to = Path(str(before)) if target == "-" else self.folder / expand_home(target)
        self.folder = Path(os.path.normpath(to))  # without `..`, as PWD has it

    def push_folder(self, argv: list[str], taints: set[str], place: str) -> None:
        """Follow `pushd FOLDER` and `popd`; other forms of them leave the folder unknown."""
        if argv[0] == "pushd" and len(argv) == 2 and argv[1][:1] not in ("+", "-"):
            self.stack = [*self.stack, self.folder]
            self.change_folder(argv[1], taints, place)
        elif argv == ["popd"] and self.stack:
            self.change_folder(str(self.stack[-1]), set(), place)
            self.stack = self.stack[:-1]
        else:
            self.doubts = {*self.doubts, f"{place}: the folder of `{' '.join(argv)}` is not known"}

    def environ(self) -> dict[str, str]:
        """Return the environment of a program that starts here."""
        mine = {
            name: value
            for name, value in self.variables.items()
            if isinstance(value, str) and (name in self.exported or name in self.inherited)
        }
        return {name: readable(value) for name, value in {**self.inherited, **mine, **self.overlay}.items()}
