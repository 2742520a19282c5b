"""The settings of one command by our setting names: the value of each, and what was changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raydebug.errors import UsageError
from raydebug.trainers.arguments import Arguments
from raydebug.trainers.config import is_number
from raydebug.trainers.keys import Column, Key, Value, ValueOf

UNLIMITED = -1  # "no limit" to verl, not a small number
_DEPTH_MAX = 8
_WORD = re.compile(r"[A-Za-z_][\w-]*")  # plain text: no reference, and nothing that a script's reader left as it was
# ${a.b} and ${oc.select:a.b,default}; a leading dot means beside the key itself. Source: OmegaConf 2.3, interpolation.
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?(?P<path>\.?[\w.]+)(?:,(?P<default>[^}]*))?\}")
# What a smaller number reduces; the ratio is computed, not measured.
_COUNTED = {
    "steps": "steps",
    "train_batch_size": "prompts in a step",
    "rollouts_per_prompt": "answers to a prompt",
    "response_tokens": "tokens in an answer at most",
    "train_samples": "rows to read",
    "image_pixels": "pixels and tokens in an image at most",
    "val_samples": "rows to validate",
}


@dataclass(frozen=True)
class Change:
    """One setting that the profile changed.

    Args:
        old: its value in the user's command, or the trainer's default.
        new: its value now; None if it was removed.
        saving: the expected saving; empty if it was neither measured nor counted.
    """

    setting: str
    key: str
    old: str
    new: str | None
    why: str
    saving: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the change as `run.json` has it."""
        why = f"{self.why}; {self.saving}" if self.saving else self.why
        return {"key": self.key, "old": self.old, "new": "(taken out)" if self.new is None else self.new, "why": why}

    def __str__(self) -> str:
        return "{key}: {old} -> {new} ({why})".format(**self.as_json())


@dataclass(frozen=True)
class Missing:
    """A setting of the profile for which this trainer has no key; it stays as it is.

    Args:
        setting: our word.
        key: the key of the nearest known version; None if that has none either.
    """

    setting: str
    key: str | None


