"""What differs between two runs in what was asked for: command, cluster, changes, lock, variables. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raydebug.runs.page.document import Run

# verl's and Hydra's overrides, and options: what stands before = names a setting, wherever it stands in the command.
_SETTING = re.compile(r"(?P<key>[\w.+~@/-]+)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in two runs.

    Args:
        group: command, cluster, profile, changes, lock or variables.
        key: its name; empty for words of a command that have none.
        first: what it is in the first run; None where that has no such thing.
        second: what it is in the second.
    """

    group: str
    key: str
    first: str | None
    second: str | None


def find_differences(first: Run, second: Run) -> list[Difference]:
    """Return what differs, in the order in which a user chose it."""
    found = _commands(first.command, second.command)
    found += _values("cluster", first.cluster, second.cluster)
    found += _values("profile", {"profile": first.profile or "none"}, {"profile": second.profile or "none"})
    found += _values("changes", _changes(first), _changes(second))
    found += _values("lock", first.lock, second.lock)
    return found + _values("variables", first.variables, second.variables)


def _changes(run: Run) -> dict[str, str]:
    return {change.key: f"{change.old} \N{RIGHTWARDS ARROW} {change.new}" for change in run.changes}


def _commands(first: Sequence[str], second: Sequence[str]) -> list[Difference]:
    plain = [[word for word in command if not _SETTING.fullmatch(word)] for command in (first, second)]
    found = []
    matcher = difflib.SequenceMatcher(a=plain[0], b=plain[1], autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        if kind != "equal":
            sides = plain[0][start:end], plain[1][other_start:other_end]
            found.append(Difference("command", "", *(" ".join(side) if side else None for side in sides)))
    settings = [{match["key"]: match["value"] for word in command if (match := _SETTING.fullmatch(word))}
                for command in (first, second)]  # fmt: skip
    return found + _values("command", *settings)


def _values(group: str, first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    pairs = ((key, first.get(key), second.get(key)) for key in dict.fromkeys([*first, *second]))
    return [Difference(group, key, *sides) for key, *sides in pairs if sides[0] != sides[1]]
