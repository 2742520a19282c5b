"""The colours of the page, for paper and for the dark; tests/unit/test_report.py computes their contrast. Pure.

Text has 4.5:1 on everything that it may stand on, curves and bars 3:1 (WCAG 2.2, 1.4.3 and 1.4.11). The series are told
apart without red beside green, and by a letter as well.
"""

from __future__ import annotations

SERIES = 6  # curves that have a colour of their own; the last one is for all others

LIGHT = {
    "paper": "#ffffff",
    "plot": "#f5f6f8",
    "ink": "#15191f",
    "quiet": "#535c69",
    "line": "#d5d9df",
    "grid": "#e2e5ea",
    "link": "#0b57a4",
    "bad": "#a61b1b",
    "bad-paper": "#fdf1f0",
    "warn": "#7d4e00",
    "good": "#1a6b3c",
    "phase": "#40648f",
    "pause": "#7a3e9d",
    "s1": "#2468a8",
    "s2": "#b45309",
    "s3": "#0f766e",
    "s4": "#9d3c86",
    "s5": "#6b6a12",
    "s6": "#667080",
    "on-series": "#ffffff",
}
DARK = {
    "paper": "#14171c",
    "plot": "#1b1f26",
    "ink": "#e8eaee",
    "quiet": "#a6afbc",
    "line": "#353c47",
    "grid": "#2a303a",
    "link": "#86bdf7",
    "bad": "#ff9d94",
    "bad-paper": "#2b1a1b",
    "warn": "#eab866",
    "good": "#7fd3a0",
    "phase": "#7ea6d6",
    "pause": "#cda0e8",
    "s1": "#6fb0ee",
    "s2": "#f0a259",
    "s3": "#4fc4b4",
    "s4": "#e692cd",
    "s5": "#cfc760",
    "s6": "#9aa5b4",
    "on-series": "#14171c",
}


def variables(colours: dict[str, str]) -> str:
    """Return colours as CSS variables."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def stylesheet() -> str:
    """Return the rules that choose between both; paper is printed on white whatever the screen shows."""
    return (
        f":root{{color-scheme:light dark;{variables(LIGHT)}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
    )
