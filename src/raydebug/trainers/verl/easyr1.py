"""EasyR1's training, `verl.trainer.main`: verl's first fork with a config of its own, of dataclasses and one YAML file.

Its arguments are OmegaConf's: `config=FILE key=value`. Source: EasyR1 b44b311b verl/trainer/main.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydebug.settings.files import read_bounded
from raydebug.settings.flavours import installed_version
from raydebug.trainers.config import find_program_file
from raydebug.trainers.trainer import Installed, Program

_ROOT = "PPOConfig"  # the dataclass of the whole config
_VERSION = re.compile(r"^__version__ = [\"'](\d+(?:\.\d+)+)", re.MULTILINE)
SOURCE_BYTES_MAX, FILES_MAX = 256 * 1024, 100


def read_config(program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
    """Read EasyR1's version, the defaults of its dataclasses, and the YAML file that the command names."""
    package = program.module.partition(".")[0]
    file = find_program_file(program.module, argv[program.arguments_at - 1], folder, search)
    if file is None:
        return Installed(installed_version(package), None, f"{program.module} is not installed here")
    root = file.parent.parent
    try:
        stated = _VERSION.search(_text(root / "__init__.py"))
        version = stated[1] if stated else None
    except (OSError, ValueError):
        version = None
    try:
        values = dict(declared_fields(root))
        named = [argument.partition("=")[2] for argument in argv[program.arguments_at :] if argument[:7] == "config="]
        if named:
            values |= _leaves(folder / named[-1])
        return Installed(version, values)
    except (OSError, SyntaxError, ValueError, RecursionError) as failure:
        return Installed(version, None, str(failure))


def declared_fields(package: Path) -> Iterator[tuple[str, Any]]:
    """Yield each key of the config's dataclasses with its default; nothing is imported.

    Raises:
        OSError, SyntaxError, ValueError: a source cannot be read, or has no such dataclass.
    """
    classes: dict[str, list[ast.AnnAssign]] = {}
    sources = [package / "trainer" / "config.py", *sorted(package.glob("workers/**/config.py"))]
    for source in sources[:FILES_MAX]:
        for node in ast.parse(_text(source)).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = [it for it in node.body if isinstance(it, ast.AnnAssign)]
    if _ROOT not in classes:
        raise ValueError(f"{package} has no dataclass {_ROOT}")
    yield from _fields(_ROOT, "", classes)


def _fields(name: str, above: str, classes: Mapping[str, list[ast.AnnAssign]]) -> Iterator[tuple[str, Any]]:
    for declared in classes[name]:
        path = f"{above}{ast.unparse(declared.target)}"
        kind = ast.unparse(declared.annotation)
        if kind in classes:
            yield from _fields(kind, f"{path}.", classes)
        elif "init=False" not in (ast.unparse(declared.value) if declared.value else ""):  # not the user's to set
            try:
                yield path, ast.literal_eval(declared.value) if declared.value else None
            except ValueError:  # field(default_factory=...)
                yield path, None


def _leaves(file: Path) -> dict[str, Any]:
    """Return the keys of a YAML file.

    Raises:
        OSError, ValueError: it cannot be read, or is no mapping.
    """
    import yaml

    from raydebug.trainers.verl.config_files import NotComposed, leaves, read_yaml

    try:
        return dict(leaves(read_yaml(file)[1]))
    except (NotComposed, yaml.YAMLError) as failure:
        raise ValueError(str(failure)) from failure


def _text(file: Path) -> str:
    return read_bounded(file, bytes_max=SOURCE_BYTES_MAX, what="a source").decode("utf-8", "replace")
