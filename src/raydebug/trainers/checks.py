"""What `raydebug check` knows of a program: which keys name its data and its model; `verl/checks` adds rules."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raydebug.trainers.config import Composed, TrainingConfig, key_in
from raydebug.trainers.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from raydebug.trainers.trainer import Program, Trainer

WORDS = ("model", "tokenizer", "train_data", "val_data", "prompt_column")
# A part of a data set behind its name. Source: EasyR1 b44b311b verl/utils/dataset.py:129 (@SPLIT); OpenRLHF 0.11.0
# datasets/utils.py:39 (@FOLDER); slime 0.3.1 utils/data.py:70 (@[FROM:TO]).
_PART = re.compile(r"@[^/@]*$")


@dataclass(frozen=True)
class FilesRead:
    """Paths that a training reads at its start, as the config has them.

    Args:
        models: folders, or names on the Hub, of the models in use.
    """

    models: list[str]
    data: list[str]


class Checks:
    """A program by its table of keys.

    Args:
        trainer: whose program it is.
        program: its name.
        more: further keys for our setting words, which no profile changes, the newest first.
        words: those of the table's words that are known.

    Attributes:
        keys: raydebug's setting words and the newest keys for them.
        sign: what an argument has before its key.
    """

    def __init__(
        self, trainer: Trainer, program: str, more: Mapping[str, Sequence[str]], words: Collection[str] = WORDS
    ) -> None:
        self._trainer = trainer
        self.sign = "--" if isinstance(trainer.parse([], []), Options) else ""
        self._paths: dict[str, list[str]] = {word: list(paths) for word, paths in more.items()}
        for column in reversed(list(trainer.keys(program).values())):
            for word in words & column.keys():
                self._paths.setdefault(word, []).extend((column[word].path, *column[word].instead_of))
        self.keys: Mapping[str, str] = {word: paths[0] for word, paths in self._paths.items()}

    def keys_of(self, values: Mapping[str, Any]) -> Mapping[str, str]:
        """Return raydebug's setting words and the keys that a config has for them: a fork's may be older ones."""
        return {word: key_in(values, paths) for word, paths in self._paths.items()}

    def compose(self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Composed:
        """Return what the command, else the trainer's own config, says of data and model; see `Trainer.read_config`.

        Raises:
            CannotCompose: the trainer would refuse the command.
        """
        from raydebug.trainers.verl.plain_config import split_unread

        installed = self._trainer.read_config(program, argv, folder=folder, search=search)
        given = self._trainer.parse(argv[program.arguments_at :], [])
        values: dict[str, Any] = {}
        unknown = []
        for word, paths in self._paths.items():
            pairs = [(path, source.get(path)) for source in (given, installed.values or {}) for path in paths]
            path, value = next((pair for pair in pairs if pair[1] not in (None, "null")), ("", None))
            if isinstance(value, str) and split_unread([f"{path}={value}"])[1]:
                unknown.append(f"{path}={value}")
            elif path:
                _set(values, path, list(_data_sets(value)) if word.endswith("_data") else value)
        return Composed(None, values, installed.unread, tuple(unknown))

    def models(self, config: TrainingConfig) -> list[Any]:
        """Return what a config names as its models, as far as it names any."""
        return [config.get("model")]

    def files_read(self, config: TrainingConfig) -> FilesRead:
        """Return the paths and names that a training reads at its start."""
        named = [config.get(word) for word in ("train_data", "val_data")]
        data = [path for paths in named for path in (paths if isinstance(paths, list) else [paths])]
        models = [path for path in self.models(config) if isinstance(path, str) and path]
        return FilesRead(models, [path for path in data if isinstance(path, str)])


def _data_sets(value: Any) -> Iterator[str]:
    """Yield the files and names that a setting has, without the parts that it takes of them."""
    if isinstance(value, str):
        value = value.strip("[]").split(",")
    for source in value if isinstance(value, list) else []:
        if name := _PART.sub("", str(source).strip().strip("'\"")):
            yield name


def _set(values: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        values = values.setdefault(name, {})
    values[last] = value
