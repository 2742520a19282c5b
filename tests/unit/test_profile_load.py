"""Profiles as files: found in a checkout and in a wheel, and read strictly."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from raydebug.errors import RaydebugError
from raydebug.profile import load
from raydebug.profile.load import SettingRule, load_profile
from raydebug.settings import files


def refuse(tmp_path: Path, text: str) -> RaydebugError:
    (tmp_path / "mine.yaml").write_bytes(text.encode())
    with pytest.raises(RaydebugError) as failure:
        load_profile("mine", tmp_path)
    assert failure.value.exit_code == 2
    return failure.value


@pytest.mark.parametrize("name", load.profile_names())
def test_the_shipped_profiles_are_read(name: str) -> None:
    """Each profile has a summary, gives a reason for every rule, and no word in it is ruled twice."""
    profile = load_profile(name)
    assert profile.summary
    assert all(rule.why for rule in profile.rules)
    assert len({(rule.word, rule.only_on) for rule in profile.rules}) == len(profile.rules)


def test_the_profiles_that_are_shipped() -> None:
    """The profiles are these five."""
    assert load.profile_names() == ["debug", "fast-load", "full", "rollout-only", "train-only"]


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


def test_unknown_profile_names_the_known(tmp_path: Path) -> None:
    """An unknown profile is refused in three lines that list the known ones."""
    (tmp_path / "debug.yaml").write_text("summary: x")
    (tmp_path / "full.yaml").write_text("summary: x")
    with pytest.raises(RaydebugError) as failure:
        load_profile("debgu", tmp_path)
    assert str(failure.value) == (
        f"error: there is no profile 'debgu'\ncause: known are: debug, full (in {tmp_path})\nfix: --profile debug"
    )
    assert failure.value.exit_code == 2


def test_no_way_out_of_the_folder(tmp_path: Path) -> None:
    """A name with a path in it is no profile."""
    (tmp_path / "x.yaml").write_text("summary: x")
    with pytest.raises(RaydebugError, match="there is no profile"):
        load_profile("../x", tmp_path / "empty")


@pytest.mark.parametrize(
    ("text", "cause", "fix"),
    [
        ("summary: x\nat_mots:\n  steps: {value: 2, why: y}\n", "2: unknown word 'at_mots'", "write 'at_most'"),
        ("at_most:\n  stesp: {value: 2, why: y}\n", "2: unknown word 'stesp'", "write 'steps'"),
        ("set:\n  resume:\n    valu: x\n    why: y\n", "3: unknown word 'valu'", "write 'value'"),
        ("cpu:\n  set:\n    zzzz: {value: 1, why: y}\n", "3: unknown word 'zzzz'", "known are: "),
        (
            "at_most:\n  steps: {value: yes, why: y}\n",
            "2: 'steps' in at_most is not a whole number: True",
            "write a whole",
        ),
        ("at_most:\n  steps: {value: 2}\n", "2: 'steps' has no why", "give the reason"),
        ("set:\n  resume: {value: a, why: y, saves: tim}\n", "2: unknown word 'tim'", "known are: process"),
        ("trainers: ppo sfx\n", "1: unknown word 'sfx'", "write 'sft'"),
        ("set:\n  resume: {why: y}\n", "2: 'resume' has no value", "resume: {value: ..., why: ...}"),
        ("at_most:\n  steps: 2\n", "2: a mapping is expected here", "write `name: value` lines"),
        ("set:\n  resume: {value: [a], why: y}\n", "2: one value is expected here", "write a plain value"),
        ("set:\n  resume: {value: a, why: y}\n  resume: {value: b, why: y}\n", "3: 'resume' is given twice", "keep"),
        ("set: {\n", "2: no YAML: ", "correct the line"),
        ("# nothing\n", "1: it is empty", "write at least"),
        ("", "1: it is empty", "write YAML as plain UTF-8"),
        ("summary: x\n\tset:\n", "2: no YAML: found character '\\t' that cannot start any token", "correct the line"),
        ("summary: x\nset:\r\n", "2: it has a CR line end", "write YAML as plain"),
        ("\ufeffsummary: x\n", "1: it has a byte order mark", "write YAML as plain"),
        ("summary: x\nset: \0\n", "2: it has a NUL byte", "write YAML as plain"),
        ("summary: x\nset: \x01\n", "2: no YAML: special characters are not allowed", "correct the line"),
        ("summary: x\nsummary: y\n", "2: 'summary' is given twice", "keep one"),
        ("summary: x\n[a]: b\n", "2: a word is expected before ':'", "write `name: value`"),
        (
            "set:\n  resume: {value: 2026-02-30, why: y}\n",
            "2: '2026-02-30' is neither a number nor a string",
            "write it in quotes",
        ),
        ("set:\n  resume: {value: !!int abc, why: y}\n", "2: invalid literal for int()", "write a value that can be"),
        (f"at_most:\n  steps: {{value: {'9' * 5000}, why: y}}\n", "2: Exceeds the limit", "write a value"),
        (
            "set:\n  resume: {value: !!python/object:os.system x, why: y}\n",
            "2: 'x' is neither a number nor a string",
            "write it",
        ),
        ("summary: x\n---\nsummary: y\n", "2: no YAML: but found another document", "correct the line"),
        ("summary: &a x\ncpu: *a\n", "1: 'a' is an anchor or an alias", "write the value itself"),
        ("summary: x\nset: " + "[" * 60000, "2: more than 8 levels in one another", "a profile needs four"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(text: str, cause: str, fix: str, tmp_path: Path) -> None:
    """Every fault in a profile is an error with file, line and remedy."""
    failure = refuse(tmp_path, text)
    assert failure.what == "the profile 'mine' cannot be used"
    assert failure.cause.startswith(f"{tmp_path / 'mine.yaml'}:{cause}")
    assert failure.fix.startswith(fix)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{here}: &{here} [{', '.join([f'*{before}'] * 9)}]\n" for before, here in itertools.pairwise("abcdefghi")
)


@pytest.mark.timeout(10)
def test_f50_yaml_bomb(tmp_path: Path) -> None:
    """F50: aliases that would expand to nine to the ninth values are refused at the first, with its line."""
    assert refuse(tmp_path, f"summary: x\n{BOMB}").cause == f"{tmp_path / 'mine.yaml'}:2: 'a' is an anchor or an alias"


@pytest.mark.timeout(10)
def test_f50_files_that_are_no_text(tmp_path: Path) -> None:
    """F50: a file of 1 GB, a loop of links, a pipe, a folder and a byte that is no UTF-8 are refused, exit code 2."""
    file = tmp_path / "mine.yaml"

    def cause() -> str:
        with pytest.raises(RaydebugError) as failure:
            load_profile("mine", tmp_path)
        assert failure.value.exit_code == 2
        return failure.value.cause.removeprefix(f"{file}:")

    with file.open("wb") as sparse:
        sparse.truncate(10**9)
    assert cause() == " it has 1000000000 bytes, more than the 65536 that a profile may have"
    file.unlink()
    file.symlink_to(file)
    assert cause() == " Too many levels of symbolic links"
    file.unlink()
    os.mkfifo(file)
    assert cause() == " it is not a regular file"
    file.unlink()
    file.mkdir()
    assert cause() == " Is a directory"
    file.rmdir()
    file.write_bytes(b"summary: x\nset: \xff\n")
    assert cause() == "2: byte 0xff is not UTF-8"
