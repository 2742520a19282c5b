"""Options of argparse: those of a command, and those that a source file declares, with their defaults.

No trainer is run or imported.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from raydebug.settings.files import read_bounded
from raydebug.trainers.arguments import Arguments

SOURCE_BYTES_MAX = 1024 * 1024  # train_ppo_ray.py of OpenRLHF 0.11 has 35 KiB, slime's arguments.py 88 KiB
# An option is taken for another one that was misspelled if one letter of so many differs, or only what separates words.
# Megatron's options, which slime's command has too, differ from slime's in more. Source: Megatron-LM
# megatron/training/arguments.py at core_v0.12.0, core_v0.15.0 and d98e8a64.
LETTERS_A_TYPO = 10
# Functions that add an option. Source: argparse; slime 0.3.1 utils/arguments.py:20, which changes one of Megatron's.
_ADDING = ("add_argument", "reset_arg")


class Options(Arguments):
    """The arguments of a command: `--name VALUE`, `--name=VALUE`, or `--name` for a switch. The last one wins.

    Args:
        arguments: the program's own.
        launcher: torchrun's options; trainings with Ray have none.
        of_others: how options begin that another library reads from the same command.
    """

    def __init__(self, arguments: list[str], launcher: list[str], of_others: tuple[str, ...] = ()) -> None:
        super().__init__(arguments, launcher)
        self._of_others = of_others

    def set_keys(self) -> Iterator[str]:
        yield from (name for name, _, _, _ in self._options())

    def get(self, path: str) -> str | None:
        """Return the value of an option, `true` for a switch; None if it is not given."""
        given = [value for name, value, _, _ in self._options() if name == path]
        return given[-1] if given else None

    def replace(self, path: str, value: str | None, *, added: bool) -> None:
        """Set an option where it was, or at the end; None, `null` and a `false` switch remove it."""
        places = [(start, end) for name, _, start, end in self._options() if name == path]
        at = places[0][0] if places else len(self.arguments)
        for start, end in reversed(places):
            del self.arguments[start:end]
        if value not in (None, "null", "false"):
            self.arguments[at:at] = [f"--{path}"] if value == "true" else [f"--{path}", str(value)]

    def mistaken_for(self, path: str, known: Iterable[str]) -> str | None:
        """Return the option that is nearest; None if argparse accepts this one: a known one, or its beginning."""
        names = [name for name in known if not name.startswith(self._of_others)]
        positive = path.removeprefix("no-")  # BooleanOptionalAction adds --no-NAME
        if path.startswith(self._of_others) or any(name.startswith(path) or name == positive for name in names):
            return None
        mine = _letters(path)
        edits = len(mine) // LETTERS_A_TYPO
        near = (name for name in names if abs(len(_letters(name)) - len(mine)) <= edits)
        return next((name for name in near if _differing_letters(mine, _letters(name)) <= edits), None)

    def spelling(self, path: str, nearest: str) -> str:
        """Return how to write an option that was misspelled."""
        return f"write --{nearest}, or leave --{path} out: the program does not read it"

    def _options(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield name, first value, and the start and end of each option in the arguments."""
        starts = [at for at, argument in enumerate(self.arguments) if argument.startswith("--")]
        for at, following in zip(starts, [*starts[1:], len(self.arguments)], strict=True):
            name, sign, value = self.arguments[at].removeprefix("--").partition("=")
            if sign:
                yield name, value, at, at + 1
            else:
                yield name, self.arguments[at + 1] if at + 1 < following else "true", at, following


def _letters(option: str) -> str:
    """Return an option without what separates its words."""
    return re.sub(r"[-_.]", "", option)


def _differing_letters(option: str, other: str) -> int:
    changes = difflib.SequenceMatcher(None, option, other, autojunk=False).get_opcodes()
    return sum(max(a_end - a, b_end - b) for kind, a, a_end, b, b_end in changes if kind != "equal")


def declared_defaults(file: Path) -> dict[str, object]:
    """Return each option that a source file adds to an argparse parser, with its default.

    Raises:
        OSError, SyntaxError, ValueError: the file cannot be read or is no Python.
    """
    options: dict[str, object] = {}
    _collect(ast.parse(read_bounded(file, bytes_max=SOURCE_BYTES_MAX, what="a source")), {}, options)
    return options


def _collect(node: ast.AST, names: Mapping[str, str], options: dict[str, object]) -> None:
    """Collect the calls of add_argument; a loop over a tuple of names is followed."""
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple):
        for element in node.iter.elts:
            if isinstance(element, ast.Constant) and isinstance(element.value, str):
                for statement in node.body:
                    _collect(statement, {**names, node.target.id: element.value}, options)
        return
    if isinstance(node, ast.Call) and (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) in _ADDING:
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        is_switch = isinstance(action := given.get("action"), ast.Constant) and action.value == "store_true"
        for name in (_text(argument, names) for argument in node.args):
            if name is not None and name.startswith("--"):
                options[name.removeprefix("--")] = _value(given.get("default"), missing=False if is_switch else None)
    for child in ast.iter_child_nodes(node):
        _collect(child, names, options)


def _text(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """Return a string constant, or an f-string of known names; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
    texts = [names.get(part.id) if isinstance(part, ast.Name) else _text(part, names) for part in parts]
    return None if None in texts else "".join(text for text in texts if text is not None)


def _value(node: ast.expr | None, *, missing: Any) -> Any:
    """Return a literal, or int() of one; None for anything that only a run can compute."""
    if node is None:
        return missing
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int" and node.args:
        inner = _value(node.args[0], missing=None)
        return int(inner) if isinstance(inner, int | float) else None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
