"""The whole config of a command as plain values, without Hydra: its files, its overrides, and references resolved.

Nothing is imported or called: `_target_` and resolvers stay text. A key whose value only a run can tell is left out.
Source: Hydra 1.3, "Basic Override syntax" and _internal/config_loader_impl.py _apply_overrides_to_config;
OmegaConf 2.3, "Variable interpolation" and "Resolvers".
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from raydebug.trainers.config import CannotCompose
from raydebug.trainers.verl.config_files import NotComposed, leaves

MISSING = "???"
STEPS_MAX = 20_000  # references that are followed; verl's config has 100
DEPTH_MAX = 16
TEXT_CHARS_MAX = 64 * 1024
# What a script's reader has left as it is written: $NAME, ${NAME}, ${NAME:-x}, $1, $(...), `...`. A reference of
# OmegaConf has a dot or a resolver's colon: ${a.b}, ${oc.env:X}.
_OF_SHELL = re.compile(r"\$\(|`|\$[\w@*#?]|\$\{[!#]?\w+(?:\[[^]]*\])?(?:[-:%#/^,@][^}]*)?\}")
_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~|)(?P<key>[\w./@$:-]+?)(?:=(?P<value>.*))?", re.DOTALL)
_INT, _FLOAT = re.compile(r"[+-]?\d+(_\d+)*"), re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)(e[+-]?\d+)?", re.IGNORECASE)
_RESOLVER = re.compile(r"([\w.]+):")
_OF_YAML = re.compile(r"[+-]?\d+(\.\d*)?e[+-]?\d+", re.IGNORECASE)  # a text to YAML 1.1, a number to OmegaConf


class _Unresolved(Exception):
    """A value that only a run can tell."""


def split_unread(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments that are known, and the overrides whose value a script left to the shell."""
    unread = [word for word in arguments if "=" in word and _OF_SHELL.search(word.partition("=")[2])]
    return [word for word in arguments if word not in unread], unread


def with_overrides(whole: dict[str, Any], arguments: Sequence[str], groups: Sequence[str] = ()) -> None:
    """Apply the overrides of a command to a config, in their order.

    Args:
        whole: nested mappings, which change.
        arguments: of the command; what is no override is passed over.
        groups: the keys that choose a file, which is merged already.

    Raises:
        CannotCompose: Hydra would refuse one of them.
    """
    for argument in arguments:
        override = None if argument.startswith("-") else _OVERRIDE.fullmatch(argument)
        if override is None or (override["value"] is None and override["sign"] != "~"):
            continue
        key = override["key"]
        if key in groups or key.startswith(("hydra.", "hydra/")) or "@" in key or "/" in key:
            continue
        _apply(whole, override["sign"], key, override["value"])


def _apply(whole: dict[str, Any], sign: str, key: str, text: str | None) -> None:
    *above, last = key.split(".")
    node: Any = whole
    for part in above:
        inner = node.get(part)
        if isinstance(inner, str) and "${" in inner:
            return  # the key of a reference: it belongs to another part
        if not isinstance(inner, dict):
            if not sign.startswith("+"):
                raise _no_key(key, whole, sign)
            inner = node[part] = {}
        node = inner
    if sign == "~":
        if last not in node:
            raise _no_key(key, whole, sign)
        del node[last]
        return
    if sign == "" and last not in node:
        raise _no_key(key, whole, sign)
    value = parsed(text or "")
    if sign == "+" and not isinstance(value, dict | list) and node.get(last) not in (None, MISSING):
        raise CannotCompose("ConfigCompositionException", f"Could not append to config. An item is already at '{key}'.")
    old = node.get(last)
    if isinstance(old, dict) and isinstance(value, dict):
        old.update(value)
    else:
        node[last] = value


def _no_key(key: str, whole: Mapping[str, Any], sign: str) -> CannotCompose:
    verb = "delete from config" if sign == "~" else f"override '{key}'"
    return CannotCompose("ConfigKeyError", f"Could not {verb}. Key '{key}' is not in it", tuple(dict(leaves(whole))))


def parsed(text: str) -> Any:
    """Return the value of an override, as Hydra's grammar has it; a text that is none of it stays as it is."""
    reader = _Reader(text.strip())
    try:
        value = reader.value()
    except (IndexError, RecursionError):
        return text
    return value if reader.at == len(reader.text) else text


