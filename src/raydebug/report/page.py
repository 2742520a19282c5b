"""HTML and SVG as values, and the page around them. Pure.

A plain string is text: it is always escaped, with control characters made visible. The page is one file that fetches
nothing and runs only its own program. Text has a contrast of 4.5:1 on every background that it can have, curves and
bars 3:1 (WCAG 2.2, 1.4.3 and 1.4.11); tests/unit/test_report.py computes both. The series differ without red beside
green, and also by a letter.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import zip_longest
from typing import TypeAlias

import raydebug
from raydebug.render import visible

Child: TypeAlias = "str | Markup | Iterable[Child] | None"
# https://html.spec.whatwg.org/multipage/syntax.html#void-elements; SVG's shapes are written out with an end tag.
_VOID = frozenset(("meta", "br", "col", "link"))


class Markup(str):
    """A piece of a page that is escaped already; made only here and from the page's own CSS and program."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Return text of any origin, escaped."""
    return Markup(html.escape(visible(value, keep="\n"), quote=False))


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return an element; text in it is escaped here. `aria_label` is aria-label; None and False are skipped."""
    words = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Return the concatenated children."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return text(children)
    return Markup("".join(join(child) for child in children))


def section(title: str, *parts: Child, id: str | None = None, note: Child = None) -> Markup:  # noqa: A002 - HTML's word
    """Return a section below its title and a note on what it shows."""
    return tag("section", tag("h2", title, id=id), tag("p", note, class_="note") if note is not None else None, *parts)


def span(class_: str, *children: Child) -> Markup:
    """Return a span with a class."""
    return tag("span", *children, class_=class_)


def table_row(*cells: Child, classes: Sequence[str] = ()) -> Markup:
    """Return a row of a table; a class may be given for each cell."""
    return tag("tr", [tag("td", cell, class_=class_) for cell, class_ in zip_longest(cells, classes)])


def facts(pairs: Iterable[tuple[Child, str]], class_: str = "facts") -> Markup | None:
    """Return names with their values as a list; None if there are none."""
    rows = [tag("div", tag("dt", name), tag("dd", tag("code", value))) for name, value in pairs]
    return tag("dl", rows, class_=class_) if rows else None


def wide_table(label: str, class_: str, head: Sequence[str], rows: Child, *, caption: str | None = None) -> Markup:
    """Return a table that scrolls by itself where it is wider than the page; `head` has a word for each column."""
    words = [tag("th", word, scope="col") for word in head]
    above = None if caption is None else tag("caption", caption)
    table = tag("table", above, tag("thead", tag("tr", words)), tag("tbody", rows), class_=class_)
    return tag("div", table, class_="wide", tabindex="0", role="region", aria_label=label)


def number(value: float) -> str:
    """Return a coordinate with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def percent(fraction: float) -> str:
    """Return a fraction as a percentage, for SVG attributes."""
    return f"{number(100 * fraction)}%"


def _attribute(key: str, value: str | float | bool) -> str:
    if value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    shown = value if isinstance(value, str) else number(value)
    return f' {name}="{html.escape(visible(shown, keep=""))}"'


@functools.cache
def _parts() -> tuple[str, str]:
    """Return the CSS and the program of the page, which are package data."""
    folder = files("raydebug.report")
    light, dark = ("".join(f"--{name}:{value};" for name, value in scheme.items()) for scheme in (LIGHT, DARK))
    # Print is always light.
    style = f":root{{color-scheme:light dark;{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    style += (folder / "page.css").read_text(encoding="utf-8")
    return style, (folder / "page.js").read_text(encoding="utf-8")


def policy() -> str:
    """Return the Content-Security-Policy: only the page's own style and program, by their hashes.

    Source: https://www.w3.org/TR/CSP3/#match-element-to-source-list
    """
    style, program = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in _parts())
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{program}'; base-uri 'none';"
        " form-action 'none'; require-trusted-types-for 'script'"
    )


def page(title: str, *body: Child, data: Mapping[str, object] | None = None) -> str:
    """Return a whole page: title of the window, content, and the input of the program; without input no program."""
    style, program = _parts()
    head = [
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"raydebug {raydebug.__version__}"),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    ]
    foot = tag("footer", f"Made by raydebug {raydebug.__version__}. This file fetches nothing and sends nothing.")
    shown = json.dumps(data or {}, separators=(",", ":"), allow_nan=False)  # and nothing in it ends its element
    shown = shown.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    embedded = Markup(f'<script type="application/json" id="data">{shown}</script>')
    scripts = [embedded, Markup(f"<script>{program}</script>")] if data is not None else None
    return f'<!doctype html>\n<html lang="en">{tag("head", head)}{tag("body", join(body), foot, scripts)}</html>\n'


SERIES = 6  # curves with a colour of their own; the last one is for all others

COLOURS = {  # in the light scheme, in the dark one
    "paper": ("#ffffff", "#14171c"),
    "plot": ("#f5f6f8", "#1b1f26"),
    "ink": ("#15191f", "#e8eaee"),
    "quiet": ("#535c69", "#a6afbc"),
    "line": ("#d5d9df", "#353c47"),
    "grid": ("#e2e5ea", "#2a303a"),
    "link": ("#0b57a4", "#86bdf7"),
    "bad": ("#a61b1b", "#ff9d94"),
    "bad-paper": ("#fdf1f0", "#2b1a1b"),
    "warn": ("#7d4e00", "#eab866"),
    "good": ("#1a6b3c", "#7fd3a0"),
    "phase": ("#40648f", "#7ea6d6"),
    "pause": ("#7a3e9d", "#cda0e8"),
    "s1": ("#2468a8", "#6fb0ee"),
    "s2": ("#b45309", "#f0a259"),
    "s3": ("#0f766e", "#4fc4b4"),
    "s4": ("#9d3c86", "#e692cd"),
    "s5": ("#6b6a12", "#cfc760"),
    "s6": ("#667080", "#9aa5b4"),
    "on-series": ("#ffffff", "#14171c"),
}
LIGHT, DARK = ({name: both[scheme] for name, both in COLOURS.items()} for scheme in (0, 1))
