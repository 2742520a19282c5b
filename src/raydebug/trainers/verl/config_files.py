"""The overrides of a command, and verl's version and config from its files: no import of verl, and no Hydra.

The config is read with PyYAML alone: this runs at the start of a driver and for `raydebug run --dry-run`, where Hydra
may not be installed and would cost 0.3 s. It understands what verl's configs use: a `defaults` list with groups,
packages, relative and absolute groups, `optional`, `${...}` of another group's choice, `_self_`, and a search path.
Anything else is NotComposed: the config then counts as unread. Source: Hydra 1.3, "The Defaults List" and "Packages".
`hydra_config` composes with Hydra itself.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydebug.settings.files import decode, read_bounded
from raydebug.settings.flavours import installed_version
from raydebug.trainers.arguments import Arguments
from raydebug.trainers.config import find_program_file, is_file, package_folder
from raydebug.trainers.trainer import Installed, Program

CONFIG_BYTES_MAX = 1024 * 1024  # verl's largest has 45 KiB
FILES_MAX = 200  # verl's config has 40
MAIN_PPO = "verl.trainer.main_ppo"
PACKAGES_MAX = 2  # above a program's folder
LEVELS_MAX = 64  # verl's have 6
TYPO_CLOSENESS = 0.8  # of each part of two keys, for one key to be taken for the other misspelled
_MAIN = re.compile(r"@hydra\.main\((?P<options>.*?)\)[^\n()]*\s*(?=\n\s*(?:@|def |async )|\Z)", re.DOTALL)
_OPTION = re.compile(r"(config_path|config_name)\s*=\s*[\"']([^\"']+)[\"']")
_EXPRESSION = re.compile(r"config_path\s*=\s*([^\s\"'].*?)(?:,\s*(?:config_name|version_base)\s*=|\Z)", re.DOTALL)
_CHOICE = re.compile(r"\$\{([\w./@]+)\}")
_SWEEP = re.compile(r"[^\[\](){}$]+,[^\[\](){}$]+")  # a=1,2 of Hydra's --multirun
_HEADER = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)


class NotComposed(Exception):
    """A config that cannot be read, or not without Hydra."""


class ConfigMissing(NotComposed):
    """A config that names a file which is not there: Hydra does not find it either."""


def read_config(program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
    """Read verl's version and config; Hydra's options in the command select the config."""
    package = program.module.partition(".")[0]
    file = find_program_file(program.module, argv[program.arguments_at - 1], folder, search)
    if file is None:
        return Installed(installed_version(package), None, f"{program.module} is not installed here")
    version = _version_near(file) or installed_version(package)
    if version is None:  # a recipe: the verl that it imports
        verl = find_program_file(MAIN_PPO, MAIN_PPO, folder, search)
        version = (_version_near(verl) if verl else None) or installed_version("verl")
    try:
        command = Overrides(list(argv[program.arguments_at :]))
        main = main_config(file, command)
        folders = main.folders(folder)
        return Installed(version, dict(leaves(compose(main.name, folders, choices_of(command, folders), folder))))
    except (NotComposed, OSError) as failure:
        return Installed(version, None, str(failure))


def _version_near(program: Path) -> str | None:
    """Return the version that a program's own package states. Source: verl setup.py, 0.4 to 0.9: version/version."""
    for package in program.parents[1 : 1 + PACKAGES_MAX]:  # verl/trainer/main_ppo.py, verl/experimental/vla/main_ppo.py
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if version := (package / "version" / "version").read_text(encoding="utf-8").strip()[:40]:
                return version
    return None


@dataclass(frozen=True)
class MainConfig:
    """The config that a program begins with.

    Args:
        name: its file, with or without .yaml.
        folder: of the file.
        more: of --config-dir, as the command has it; searched after the first.
        search: `hydra.searchpath` of the command; searched after those.
    """

    name: str
    folder: Path
    more: str | None = None
    search: tuple[str, ...] = ()

    def folders(self, working_dir: Path) -> list[Path]:
        """Return where configs are looked for, in order."""
        more = [working_dir / self.more] if self.more else []
        return [self.folder, *more, *(_searched(entry, working_dir) for entry in self.search)]


