"""The settings of one command in our words: what is in force, and what was changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raydebug.profile.command import Command
from raydebug.profile.keys import Column, Key
from raydebug.profile.load import Rule
from raydebug.profile.savings import counted_saving

UNLIMITED = -1  # "no limit" to verl: below every limit, but not small
_DEPTH_MAX = 8
# ${a.b} and ${oc.select:a.b,default}; a leading dot means beside the key itself. Source: OmegaConf 2.3, interpolation.
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?(?P<path>\.?[\w.]+)(?:,(?P<default>[^}]*))?\}")


@dataclass(frozen=True)
class Change:
    """One setting that the profile changed.

    Args:
        setting: our word.
        key: the trainer's key.
        old: what the user's command said, or the trainer's default.
        new: what it says now; None when it was taken out.
        why: the reason.
        saving: what it is expected to save; empty where nobody has measured or counted it.
    """

    setting: str
    key: str
    old: str
    new: str | None
    why: str
    saving: str = ""

    def __str__(self) -> str:
        saving = f"; {self.saving}" if self.saving else ""
        return f"{self.key}: {self.old} -> {'(taken out)' if self.new is None else self.new} ({self.why}{saving})"


@dataclass(frozen=True)
class Missing:
    """A setting of the profile that this trainer has no key for; it is left alone.

    Args:
        setting: our word.
        key: the key that the nearest known version has; None where that has none either.
    """

    setting: str
    key: str | None


@dataclass
class Settings:
    """The settings of a command.

    Args:
        column: our words in the trainer's keys.
        command: its arguments, which change.
        values: its config before any override; None where it was not read, and the column's defaults count.
        elsewhere: words that other versions of this trainer have a key for.
        started_ranks: how many processes train together, where another program has started them already.
    """

    column: Column
    command: Command
    values: Mapping[str, Any] | None = None
    elsewhere: frozenset[str] = frozenset()
    started_ranks: int | None = None
    changes: list[Change] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    _limits: dict[str, Rule] = field(default_factory=dict)
    _defaults: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._defaults = {key.path: key.default for key in self.column.values()}

    def obey(self, rule: Rule) -> None:
        """Do what one line of a profile says, where this training has the setting."""
        if not self._is_here(rule.word):
            return
        if rule.kind == "unset":
            if self.command.get(self.column[rule.word].path) is not None:
                self.change(rule.word, None, rule.why, rule.saves)
        elif rule.kind == "set":
            self.change(rule.word, text_of(rule.value), rule.why, rule.saves)
        else:
            self._limits[rule.word] = rule
            current = self.number(rule.word)
            assert isinstance(rule.value, int | float)
            if current is None or current == UNLIMITED or current > rule.value:
                self.change(rule.word, text_of(rule.value), rule.why, rule.saves)

    def _is_here(self, word: str) -> bool:
        """Tell whether the trainer has a key for a word and uses it; note it where a version lacks the key."""
        key = self.column.get(word)
        if key is not None and not self._in_use(key):
            return False
        if key is not None and self._knows(key.path, added=key.added):
            return True
        if word in self.elsewhere:
            self.missing.append(Missing(word, key.path if key else None))
        return False

    def has(self, word: str) -> bool:
        """Tell whether this training has the part that a setting belongs to, and a key for it."""
        key = self.column.get(word)
        return key is not None and self._in_use(key) and self._knows(key.path, added=key.added)

    def _knows(self, path: str, *, added: bool) -> bool:
        return added or path.startswith("--") or self.values is None or path in self.values

    def _in_use(self, key: Key) -> bool:
        if key.only_with == "critic":
            return self._uses_critic()
        if key.only_with == "whole weights":
            # Source: verl 0.4.1 to 0.9.1 config: lora_rank 0 means no LoRA; 0.8 and later have model.lora.rank too.
            ranks = (self.in_force(f"actor_rollout_ref.model.{key}") for key in ("lora_rank", "lora.rank"))
            return all(rank in (None, 0, "0") for rank in ranks)
        return True

    def _uses_critic(self) -> bool:
        # Source: verl 0.9.1 trainer/ppo/utils.py need_critic: the estimator gae needs one, and gae is the default;
        # critic.enable from 0.6 on. 0.4.1 trainer/ppo/ray_trainer.py:345 asks the estimator alone.
        wanted = str(self.in_force("critic.enable")).lower()
        estimator = str(self.in_force("algorithm.adv_estimator") or "gae").strip("'\"")
        return wanted == "true" or (wanted in ("", "null", "none") and estimator == "gae")

    def in_force(self, path: str, depth: int = 0) -> Any:
        """Return what holds for a key: the command's word as text, else the config's value, references followed."""
        said: Any = self.command.get(path)
        if said is None:
            said = self._default(path)
        reference = _REFERENCE.fullmatch(said) if isinstance(said, str) else None
        if reference is None or depth > _DEPTH_MAX:
            return said
        target = reference["path"]
        if target.startswith("."):
            target = path.rpartition(".")[0] + target
        found = self.in_force(target, depth + 1)
        return reference["default"] if found is None else found

    def _default(self, path: str) -> Any:
        if self.values is not None and path in self.values:
            return self.values[path]
        return self._defaults.get(path)

    def text(self, word: str) -> str | None:
        """Return a setting as text without the quotes that Hydra allows; None when it is null or has no key."""
        key = self.column.get(word)
        found = self.in_force(key.path) if key else None
        plain = None if found is None else text_of(found).strip("'\"")
        return None if plain in (None, "", "null") else plain

    def number(self, word: str) -> int | float | None:
        """Return a setting's number; None when nobody said one, or it is no plain number."""
        said = self.text(word)
        try:
            return None if said is None else float(said) if "." in said else int(said)
        except ValueError:
            return None

    def whole(self, word: str) -> int | None:
        """Return a setting's whole number, or None as `number` does."""
        number = self.number(word)
        return number if isinstance(number, int) else None

    def is_limited(self, word: str) -> bool:
        """Tell whether the profile gives a setting a limit, whether or not the user's own is below it."""
        return word in self._limits

    def is_changed(self, word: str) -> bool:
        """Tell whether a setting is no longer what the user's command said."""
        return any(change.setting == word for change in self.changes)

    def change(self, word: str, new: str | None, why: str, saves: str = "") -> None:
        """Set a setting, or take it out, and note what it was. What says the same already is no change."""
        key = self.column[word]
        for other in key.instead_of:
            if self.command.get(other) is not None:
                self.changes.append(Change(word, other, str(self.command.get(other)), None, f"now {key.path}"))
                self.command.replace(other, None, added=False)
        value = key.values.get(new, new) if new is not None else None
        self._change_one(word, key.path, value, why, saves, added=key.added)
        for path in key.also:
            if self._knows(path, added=False):
                self._change_one(word, path, value, why, "", added=False)

    def _change_one(self, word: str, path: str, new: str | None, why: str, saves: str, *, added: bool) -> None:
        said, held = self.command.get(path), self.in_force(path)
        old = text_of(held)
        if new is not None and _same(new, old) and (said is not None or not added):
            return
        change = Change(word, path, old, new, why, saves)
        earlier = next((n for n, one in enumerate(self.changes) if (one.setting, one.key) == (word, path)), None)
        if earlier is not None:  # it stays at its place, with both reasons
            first = self.changes.pop(earlier)
            change = replace(change, old=first.old, why=f"{first.why}; {why}")
        change = replace(change, saving=saves or counted_saving(word, change.old, new))
        self.command.replace(path, new, added=added)
        if new is None or not _same(new, change.old) or added:
            self.changes.insert(len(self.changes) if earlier is None else earlier, change)


def text_of(value: Any) -> str:
    """Write a value as Hydra reads it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(text_of(one) for one in value)}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _same(one: str, other: str) -> bool:
    """Tell whether Hydra reads two texts as the same value: quotes, spaces in lists and the case of True aside."""

    def plain(text: str) -> str:
        text = re.sub(r"['\"\s]", "", text)
        return text.lower() if text.lower() in ("true", "false", "null") else text

    return plain(one) == plain(other)
