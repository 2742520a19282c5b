"""The page that compares two runs: which took longer, in which phase, and what was configured differently. Pure."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydebug.render import duration
from raydebug.report import sections, units
from raydebug.report.compare_sections import LETTERS, curves_section, figures_section, mark, phases_section
from raydebug.report.document import Run, read_run
from raydebug.report.metrics import charts, metric_names
from raydebug.report.page import Markup, page, tag
from raydebug.report.plot import Axis


def comparison_page(first: Mapping[str, Any], second: Mapping[str, Any], folders: tuple[str, str] = ("", "")) -> str:
    """Return the page that compares two runs.

    Args:
        first: the document of run A.
        second: the document of run B.
        folders: relative path from the page to the folder of each run, with a final slash.
    """
    runs = [read_run(first), read_run(second)]
    axis = Axis(max(run.length_s for run in runs))
    sections = [
        figures_section(runs),
        _differences(runs),
        phases_section(runs, axis),
        curves_section(runs, axis),
        _metrics(runs),
    ]
    title = f"{runs[0].id} and {runs[1].id} compared"
    return page(title, _head(runs, folders), tag("main", sections))


def _head(runs: Sequence[Run], folders: tuple[str, str]) -> Markup:
    columns = [_column(letter, run, folder) for letter, run, folder in zip(LETTERS, runs, folders, strict=True)]
    return tag("header", tag("p", "raydebug, two runs", class_="kicker"), tag("h1", _verdict(runs)),
               tag("div", columns, class_="pair"))  # fmt: skip


def _column(letter: str, run: Run, folder: str) -> Markup:
    sign = tag("span", sections.SIGNS.get(run.status, "?"), class_=f"sign {run.status}", aria_hidden="true")
    link = sections.log_link(run, folder)
    return tag(
        "div",
        tag("h2", mark(letter), tag("code", run.id)),
        tag("p", sign, sections.outcome(run)),
        tag("p", units.moment(run.started), [" \N{MIDDLE DOT} ", link] if link else None, class_="note"),
        tag("p", tag("code", shlex.join(run.command)), class_="command short"),
        sections.first_error(run, folder),
    )


def _verdict(runs: Sequence[Run]) -> str:
    first, second = runs
    if first.status != second.status:
        return f"A {first.status}, B {second.status}"
    if first.took_s is None or second.took_s is None:
        return f"A and B: {first.status}"
    apart = second.took_s - first.took_s
    if abs(apart) < max(0.01 * first.took_s, 0.1):
        return "B took as long as A"
    by = units.change(first.took_s, second.took_s)
    return f"B took {duration(abs(apart))} {'more' if apart > 0 else 'less'} than A" + (f" ({by})" if by else "")


def _differences(runs: Sequence[Run]) -> Markup:
    found = find_differences(*runs)
    title = tag("h2", "What differs", id="differences")
    if not found:
        return tag("section", title, tag("p", "Nothing that was recorded: command, cluster, profile, changes, lock and"
                   " variables are the same.", class_="note"))  # fmt: skip
    groups = list(dict.fromkeys(one.group for one in found))
    same = [word for word in ("command", "cluster", "profile", "changes", "lock", "variables") if word not in groups]
    note = tag("p", f"The same in both: {', '.join(same)}.", class_="note") if same else None
    lists = [
        [tag("h3", group), tag("ul", [_difference(one) for one in found if one.group == group], class_="differences")]
        for group in groups
    ]
    return tag("section", title, note, lists)


def _difference(one: Difference) -> Markup:
    sides = [
        tag("div", mark(letter), tag("code", value or "(empty)") if value is not None else tag("i", "not there"))
        for letter, value in zip(LETTERS, (one.first, one.second), strict=True)
    ]
    return tag("li", tag("code", one.key, class_="key") if one.key else tag("i", "words", class_="key"), sides)


def _metrics(runs: Sequence[Run]) -> Markup | None:
    names = metric_names([step for run in runs for step in run.steps])
    if not names:
        return None
    note = tag("p", "By step. A is solid, B is dashed.", class_="note")
    return tag("section", tag("h2", "Metrics", id="metrics"), note, charts(names, [run.steps for run in runs]))


# Hydra overrides and options: the text before = names a setting, at any position of the command.
_SETTING = re.compile(r"(?P<key>[\w.+~@/-]+)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Difference:
    """One difference between two runs.

    Args:
        group: command, cluster, profile, changes, lock or variables.
        key: its name; empty for words of a command without a name.
        first: its value in the first run; None if it is absent there.
        second: its value in the second run; None if it is absent there.
    """

    group: str
    key: str
    first: str | None
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
