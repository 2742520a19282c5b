"""The page around its sections: one file, nothing fetched, nothing run but its own program. Pure."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from importlib.resources import files
from typing import Any

import raydebug
from raydebug.runs.page import colours
from raydebug.runs.page.markup import Child, Markup, join, tag


@functools.cache
def _parts() -> tuple[str, str]:
    """Return the page's CSS and its program, which are package data."""
    folder = files("raydebug.runs.page")
    style = colours.stylesheet() + (folder / "page.css").read_text(encoding="utf-8")
    return style, (folder / "page.js").read_text(encoding="utf-8")


def policy() -> str:
    """Return what the page may do: use its own style and its own program, known by their hashes, and nothing else.

    Source: https://www.w3.org/TR/CSP3/#match-element-to-source-list
    """
    style, program = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in _parts())
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{program}'; base-uri 'none';"
        " form-action 'none'; require-trusted-types-for 'script'"
    )


def page(title: str, *body: Child, data: dict[str, Any] | None = None) -> str:
    """Return a whole page.

    Args:
        title: of the window.
        body: what it shows; complete without the program.
        data: what the program reads.
    """
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
    told = Markup(f'<script type="application/json" id="data">{as_script_data(data or {})}</script>')
    scripts = [told, Markup(f"<script>{program}</script>")] if data is not None else None
    return f'<!doctype html>\n<html lang="en">{tag("head", head)}{tag("body", join(body), foot, scripts)}</html>\n'


def as_script_data(data: Any) -> str:
    """Return JSON that no browser takes for the end of its script, or for anything but text."""
    shown = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return shown.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
