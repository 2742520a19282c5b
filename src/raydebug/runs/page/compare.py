"""The page of two runs: which took longer, where, and what was different about them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from raydebug.runs.page import facts, words
from raydebug.runs.page.both import LETTERS, curves_section, figures_section, mark, phases_section
from raydebug.runs.page.differences import Difference, find_differences
from raydebug.runs.page.document import Run
from raydebug.runs.page.markup import Markup, tag
from raydebug.runs.page.metrics import charts, metric_names
from raydebug.runs.page.plot import Axis
from raydebug.runs.page.reading import read_run
from raydebug.runs.page.shell import page


def comparison_page(first: Mapping[str, Any], second: Mapping[str, Any], folders: tuple[str, str] = ("", "")) -> str:
    """Return the page that compares two runs.

    Args:
        first: the document of run A.
        second: the document of run B.
        folders: where the folder of each run lies as seen from the page, with a slash at its end.
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
    sign = tag("span", facts.SIGNS.get(run.status, "?"), class_=f"sign {run.status}", aria_hidden="true")
    link = facts.log_link(run, folder)
    return tag(
        "div",
        tag("h2", mark(letter), tag("code", run.id)),
        tag("p", sign, facts.outcome(run)),
        tag("p", words.moment(run.started), [" \N{MIDDLE DOT} ", link] if link else None, class_="note"),
        tag("p", tag("code", shlex.join(run.command)), class_="command short"),
        facts.first_error(run, folder),
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
    by = words.change(first.took_s, second.took_s)
    return f"B took {words.seconds(abs(apart))} {'more' if apart > 0 else 'less'} than A" + (f" ({by})" if by else "")


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
