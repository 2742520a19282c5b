"""Patterns of the shell: what `case`, `[[ ]]`, `${NAME%...}` and the names of files are matched with, in linear time.

A pattern is a text in which a backslash quotes the character behind it.
Source: bash 5.2 manual, "Pattern Matching".
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from raydebug.commands.state import NotFollowed

CHARS_MAX = 4096  # of a text that is matched
FILES_MAX = 4096  # that a pattern becomes, and that a folder may have
_PART = re.compile(r"\\(.)|\[([!^]?)(\]?(?:\[:\w+:\]|\\.|[^]\\[])*)\]|[?*+@!]\(|(.)", re.DOTALL)
_IN_BRACKETS = re.compile(r"\[:\w+:\]|\\(.)|.", re.DOTALL)


def quoted(text: str) -> str:
    """Return the pattern that a text alone matches."""
    return re.sub(r"(.)", r"\\\1", text, flags=re.DOTALL)


def is_pattern(text: str) -> bool:
    """Return whether something in a pattern stands for other characters."""
    return re.search(r"[*?]|\[[^]].*\]|\[\].*\]|[+@!]\(", re.sub(r"\\.", "x", text, flags=re.DOTALL)) is not None


def plain(pattern: str) -> str:
    """Return the text that a pattern without signs matches."""
    return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a whole text."""
    if not is_pattern(pattern):
        return plain(pattern) == text
    return _compiled(pattern).fullmatch(_bounded(text)) is not None


def _bounded(text: str) -> str:
    if len(text) > CHARS_MAX:
        raise NotFollowed("the value is too long to be cut")
    return text


def _compiled(pattern: str, anchor: str = "") -> Any:
    """Return the expression of a pattern, which finds the longest match; `#` holds it at the front, `%` at the end."""
    import re2  # google-re2: 40 ms that scripts without patterns do without

    options = re2.Options()
    options.log_errors, options.longest_match = False, True
    start, end = ("\\A" if anchor == "#" else ""), ("\\z" if anchor == "%" else "")
    try:
        return re2.compile(f"(?s){start}(?:{_regex(pattern)}){end}", options)
    except re2.error as failure:
        raise NotFollowed(str(failure)) from failure


def _regex(pattern: str) -> str:
    """Return a pattern as a regular expression."""
    regex = ""
    for part in _PART.finditer(pattern):
        char, negated, inside, other = part.groups()
        if inside is not None:
            chars = (it[0] if it[0][:2] == "[:" else _in_brackets(it) for it in _IN_BRACKETS.finditer(inside))
            regex += f"[{'^' * bool(negated)}{''.join(chars)}]"
        elif char is None and (other is None or (other == "[" and "]" in pattern[part.end() :])):
            raise NotFollowed
        else:
            regex += {"*": ".*", "?": "."}.get(other or "") or re.escape(char or other)
    return regex


def _in_brackets(char: re.Match[str]) -> str:
    if char[1] is None and char[0] == "-":
        return "-"  # of a range
    text = char[1] or char[0]
    return re.escape(text) if text.isascii() and not text.isalnum() else text


def cut(value: str, sign: str, pattern: str) -> str:
    """Cut off what a pattern matches at the front (`#`) or the end (`%`), the shortest or, doubled, the longest."""
    if not is_pattern(pattern):
        return value.removeprefix(plain(pattern)) if sign[0] == "#" else value.removesuffix(plain(pattern))
    compiled = _compiled(pattern)
    _bounded(value)
    lengths = range(len(value) + 1) if len(sign) == 1 else range(len(value), -1, -1)
    for length in lengths:
        piece = value[:length] if sign[0] == "#" else value[len(value) - length :]
        if compiled.fullmatch(piece):
            return value[length:] if sign[0] == "#" else value[: len(value) - length]
    return value


def replaced(value: str, pattern: str, text: str, *, every: bool) -> str:
    """Return a value with the longest matches of a pattern replaced, as `${NAME/PATTERN/TEXT}`."""
    anchor = pattern[:1] if not every and pattern[:1] in ("#", "%") else ""
    pattern = pattern.removeprefix(anchor)
    if not pattern:
        return text + value if anchor == "#" else value + text if anchor else value
    compiled, done, at = _compiled(pattern, anchor), "", 0
    if not _bounded(value):
        return text if compiled.search(value) else value
    while at < len(value) and (match := compiled.search(value, at)) and match.end() > match.start():
        done += value[at : match.start()] + text
        at = match.end()
        if not every:
            break
    return done + value[at:]


def matching_files(pattern: str, folder: Path) -> list[str]:
    """Return the names of files that a pattern matches, sorted; none if it matches none."""
    paths, steps = [""], re.split(r"\\?/", pattern)
    for number, step in enumerate(steps):
        end, longer = "/" if number < len(steps) - 1 else "", list[str]()
        is_plain, dots = not is_pattern(step), plain(step)[:1] == "."
        expression = None if is_plain else _compiled(step)
        for base in paths:
            names = [plain(step)] if is_plain else _names(folder / base)
            shown = names if is_plain or dots else [name for name in names if name[:1] != "."]
            longer += [base + name + end for name in shown if expression is None or expression.fullmatch(name)]
        paths = [path for path in longer[:FILES_MAX] if os.path.lexists(folder / path)]
    return sorted(paths)


def _names(folder: Path) -> list[str]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names alone, not a Path for each of thousands
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as failure:
        raise NotFollowed(f"{folder} cannot be read") from failure
    if len(names) > FILES_MAX:
        raise NotFollowed(f"{folder} has more than {FILES_MAX} files")
    return names