def main_config(file: Path, command: Overrides) -> MainConfig:
    """Return the config that a program names in `@hydra.main`, or a command in its place.

    Raises:
        NotComposed: neither names one.
        OSError: the program cannot be read.
    """
    main = _MAIN.search(file.read_text(encoding="utf-8", errors="replace"))
    options = dict(_OPTION.findall(main["options"])) if main else {}
    name = command.option("--config-name", "-cn") or options.get("config_name")
    if name is None:
        raise NotComposed(f"{file} names no config of Hydra's")
    at = command.option("--config-path", "-cp") or options.get("config_path")
    if at is None:
        expression = _EXPRESSION.search(main["options"]) if main else None
        at = _folder_of(expression[1], file) if expression else "."
    # Relative to the program's file. Source: Hydra 1.3, --config-path
    said = [word.partition("=")[2] for word in command.arguments if key_of(word) == "hydra.searchpath"]
    search = tuple(entry.strip(" '\"") for entry in said[-1].strip("[]").split(",")) if said else ()
    return MainConfig(name, (file.parent / at).resolve(), command.option("--config-dir", "-cd"), search)


def _folder_of(expression: str, file: Path) -> str:
    """Return the folder that an expression of `@hydra.main` names from the program's file on.

    Raises:
        NotComposed: it is another expression.
    """
    above = re.search(r"parents\[(\d+)\]", expression)
    levels = int(above[1]) + 1 if above else len(re.findall(r"\.parent\b|dirname\(", expression))
    if "__file__" not in expression or not 0 < levels < len(file.resolve().parents):
        raise NotComposed(f"the config_path of {file} is not read: {' '.join(expression.split())[:80]}")
    parts = re.findall(r"[/,]\s*[\"']([^\"']+)[\"']", expression)
    return str(file.resolve().parents[levels - 1].joinpath(*parts))


def choices_of(command: Overrides, folders: Sequence[Path]) -> dict[str, str]:
    """Return the overrides that choose a file of a group: `group` or `group@package` -> file."""
    choices = {}
    for argument in command.arguments:
        group = (key_of(argument) or "").partition("@")[0]
        if group and "." not in group and any((place / group).is_dir() for place in folders):
            choices[str(key_of(argument))] = argument.partition("=")[2].strip("'\"")
    return choices


def compose(
    name: str, folders: Sequence[Path], choices: Mapping[str, str], working_dir: Path = Path()
) -> dict[str, Any]:
    """Return a config as nested mappings; references to other values are not resolved.

    Args:
        name: the primary config's file, with or without .yaml.
        folders: of the configs, in the order of the search.
        choices: `group` or `group@package` -> the file that the command line selects.
        working_dir: of the command: a relative `hydra.searchpath` begins there.

    Raises:
        ConfigMissing: a file is missing.
        NotComposed: a file is no YAML, or uses what is not understood.
    """
    composer = _Composer(list(folders), dict(choices), working_dir)
    whole: dict[str, object] = {}
    composer.add(whole, name.removesuffix(".yaml"), group="", package="")
    whole.pop("hydra", None)
    return whole


