"""Compose a trainer's config from its YAML files as Hydra does, with PyYAML alone and without running anything of it.

What is understood is what verl's configs use: a `defaults` list with groups, packages, relative and absolute groups,
`optional`, `${...}` of another group's choice, `_self_`, and a search path. Anything else is NotComposed: the config
then counts as unread, and nothing is guessed. Source: Hydra 1.3, "The Defaults List" and "Packages".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydebug.profile.places import is_file

CONFIG_BYTES_MAX = 1024 * 1024  # verl's largest has 45 KiB
DEPTH_MAX = 16
_CHOICE = re.compile(r"\$\{([\w./@]+)\}")
_HEADER = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)


class NotComposed(Exception):
    """A config that cannot be read without Hydra, or at all; its message says why."""


def compose(name: str, folders: Sequence[Path], choices: Mapping[str, str]) -> dict[str, Any]:
    """Return a config, every key by its dotted path; a value that refers to another is left as it is written.

    Args:
        name: the primary config's file, with or without .yaml.
        folders: where configs are looked for, in order.
        choices: `group` or `group@package` -> the file that the command line chooses.

    Raises:
        NotComposed: a file is missing, is no YAML, or uses what is not understood.
    """
    composer = _Composer(list(folders), dict(choices))
    whole: dict[str, Any] = {}
    composer.add(whole, name.removesuffix(".yaml"), group="", package="", depth=0)
    whole.pop("hydra", None)
    return dict(_leaves(whole))


def _leaves(node: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        path = f"{above}.{key}" if above else str(key)
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


class _Composer:
    """Merges files in the order of their defaults lists."""

    def __init__(self, folders: list[Path], choices: dict[str, str]) -> None:
        self._folders = folders
        self._asked = choices
        self._chosen: dict[str, str] = {}

    def add(self, whole: dict[str, Any], name: str, *, group: str, package: str, depth: int) -> None:
        """Merge one file, and what its defaults list names, into the config at a package."""
        if depth > DEPTH_MAX:
            raise NotComposed(f"more than {DEPTH_MAX} configs name one another, {name} among them")
        text, document = self._read(f"{group}/{name}" if group else name)
        if depth == 0:
            hydra = document.get("hydra")
            path = hydra.get("searchpath") if isinstance(hydra, dict) else None
            self._folders += [
                Path(str(entry).removeprefix("file://")) for entry in path or () if isinstance(path, list)
            ]
        header = _HEADER.search(text)
        if header:
            package = "" if header[1] == "_global_" else header[1]
        defaults = document.pop("defaults", [])
        if not isinstance(defaults, list):
            raise NotComposed(f"the defaults of {name} are no list")
        defaults = list(self._without_overrides(defaults))
        # Without _self_ a config comes after what it names. Source: Hydra 1.1 to 1.3.
        for entry in defaults if "_self_" in defaults else [*defaults, "_self_"]:
            if entry == "_self_":
                _merge(_at(whole, package), document)
            else:
                self._add_default(whole, entry, group, package, depth)

    def _without_overrides(self, defaults: list[Any]) -> Iterator[Any]:
        """Note what `override GROUP: CHOICE` chooses for the configs that are named beside it, and yield these."""
        for entry in defaults:
            said = next(iter(entry), "") if isinstance(entry, dict) else ""
            if str(said).startswith("override "):
                self._asked.setdefault(str(said).removeprefix("override ").strip().lstrip("/"), str(entry[said]))
            else:
                yield entry

    def _add_default(self, whole: dict[str, Any], entry: Any, group: str, package: str, depth: int) -> None:
        if isinstance(entry, str):
            # A config of the same group, at the same place.
            file, _, at = entry.partition("@")
            above, _, name = file.rpartition("/")
            place = _dotted(package, at) if at else package
            self.add(whole, name, group=_joined(group, above), package=place, depth=depth + 1)
            return
        if not isinstance(entry, dict) or len(entry) != 1:
            raise NotComposed(f"a default that is neither a name nor a group: {entry!r}")
        ((said, choice),) = entry.items()
        words = str(said).split()
        optional = words[0] == "optional"
        inner, _, at = words[-1].partition("@")
        where = _joined(group, inner)
        at = at or inner.removeprefix("/").replace("/", ".")
        place = at.removeprefix("_global_").lstrip(".") if at.startswith("_global_") else _dotted(package, at)
        asked = next((self._asked[key] for key in (f"{where}@{place}", where) if key in self._asked), None)
        choice = choice if asked is None else asked
        if choice in (None, "null"):
            return
        for one in choice if isinstance(choice, list) else [choice]:
            name = _CHOICE.sub(lambda found: self._choice(found[1]), str(one))
            self._chosen[where] = name
            try:
                self.add(whole, name, group=where, package=place, depth=depth + 1)
            except FileNotFoundError as failure:
                if not optional:
                    raise NotComposed(str(failure)) from failure

    def _choice(self, group: str) -> str:
        if group not in self._chosen:
            raise NotComposed(f"${{{group}}} is no choice of the defaults list")
        return self._chosen[group]

    def _read(self, name: str) -> tuple[str, dict[str, Any]]:
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        for folder in self._folders:
            file = folder / f"{name}.yaml"
            if is_file(file):
                break
        else:
            if "/" in name:
                raise FileNotFoundError(f"there is no {name}.yaml in {', '.join(map(str, self._folders))}")
            raise NotComposed(f"there is no {name}.yaml in {', '.join(map(str, self._folders))}")
        if file.stat().st_size > CONFIG_BYTES_MAX:
            raise NotComposed(f"{file} has more than {CONFIG_BYTES_MAX} bytes")
        try:
            text = file.read_text(encoding="utf-8")
            if any(getattr(event, "anchor", None) for event in yaml.parse(text, Loader=loader)):
                raise NotComposed(f"{file} has anchors or aliases")  # which may stand for any number of values
            document = yaml.load(text, Loader=loader)  # noqa: S506 - both loaders are the safe one
        except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as failure:
            raise NotComposed(f"{file}: {failure}".splitlines()[0]) from failure
        if document is not None and not isinstance(document, dict):
            raise NotComposed(f"{file} is no mapping")
        return text, document or {}


def _joined(group: str, inner: str) -> str:
    """Return a group that a defaults list of another group names: relative to it, or from the top with a slash."""
    if inner.startswith("/"):
        return inner[1:]
    parts = group.split("/") if group else []
    for part in inner.split("/") if inner else []:
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return "/".join(parts)


def _dotted(package: str, at: str) -> str:
    return f"{package}.{at}" if package else at


def _at(whole: dict[str, Any], package: str) -> dict[str, Any]:
    """Return the mapping at a package, made where it is missing."""
    for part in package.split(".") if package else []:
        inner = whole.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = whole[part] = {}
        whole = inner
    return whole


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, dict):
            into[key] = {}
            _merge(into[key], value)
        else:
            into[key] = value