@dataclass
class Settings:
    """The settings of a command.

    Args:
        trainer: its name.
        in_use: whether a training with these values has a part, as `Trainer.in_use`.
        version: of the keys that are used, which `column` has.
        command: its arguments, which change.
        values: its config before any override; None if it was not read, so that the column's defaults hold.
        notes: what a profile says of it.
        elsewhere: words for which other versions of this trainer have a key.
        started_ranks: the number of processes that train together, if another program has started them.
    """

    trainer: str
    in_use: Callable[[str, ValueOf], bool]
    version: str
    column: Column
    command: Arguments
    values: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    elsewhere: frozenset[str] = frozenset()
    started_ranks: int | None = None
    changes: list[Change] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    _limits: set[str] = field(default_factory=set)
    _defaults: dict[str, object] = field(init=False)

    def __post_init__(self) -> None:
        self._defaults = {key.path: key.default for key in self.column.values()}
        self.column = {word: self._key_of_config(key) for word, key in self.column.items()}

    def _key_of_config(self, key: Key) -> Key:
        """Return a key by the name that this config has for it: an older one, where it lacks the newer."""
        if self._knows(key):
            return key
        older = next((path for path in key.instead_of if path in (self.values or ())), None)
        return key if older is None else replace(key, path=older, instead_of=())

    def of_command(self, command: Arguments) -> Settings:
        """Return the settings of another command of the same training, with nothing changed."""
        return replace(self, command=command, changes=[], missing=[], _limits=set())

    def unset(self, word: str, why: str, saves: str = "") -> None:
        """Remove a setting from the command, if the command gives it."""
        if self._is_here(word) and self.command.get(self.column[word].path) is not None:
            self.change(word, None, why, saves)

    def set(self, word: str, value: Value, why: str, saves: str = "") -> None:
        """Set a setting, if this training has it."""
        if self._is_here(word):
            self.change(word, text_of(value), why, saves)

    def limit(self, word: str, limit: float, why: str, saves: str = "") -> None:
        """Reduce a setting to a limit, if this training has it and the user's number is larger.

        Raises:
            RaydebugError: the command gives a word that can be no number: the trainer would refuse it, too.
        """
        if not self._is_here(word):
            return
        self._limits.add(word)
        current = self.number(word)
        key, text = self.column[word], self.text(word) or ""
        if current is None and not key.is_launcher_option and _WORD.fullmatch(text) and not is_number(text):
            is_empty = text == "true"  # an option of argparse without a value: its variable may be empty
            raise UsageError(
                f"{key.path} has no value" if is_empty else f"{key.path}={text} is not a number",
                cause=f"{self.trainer} takes a number there, and so does the profile",
                fix=f"write {key.path}=N",
                code="profile.not-a-number",
            )
        if current is None or current == UNLIMITED or current > limit:
            why = f"{why}; one value in place of the sweep" if self.command.is_sweep(key.path) else why
            self.change(word, text_of(limit), why, saves)

    def _is_here(self, word: str) -> bool:
        """Return whether the trainer has a key for a word and uses it; record a key that this version lacks."""
        key = self.column.get(word)
        if key is not None and not self._in_use(key):
            return False
        if key is not None and self._knows(key):
            return True
        if key is not None and key.listed_only:
            return False
        if word in self.elsewhere:
            self.missing.append(Missing(word, key.path if key else None))
        return False

    def has(self, word: str) -> bool:
        """Return whether this training has a key for a setting, and the part that it belongs to."""
        key = self.column.get(word)
        return key is not None and self._in_use(key) and self._knows(key)

    def path(self, word: str) -> str:
        """Return the trainer's key for a setting."""
        return self.column[word].path

    def _knows(self, key: Key) -> bool:
        if key.added or key.read_anyway or key.is_launcher_option or self.command.get(key.path) is not None:
            return True  # what the command adds with `+` is there too
        return not key.listed_only if self.values is None else key.path in self.values

    def _in_use(self, key: Key) -> bool:
        return key.only_with is None or self.in_use(key.only_with, self.in_force)

    def in_force(self, path: str, depth: int = 0) -> Any:
        """Return the value of a key: the command's as text, else the config's; references are followed."""
        value: Any = self.command.get(path)
        if value is None:
            in_config = self.values is not None and path in self.values
            value = (self.values or {})[path] if in_config else self._defaults.get(path)
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference is None or depth > _DEPTH_MAX:
            return value
        target = reference["path"]
        if target.startswith("."):
            target = path.rpartition(".")[0] + target
        value = self.in_force(target, depth + 1)
        return reference["default"] if value is None else value

    def text(self, word: str) -> str | None:
        """Return a setting as text without Hydra's quotes; None if it is null or has no key."""
        key = self.column.get(word)
        value = self.in_force(key.path) if key else None
        plain = None if value is None else text_of(value).strip("'\"")
        return None if plain in (None, "", "null") else plain

    def number(self, word: str) -> int | float | None:
        """Return a setting as a number; None if it has no value or is no plain number."""
        text = self.text(word)
        try:
            return None if text is None else float(text) if "." in text else int(text)
        except ValueError:
            return None

    def whole(self, word: str) -> int | None:
        """Return a setting as a whole number, or None as `number` does."""
        number = self.number(word)
        return number if isinstance(number, int) else None

    def is_limited(self, word: str) -> bool:
        """Return whether the profile limits a setting, even if the user's value is below the limit."""
        return word in self._limits

    def is_changed(self, word: str) -> bool:
        return any(change.setting == word for change in self.changes)

    def change(self, word: str, new: str | None, why: str, saves: str = "") -> None:
        """Set a setting, or remove it, and record the change; an equal value is no change."""
        key = self.column[word]
        for other in key.instead_of:
            if self.command.get(other) is not None:
                self.changes.append(Change(word, other, str(self.command.get(other)), None, f"now {key.path}"))
                self.command.replace(other, None, added=False)
        value = key.values.get(new, new) if new is not None else None
        # Hydra needs `++` to set a key that the trainer's own config does not list.
        added = key.added if self.values is None or key.is_launcher_option else key.path not in self.values
        self._change_one(word, key.path, value, why, saves, added=added)
        for path in key.also:
            if self.values is None or path in self.values:
                self._change_one(word, path, value, why, "", added=False)

    def _change_one(self, word: str, path: str, new: str | None, why: str, saves: str, *, added: bool) -> None:
        old = text_of(self.in_force(path))
        if new is not None and _same(new, old) and (self.command.get(path) is not None or not added):
            return
        change = Change(word, path, old, new, why, saves)
        earlier = next((n for n, past in enumerate(self.changes) if (past.setting, past.key) == (word, path)), None)
        if earlier is not None:  # it keeps its place, with both reasons
            first = self.changes.pop(earlier)
            change = replace(change, old=first.old, why=f"{first.why}; {why}")
        change = replace(change, saving=saves or counted_saving(word, change.old, new))
        self.command.replace(path, new, added=added)
        if new is None or not _same(new, change.old) or added:
            self.changes.insert(len(self.changes) if earlier is None else earlier, change)


def text_of(value: Any) -> str:
    """Return a value as Hydra's override grammar has it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(text_of, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _same(text: str, other: str) -> bool:
    """Return whether two texts are the same value to Hydra: without quotes, spaces in lists and the case of True."""

    def plain(text: str) -> str:
        text = re.sub(r"['\"\s]", "", text)
        return text.lower() if text.lower() in ("true", "false", "null") else text

    return plain(text) == plain(other)


def counted_saving(word: str, old: str, new: str | None) -> str:
    """Return by which factor a change reduces something; empty if it reduces nothing that is counted."""
    try:
        times = float(old) / float(new or 0)
    except (ValueError, ZeroDivisionError):
        return ""
    return f"{times:.3g} times fewer {_COUNTED[word]}" if word in _COUNTED and times > 1 else ""