def leaves(node: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested mappings with its dotted path."""
    for key, value in node.items():
        path = f"{above}.{key}" if above else str(key)
        if isinstance(value, dict) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def _searched(entry: str, working_dir: Path) -> Path:
    """Return the folder of an entry of hydra.searchpath; of a package the one that the command would import."""
    if not entry.startswith("pkg://"):
        return working_dir / entry.removeprefix("file://")
    inner = Path(*entry.removeprefix("pkg://").replace("/", ".").split("."))
    installed = package_folder(inner.parts[0]) if inner.parts else None
    folders = [working_dir / inner, *([installed.parent / inner] if installed else [])]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


class _Composer:
    """Merges files in the order of their defaults lists."""

    def __init__(self, folders: list[Path], choices: dict[str, str], working_dir: Path) -> None:
        self._folders = folders
        self._working_dir = working_dir
        self._asked = choices
        self._chosen: dict[str, str] = {}
        self._files = 0
        self._lost: list[str] = []  # entries of the search path whose package is not installed

    def add(self, whole: dict[str, object], name: str, *, group: str, package: str) -> None:
        """Merge one file and the files of its defaults list into the config at a package."""
        self._files += 1
        if self._files > FILES_MAX:
            raise NotComposed(f"more than {FILES_MAX} configs are merged, {name} among them")
        text, document = self._read(f"{group}/{name}" if group else name)
        if self._files == 1:  # the primary config
            hydra = document.get("hydra")
            more = hydra.get("searchpath") if isinstance(hydra, dict) else None
            if isinstance(more, list):
                searched = [(str(entry), _searched(str(entry), self._working_dir)) for entry in more]
                self._folders += [folder for _, folder in searched]
                self._lost += [entry for entry, place in searched if entry[:6] == "pkg://" and not place.is_dir()]
        header = _HEADER.search(text)
        if header:
            package = "" if header[1] == "_global_" else header[1]
        defaults = document.pop("defaults", [])
        if not isinstance(defaults, list):
            raise NotComposed(f"the defaults of {name} are not a list")
        defaults = list(self._without_overrides(defaults))
        # Without _self_ a config comes after what it names. Source: Hydra 1.1 to 1.3.
        for entry in defaults if "_self_" in defaults else [*defaults, "_self_"]:
            if entry == "_self_":
                _merge(_at(whole, package), document)
            else:
                self._add_default(whole, entry, group, package)

    def _without_overrides(self, defaults: list[Any]) -> Iterator[Any]:
        """Record each `override GROUP: CHOICE`, and yield the other entries."""
        for entry in defaults:
            group = next(iter(entry), "") if isinstance(entry, dict) else ""
            if str(group).startswith("override "):
                self._asked.setdefault(str(group).removeprefix("override ").strip().lstrip("/"), str(entry[group]))
            else:
                yield entry

    def _add_default(self, whole: dict[str, object], entry: Any, group: str, package: str) -> None:
        if isinstance(entry, str):
            # A config of the same group, at the same place.
            file, _, at = entry.partition("@")
            above, _, name = file.removesuffix(".yaml").rpartition("/")
            place = _dotted(package, at) if at else package
            self.add(whole, name, group=_joined(group, above), package=place)
            return
        if not isinstance(entry, dict) or len(entry) != 1:
            raise NotComposed(f"a default that is neither a name nor a group: {entry!r}")
        ((option, choice),) = entry.items()
        words = str(option).split()
        optional = words[0] == "optional"
        inner, _, at = words[-1].partition("@")
        where = _joined(group, inner)
        at = at or inner.removeprefix("/").replace("/", ".")
        place = at.removeprefix("_global_").lstrip(".") if at.startswith("_global_") else _dotted(package, at)
        asked = next((self._asked[key] for key in (f"{where}@{place}", where) if key in self._asked), None)
        choice = choice if asked is None else asked
        if choice in (None, "null"):
            return
        for file in choice if isinstance(choice, list) else [choice]:
            groups = _CHOICE.findall(str(file))
            if other := next((group for group in groups if group not in self._chosen), None):
                raise NotComposed(f"${{{other}}} is not a choice of the defaults list")
            name = _CHOICE.sub(lambda group: self._chosen[group[1]], str(file)).removesuffix(".yaml")
            self._chosen[where] = name
            try:
                self.add(whole, name, group=where, package=place)
            except FileNotFoundError as failure:
                if not optional:
                    raise self._missing(str(failure)) from failure

    def _read(self, name: str) -> tuple[str, dict[str, object]]:
        for folder in self._folders:
            file = folder / f"{name}.yaml"
            if is_file(file):
                return read_yaml(file)
        reason = f"there is no {name}.yaml in {', '.join(map(str, self._folders))}"
        raise FileNotFoundError(reason) if "/" in name else self._missing(reason)

    def _missing(self, reason: str) -> NotComposed:
        if self._lost:
            return NotComposed(f"{reason}; {', '.join(self._lost)} is not installed here")
        return ConfigMissing(reason)


def read_yaml(file: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a config file, and the mapping that it is.

    Raises:
        NotComposed: it is large, nested deeply, has anchors, or is no mapping.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = decode(read_bounded(file, bytes_max=CONFIG_BYTES_MAX, what="a config"))
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            if getattr(event, "anchor", None):
                raise NotComposed(f"{file} has anchors or aliases")  # which may expand to any number of values
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > LEVELS_MAX:  # libyaml's loader calls itself for each: at 40,000 the process would crash
                raise NotComposed(f"{file} has more than {LEVELS_MAX} levels in one another")
        document = yaml.load(text, Loader=loader)  # noqa: S506 - both loaders are the safe one
    except (yaml.YAMLError, ValueError) as failure:
        raise NotComposed(f"{file}: {failure}".splitlines()[0]) from failure
    if document is not None and not isinstance(document, dict):
        raise NotComposed(f"{file} is not a mapping")
    return text, document or {}


def _joined(group: str, inner: str) -> str:
    """Return the group that a defaults list names: relative to its own group, or absolute with a slash."""
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


def _at(whole: dict[str, object], package: str) -> dict[str, object]:
    """Return the mapping at a package; create it if missing."""
    for part in package.split(".") if package else []:
        inner = whole.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = whole[part] = {}
        whole = inner
    return whole


def _merge(into: dict[str, object], new: Mapping[str, object]) -> None:
    for key, value in new.items():
        if isinstance(value, dict):
            old = into.get(key)
            into[key] = inner = old if isinstance(old, dict) else {}
            _merge(inner, value)
        else:
            into[key] = value


class Overrides(Arguments):
    """The arguments of a training. The last override of a key wins, as in Hydra."""

    def set_keys(self) -> Iterator[str]:
        """Yield the key of each override that sets a key without adding it."""
        for argument in self.arguments:
            key = key_of(argument)
            if key is not None and not argument.startswith("+"):
                yield key

    def get(self, path: str) -> str | None:
        """Return the value of a key or of an option of torchrun; None if the command does not give it."""
        if path.startswith("--"):
            option = self._option(path)
            return None if option is None else option[1]
        values = [argument.partition("=")[2] for argument in self.arguments if key_of(argument) == path]
        return values[-1] if values else None

    def replace(self, path: str, value: str | None, *, added: bool) -> None:
        if path.startswith("--"):
            while (option := self._option(path)) is not None:
                at, _, length = option
                del self.launcher[at : at + length]
            if value is not None:
                self.launcher.insert(0, f"{path}={value}")
            return
        is_override = [key_of(argument) is not None or argument.startswith("~") for argument in self.arguments]
        end = len(is_override) - is_override[::-1].index(True) if True in is_override else 0
        kept = [argument for argument in self.arguments[:end] if key_of(argument) != path]
        if value is not None:
            # "++" sets a key whether or not the config has it. Source: Hydra 1.3, override grammar. Overrides stay
            # together: Hydra's argparse accepts none after `a=b --cfg job`.
            kept.append(f"{'++' if added else ''}{path}={value}")
        self.arguments[:] = [*kept, *self.arguments[end:]]

    def is_sweep(self, path: str) -> bool:
        """Return whether a key has several values."""
        return _SWEEP.fullmatch(self.get(path) or "") is not None

    def swept_keys(self) -> list[str]:
        """Return the keys for whose values Hydra's --multirun starts a run each."""
        wanted = "-m" in self.arguments or "--multirun" in self.arguments
        return [key for key in self.set_keys() if self.is_sweep(key)] if wanted else []

    def mistaken_for(self, path: str, known: Iterable[str]) -> str | None:
        """Return the key that is nearest; None if Hydra accepts this one: it exists, is a part or a group."""
        if "." not in path or "@" in path or path.startswith("hydra."):
            return None
        nearest = ""
        for name in known:
            if name == path or name.startswith(f"{path}."):
                return None
            nearest = max(nearest, name, key=lambda key: _closeness(path, key))
        return nearest if _closeness(path, nearest) >= TYPO_CLOSENESS else None

    def spelling(self, path: str, nearest: str) -> str:
        """Return how to write a key that was misspelled."""
        return f"write {nearest}=..., or +{path}=... to add a key of your own"

    def quoted(self, path: Path) -> str:
        """Return a path with Hydra's quotes where it needs them."""
        return as_hydra_reads(path)

    def option(self, *names: str) -> str | None:
        """Return the value of one of Hydra's own options, such as `--config-name`; None if it is not given."""
        for at, argument in enumerate(self.arguments):
            name, sign, value = argument.partition("=")
            if name in names:
                return value if sign else next(iter(self.arguments[at + 1 :]), None)
        return None

    def _option(self, name: str) -> tuple[int, str, int] | None:
        """Return the index of an option of torchrun, its value, and the number of arguments of the two."""
        for at, argument in enumerate(self.launcher):
            option, sign, value = argument.partition("=")
            if option.startswith("--") and option.replace("-", "_") == name.replace("-", "_"):
                return (at, value, 1) if sign else (at, next(iter(self.launcher[at + 1 :]), ""), 2)
        return None


def as_hydra_reads(path: Path) -> str:
    """Quote a path where Hydra's grammar would read more into it than text. Source: Hydra 1.3, override grammar."""
    text = str(path)
    return text if re.fullmatch(r"[\w./~@%+-]+", text) else "'" + text.replace("'", "\\'") + "'"


def key_of(argument: str) -> str | None:
    """Return the key of an override; None for an option, and for a deletion (`~key`)."""
    key, sign, _ = argument.partition("=")
    return key.lstrip("+") if sign and not argument.startswith(("-", "~")) else None


def _closeness(key: str, other: str) -> float:
    """Return the similarity of the least similar parts of two keys: `rollout.n` and `rollout.name` differ."""
    mine, theirs = key.split("."), other.split(".")
    if len(mine) != len(theirs):
        return 0.0
    return min(
        1.0 if a == b else difflib.SequenceMatcher(None, a, b).ratio() for a, b in zip(mine, theirs, strict=True)
    )
