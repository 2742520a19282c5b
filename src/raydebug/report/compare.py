"""Two runs side by side: how they ended, how long each phase took, what was configured differently. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raydebug.render import duration
from raydebug.report.plot import peak
from raydebug.report.units import change, mebibytes
from raydebug.report.waterfall import rows_of
from raydebug.runs.record import Run

# Hydra overrides and options: the text before = names a setting, at any position of the command.
_SETTING = re.compile(r"(?P<key>[\w.+~@/-]+)=(?P<value>.*)", re.DOTALL)


def compare(first: Run, second: Run) -> list[list[str]]:
    """Return the rows of a table: what is compared, both values, and the change of a duration; `-` for no value."""
    runs = (first, second)
    phases = [{row.name: row.took_s for row in rows_of(run.phases, run.length_s)} for run in runs]
    gpus = [[peak(gpu.samples) for gpu in run.gpus] for run in runs]
    times = [_times("took", first.took_s, second.took_s), _times("median step", *(run.median_step_s for run in runs))]
    times += [_times(f"phase {name}", *(side.get(name) for side in phases)) for name in {**phases[0], **phases[1]}]
    rows = [
        ["status", first.status, second.status, ""],
        ["first error", *((run.first_error or {}).get("text", "-") for run in runs), ""],
        *times,
        ["steps", *(f"{run.step_count:,}" for run in runs), ""],
        ["pauses", *(f"{len(run.pauses):,}" for run in runs), ""],
        ["memory of a GPU, at most", *(mebibytes(max(peaks, default=None)) for peaks in gpus), ""],
    ]
    rows += [
        [f"{each.group} {each.key}", *("-" if value is None else value for value in (each.first, each.second)), ""]
        for each in find_differences(first, second)
    ]
    return [row for row in rows if row[0] == "status" or row[1] != row[2]]


def _times(name: str, first: float | None, second: float | None) -> list[str]:
    shown = ["-" if value is None else duration(value) for value in (first, second)]
    return [name, *shown, "" if first is None or second is None else change(first, second)]


@dataclass(frozen=True)
class Difference:
    """One difference between two runs."""

    group: str  # command, cluster, profile, changes, lock or variables
    key: str  # empty for words of a command without a name
    first: str | None  # None if it is absent there
    second: str | None


def find_differences(first: Run, second: Run) -> list[Difference]:
    """Return the differences, in the order of the settings in the documents."""
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
