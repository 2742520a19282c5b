"""HTML and SVG as values: a plain string is text, always escaped, with its control characters made visible. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

from raydebug.render import visible

Child: TypeAlias = "str | Markup | Iterable[Child] | None"
# https://html.spec.whatwg.org/multipage/syntax.html#void-elements; SVG's shapes are written out with an end tag.
_VOID = frozenset(("meta", "br", "col", "link"))


class Markup(str):
    """A piece of a page that is escaped already; only this module and the page's own CSS and program make one."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Return text of any origin as it may stand in a page."""
    return Markup(html.escape(visible(value, keep="\n"), quote=False))


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return an element.

    Args:
        name: its tag.
        children: text (escaped here), elements, or sequences of both; None is nothing.
        attributes: `class_` is class, `aria_label` is aria-label; None and False leave one out.
    """
    words = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Return children one after the other."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return text(children)
    return Markup("".join(join(child) for child in children))


def number(value: float) -> str:
    """Return a coordinate with no more digits than a screen can show."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def percent(fraction: float) -> str:
    """Return a share of a length, for SVG attributes."""
    return f"{number(100 * fraction)}%"


def _attribute(key: str, value: str | float | bool) -> str:
    if value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    shown = value if isinstance(value, str) else number(value)
    return f' {name}="{html.escape(visible(shown, keep=""))}"'
