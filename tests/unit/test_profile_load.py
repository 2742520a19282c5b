"""Profiles as files: found in a checkout and in a wheel, and of the shape that their reader expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydebug.errors import RaydebugError
from raydebug.profile import load
from raydebug.profile.load import RULE_SECTIONS, SAVINGS, SettingRule, load_profile
from raydebug.settings import files
from raydebug.trainers.registry import columns, words


def test_the_profiles_that_are_shipped() -> None:
    """The profiles are these five."""
    assert load.profile_names() == ["debug", "fast-load", "full", "rollout-only", "train-only"]


def require_rules(sections: dict[str, Any]) -> None:
    for section, rules in sections.items():
        assert section in RULE_SECTIONS
        for word, rule in rules.items():
            assert word in words()
            assert rule.keys() <= {"value", "why", "saves"}
            assert ("value" in rule) is (section != "unset")
            assert isinstance(rule.get("value"), int | float | bool | str | None)
            assert section != "at_most" or type(rule["value"]) is int
            assert rule["why"].strip()
            assert rule.get("saves", "process") in SAVINGS


@pytest.mark.parametrize("name", load.profile_names())
def test_the_shape_of_a_profile(name: str) -> None:
    """Each profile has a summary, known trainers, known words with a value and a reason, and rules no word twice."""
    document = load.read_document(name)
    assert isinstance(document.pop("summary"), str)
    assert set(document.pop("trainers", "").split()) <= columns().keys()
    require_rules(document.pop("cpu", {}))
    require_rules(document)
    rules = load_profile(name).rules
    assert len({(rule.word, rule.only_on) for rule in rules}) == len(rules)


def test_every_profile_is_laid_over_full() -> None:
    """Rules that the cluster or the platform needs for any command are in `full` only, and part of every profile."""
    full = load_profile("full").rules
    assert all(load_profile(name).rules[-len(full) :] == full for name in load.profile_names())


def test_the_rules_of_debug() -> None:
    """`debug` makes two steps, and has rules for a CPU beside those for every platform."""
    profile = load_profile("debug")
    assert (
        SettingRule("steps", "at_most", 2, "the second step shows that the first one's weights came back")
        in profile.rules
    )
    assert {rule.only_on for rule in profile.rules} == {None, "cpu"}


def test_profiles_of_an_installed_package_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel the profiles lie in raydebug/env/profiles; in a checkout two folders up."""
    checkout = tmp_path / "src" / "raydebug" / "settings"
    monkeypatch.setattr(files, "__file__", str(checkout / "files.py"))
    assert load.profiles_folder() == tmp_path / "env" / "profiles"
    installed = tmp_path / "src" / "raydebug" / "env" / "profiles"
    installed.mkdir(parents=True)
    assert load.profiles_folder() == installed


@pytest.mark.parametrize(("name", "nearest"), [("debgu", "debug"), ("../x", "debug"), ("fulll", "full")])
def test_unknown_profile_names_the_known(name: str, nearest: str) -> None:
    """An unknown profile is refused in three lines that list the known ones; a path is no name."""
    with pytest.raises(RaydebugError) as failure:
        load_profile(name)
    assert str(failure.value) == (
        f"error: there is no profile '{name}'\ncause: known are: {', '.join(load.profile_names())}"
        f" (in {load.profiles_folder()})\nfix: --profile {nearest}"
    )
    assert failure.value.exit_code == 2
