"""The pauses as lists: summed up by place, and one by one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from raydebug.runs.page import words
from raydebug.runs.page.document import Pause, Run
from raydebug.runs.page.markup import Markup, tag
from raydebug.runs.page.thinning import covered
from raydebug.runs.page.waterfall import spans_of

FEW = 12  # pauses that need no sum
MOST_PLACES = 20
MOST_LISTED = 10_000


def pauses_section(run: Run) -> Markup | None:
    """Return where the run paused, how often and how long; None for a run that never did."""
    if not run.pauses:
        return None
    length = run.length_s
    held = covered(spans_of(run.pauses, length))
    still = [pause for pause in run.pauses if pause.end_s is None]
    told = (
        f"{words.counted(len(run.pauses), 'pause')}; {words.seconds(held)} of {words.seconds(length)} had at least one"
        " process waiting for a debugger."
    )
    if still:
        told += f" {words.counted(len(still), 'pause was', 'pauses were')} never let go."
    every = _list(run.pauses[:MOST_LISTED], length)
    if len(run.pauses) > FEW:
        left_out = len(run.pauses) - MOST_LISTED
        cut = tag("p", f"The first {MOST_LISTED:,} of {len(run.pauses):,}; run.json has all.", class_="note")
        said = f"{'All' if left_out <= 0 else 'Of'} {len(run.pauses):,} pauses, one by one"
        every = tag("details", tag("summary", said), cut if left_out > 0 else None, every)
    places = _places(run.pauses, length) if len(run.pauses) > FEW else None
    return tag("section", tag("h2", "Pauses", id="pauses"), tag("p", told, class_="note"), places, every)


def _places(pauses: Sequence[Pause], length: float) -> list[Markup | None]:
    groups: dict[tuple[str, str, str], list[Pause]] = {}
    for pause in pauses:
        groups.setdefault((pause.where, pause.kind, pause.exception), []).append(pause)
    rows = []
    for (where, kind, exception), same in sorted(groups.items(), key=lambda group: -len(group[1]))[:MOST_PLACES]:
        spans = spans_of(same, length)
        longest = max(end - start for start, end in spans)
        rows.append(_row([
            ("where", tag("code", where)),
            ("kind", _kind(kind, exception)),
            ("count", f"{len(same):,}"),
            ("waited", words.seconds(sum(end - start for start, end in spans))),
            ("longest", words.seconds(longest)),
            ("by", words.counted(len({pause.who for pause in same}), "process", "processes")),
        ]))  # fmt: skip
    left_out = len(groups) - len(rows)
    more = tag("p", f"{words.counted(left_out, 'place')} with fewer are in the list below.", class_="note")
    return [_table("By place", rows, ["where", "kind", "count", "waited in all", "longest", "by"]),
            more if left_out else None]  # fmt: skip


def _list(pauses: Sequence[Pause], length: float) -> Markup:
    rows = [
        _row([
            ("id", pause.id),
            ("where", tag("code", pause.where)),
            ("kind", _kind(pause.kind, pause.exception)),
            ("who", pause.who),
            ("at", words.since_start(pause.start_s)),
            ("waited", _waited(pause, length)),
        ])
        for pause in pauses
    ]  # fmt: skip
    return _table("One by one", rows, ["id", "where", "kind", "who", "at", "waited"])


def _kind(kind: str, exception: str) -> Markup | str:
    return tag("span", tag("span", kind, class_="crash"), f": {exception}") if exception else kind


def _waited(pause: Pause, length: float) -> str | Markup:
    if pause.end_s is None:
        return tag("span", f"{words.seconds(length - pause.start_s)}, not let go", class_="state")
    return words.seconds(pause.end_s - pause.start_s)


def _row(cells: list[tuple[str, Markup | str]]) -> Markup:
    return tag("tr", [tag("td", cell, class_=name) for name, cell in cells])


def _table(caption: str, rows: list[Markup], head: list[str]) -> Markup:
    columns = tag("thead", tag("tr", [tag("th", word, scope="col") for word in head]))
    table = tag("table", tag("caption", caption), columns, tag("tbody", rows), class_="pauses")
    return tag("div", table, class_="wide", tabindex="0", role="region", aria_label=f"pauses, {caption.lower()}")