class _Reader:
    """Reads lists, mappings, quoted texts and plain words."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def value(self) -> Any:
        self._spaces()
        first = self.text[self.at : self.at + 1]
        if first == "[":
            return self._items("]", self.value)
        if first == "{":
            return dict(self._items("}", self._pair))
        if first and first in "'\"":
            return self._quoted(first)
        return self._word(",]}")

    def _items(self, end: str, item: Any) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while True:
            self._spaces()
            if self.text[self.at] == end:
                self.at += 1
                return items
            items.append(item())
            self._spaces()
            if self.text[self.at] == ",":
                self.at += 1
            elif self.text[self.at] != end:
                raise IndexError(self.at)

    def _pair(self) -> tuple[str, Any]:
        quote = self.text[self.at]
        key = self._quoted(quote) if quote in "'\"" else str(self._word(":", plain=False))
        self._spaces()
        if self.text[self.at] != ":":
            raise IndexError(self.at)
        self.at += 1
        return key, self.value()

    def _quoted(self, quote: str) -> str:
        end = self.at + 1
        while self.text[end] != quote:
            end += 2 if self.text[end] == "\\" else 1
        inner, self.at = self.text[self.at + 1 : end], end + 1
        return inner.replace(f"\\{quote}", quote)

    def _word(self, ends: str, *, plain: bool = True) -> Any:
        """Return a word up to one of these, outside of any reference."""
        start, depth = self.at, 0
        while self.at < len(self.text) and (depth or self.text[self.at] not in ends):
            depth += self.text.startswith("${", self.at) - (depth > 0 and self.text[self.at] == "}")
            self.at += 1
        word = self.text[start : self.at].strip()
        return _scalar(word) if plain else word

    def _spaces(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1


def _scalar(word: str) -> Any:
    lower = word.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower == "null":
        return None
    if _INT.fullmatch(word):
        return int(word)
    return float(word) if _FLOAT.fullmatch(word) else word


def resolved(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with its references replaced by values; what cannot be resolved is left out.

    Raises:
        NotComposed: there are too many references.
    """
    return dict(_Resolver(whole).mapping(whole, (), 0))


class _Resolver:
    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._whole, self._steps = whole, 0

    def mapping(self, node: Mapping[str, Any], path: tuple[str, ...], depth: int) -> dict[str, Any]:
        known = {}
        for key, value in node.items():
            with contextlib.suppress(_Unresolved):
                known[str(key)] = self._value(value, (*path, str(key)), depth)
        return known

    def _value(self, value: Any, path: tuple[str, ...], depth: int) -> Any:
        if isinstance(value, Mapping):
            return self.mapping(value, path, depth)
        if isinstance(value, list):
            return [self._value(item, (*path, str(at)), depth) for at, item in enumerate(value)]
        if isinstance(value, str) and "${" in value:
            return self._text(value, path, depth)
        return float(value) if isinstance(value, str) and _OF_YAML.fullmatch(value) else value

    def _text(self, text: str, path: tuple[str, ...], depth: int) -> Any:
        """Return a text with each reference replaced by its value; a reference alone keeps the value's type."""
        if depth > DEPTH_MAX:
            raise _Unresolved(text)
        done = ""
        while (start := text.find("${")) >= 0 and (end := _end_of(text, start)) is not None:
            self._steps += 1
            if self._steps > STEPS_MAX or len(done) > TEXT_CHARS_MAX:
                raise NotComposed(f"{'.'.join(path)} has more references than are followed")
            value = self._reference(text[start + 2 : end].strip(), path, depth)
            if not done and start == 0 and end == len(text) - 1:
                return value
            done, text = f"{done}{text[:start]}{value}", text[end + 1 :]
        return done + text

    def _reference(self, inner: str, path: tuple[str, ...], depth: int) -> Any:
        resolver = _RESOLVER.match(inner)
        if resolver is None:
            return self._at(str(self._text(inner, path, depth + 1)), path, depth)
        first, comma, default = (part.strip() for part in inner[resolver.end() :].partition(","))
        if resolver[1] == "oc.select":
            try:
                value = self._at(first, path, depth)
            except _Unresolved:
                value = None
        elif resolver[1] == "oc.env":
            value = os.environ.get(first)
        else:  # a function of the program
            raise _Unresolved(inner)
        if value is not None or (resolver[1] == "oc.select" and not comma):
            return value
        if not comma:
            raise _Unresolved(inner)
        return self._text(default, path, depth + 1) if "${" in default else parsed(default)

    def _at(self, key: str, path: tuple[str, ...], depth: int) -> Any:
        name = key.lstrip(".")
        dots = len(key) - len(name)
        target = (*path[: len(path) - dots], *name.split(".")) if dots else tuple(name.split("."))
        node: Any = self._whole
        for part in target:
            if isinstance(node, str) and "${" in node:
                node = self._text(node, target, depth + 1)
            if not isinstance(node, Mapping) or part not in node:
                raise _Unresolved(key)
            node = node[part]
        if node == MISSING or depth > DEPTH_MAX:
            raise _Unresolved(key)
        return self._value(node, target, depth + 1)


def _end_of(text: str, start: int) -> int | None:
    """Return where the brace of a reference closes; None if it does not."""
    depth = 0
    for at in range(start + 1, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
    return None
