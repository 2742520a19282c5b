"""Find the training commands that a command runs, itself or by a shell script, without running anything.

`check` and `run --dry-run` need it; `run` uses what it finds, and runs without.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raydebug.commands.statements import SHELLS, Choices, Statements, read_script
from raydebug.commands.tokens import Unreadable, read_tokens
from raydebug.commands.values import Values
from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.files import NotPlainText
from raydebug.trainers.config import is_file
from raydebug.trainers.registry import recognise, started_by
from raydebug.trainers.trainer import Program

NESTED_AT_MOST = 4
_PART_OF_PYTHON = ("pip", "venv", "http.server", "json.tool")
READINGS_MAX = 16  # of a script, with other branches
LAUNCHERS = ("accelerate", "deepspeed")
_TALK = ("echo", "printf", "cat", "grep", "sed", "awk", "tee", "type", "which")  # a training in its words is none


@dataclass(frozen=True)
class Training:
    """A training command that was found.

    Args:
        argv: the command as it would run; what could not be read is left as it is written.
        program: the trainer's program that it runs.
        environ: the environment that it would run in, as far as it was read.
        folder: where it would run.
        notes: what of it could not be read, and why.
        is_variant: whether it runs in place of another one, by a condition that was not decided.
    """

    argv: list[str]
    program: Program
    environ: dict[str, str]
    folder: Path
    notes: list[str] = field(default_factory=list)
    is_variant: bool = False

    def as_variant(self, said: set[str]) -> Training:
        """Return it as one that runs only if these conditions are so."""
        return replace(self, notes=sorted({*self.notes, *said}), is_variant=True)


@dataclass(frozen=True)
class Reading:
    """A command, and the training commands that it runs, itself or by a shell script, in their order.

    Args:
        command: the words of the command.
        trainings: as far as its script was read.
        unreadable: why a script cannot be read; None if it was.
    """

    command: list[str]
    trainings: list[Training]
    unreadable: RaydebugError | None = None

    @property
    def python_path(self) -> list[str]:
        """The folders that its trainings have in PYTHONPATH."""
        entries = [entry for it in self.trainings for entry in it.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return [entry for entry in dict.fromkeys(entries) if entry]


def find_trainings(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> list[Training]:
    """Return the training commands that a command runs, itself or by a shell script, in their order.

    Raises:
        RaydebugError: a script cannot be read.
    """
    return _follow(command, environ, folder).trainings


def other_programs(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> list[str]:
    """Return the Python programs that a command runs and that are no known trainings, for an error about it."""
    return list(dict.fromkeys(_follow(command, environ, folder).others))


def _follow(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> _Follower:
    follower = _Follower(dict(environ), folder)
    follower.run(list(command), frozenset())
    return follower


def read_command(command: list[str], environ: Mapping[str, str], folder: Path) -> Reading:
    """Return what `find_trainings` does; a script that cannot be read has no trainings."""
    try:
        return Reading(command, find_trainings(command, environ, folder))
    except RaydebugError as failure:
        return Reading(command, [], failure)


class _Follower:
    """Follows commands; a script that it names is read in turn."""

    def __init__(self, environ: dict[str, str], folder: Path, depth: int = 0) -> None:
        self.trainings: list[Training] = []
        self.others: list[str] = []  # Python programs that are no known trainings
        self._environ = environ
        self._folder = folder
        self._depth = depth

    def run(self, argv: list[str], notes: frozenset[str]) -> None:
        """Follow one command: a training is noted, a shell's script is read."""
        if training := self._training_in(argv):
            start, program = training
            environ = _environ_of(argv[: len(argv) - len(start)], self._environ)
            self.trainings.append(Training(start, program, environ, self._folder, sorted(notes)))
            return
        for at, word in enumerate(argv):
            if Path(word).name in SHELLS:
                self._environ = _environ_of(argv[:at], self._environ)
                self._shell(argv[at + 1 :], notes)
                return
            if at == 0 and "/" in word and word.endswith(".sh"):
                self._script(word, argv[1:], notes)
                return

    def _training_in(self, argv: list[str]) -> tuple[list[str], Program] | None:
        """Return a training from its interpreter or launcher on: env, nohup, uv run and the like may precede it."""
        if not argv or Path(argv[0]).name in _TALK:
            return None
        search = ["", *self._environ.get("PYTHONPATH", "").split(os.pathsep)]
        for start in _starts(argv):
            if program := recognise(start, folder=self._folder, search=search):
                return start, program
            module = started.module if (started := started_by(start)) else ""
            if module and not module.endswith(_PART_OF_PYTHON):
                self.others.append(module)
        # A console script: Python gets it as a file.
        is_name = "=" not in argv[0] and not argv[0].startswith("-")
        is_script = is_name and not any(Path(word).name in SHELLS or word.endswith(".sh") for word in argv)
        program = recognise(["python", *argv]) if is_script and not any(_starts(argv)) else None
        return (["python", *argv], program) if program else None

    def _shell(self, arguments: list[str], notes: frozenset[str]) -> None:
        while arguments and arguments[0].startswith(("-", "+")):
            option = arguments.pop(0)
            if option.startswith("-") and not option.startswith("--") and "c" in option:
                if self._depth >= NESTED_AT_MOST:
                    return
                text, name, *rest = [*arguments, "", ""]
                self._read(text, name or "bash", [word for word in rest if word], notes)
                return
            if option in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
                del arguments[:1]
        if arguments:
            self._script(arguments[0], arguments[1:], notes)

    def _script(self, name: str, arguments: list[str], notes: frozenset[str]) -> None:
        file = self._folder / name
        if self._depth >= NESTED_AT_MOST or (self._depth and not is_file(file)):
            return
        try:
            text, doubts = read_script(file)
        except NotPlainText as failure:
            raise _cannot_read(file, failure.line, failure.cause) from failure
        first = text.partition("\n")[0]
        if first.startswith("#!") and not any(shell in first for shell in SHELLS):
            return
        try:
            self._read(text, str(file), arguments, notes | doubts)
        except Unreadable as failure:
            raise _cannot_read(file, failure.line, failure.why) from failure

    def _read(self, text: str, name: str, arguments: list[str], notes: frozenset[str]) -> None:
        """Read a script; where a condition is not decided, once more for each of its other branches."""
        tokens = read_tokens(text)
        waiting: list[Mapping[str, int]] = [{}]
        first: Mapping[str, tuple[int, int]] = {}
        kept, outer = list[Training](), self.trainings
        for asked in waiting:  # which grows
            choices, self.trainings = Choices(asked), []
            values = Values(dict(self._environ), name, list(arguments), self._folder, set(notes))
            Statements(values, self._inside, choices).read(tokens)
            found, self.trainings = self.trainings, outer
            first = first or choices.met
            if asked:
                said = {_taken(place, at, choices.met) for place, at in asked.items()}
                seen = [(training.argv, training.folder) for training in kept]
                found = [it.as_variant(said) for it in found if (it.argv, it.folder) not in seen]
            kept += found
            for place in sorted(choices.met, key=lambda it: " of " in it):  # the script's own before sourced ones
                taken, branches = choices.met[place]
                if place not in asked and (not asked or place not in first):
                    waiting += [{**asked, place: at} for at in range(branches) if at != taken]
                    del waiting[READINGS_MAX:]
        self.trainings += kept

    def _inside(self, values: Values, argv: list[str], notes: frozenset[str]) -> None:
        """Follow a command of a script: it has the script's environment and folder."""
        inner = _Follower(values.environ(), values.folder, self._depth + 1)
        inner.trainings, inner.others = self.trainings, self.others
        inner.run(argv, notes)


def _starts(argv: list[str]) -> Iterator[list[str]]:
    """Yield a command from each word on that may be its interpreter or launcher."""
    for at, word in enumerate(argv):
        name = Path(word).name
        if name.startswith("python") or name == "torchrun":
            yield argv[at:]
        elif name in LAUNCHERS:  # as Python starts the program in the end
            yield from _launched(argv[at + 1 :])
    if "-m" in argv:  # an interpreter of another name, or whose name could not be read
        at = argv.index("-m")
        yield [argv[0] if at == 1 and "$" not in argv[0] else "python", *argv[at:]]


def _launched(arguments: list[str]) -> Iterator[list[str]]:
    """Yield the Python commands that `accelerate launch` or `deepspeed` makes of its arguments."""
    for at, word in enumerate(arguments):
        if word in ("-m", "--module"):
            yield ["python", *("-m", *arguments[at + 1 :])]
        elif word.endswith(".py"):
            yield ["python", *arguments[at:]]


def _taken(place: str, at: int, met: Mapping[str, tuple[int, int]]) -> str:
    """Return which branch of an undecided condition was taken."""
    if met.get(place, (0, 2))[1] == 2:
        return f"only if the condition of {place} {'does not hold' if at else 'holds'}"
    return f"only if the `case` of {place} takes its branch {at + 1}"


def _environ_of(prefix: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command behind a prefix: changed as `env` does (GNU coreutils 9), if it is in it.

    >>> _environ_of(["nohup", "env", "-uB", "-u", "C", "A=1"], {"B": "2", "C": "3", "D": "4"})
    {'D': '4', 'A': '1'}
    """
    changed = dict(environ)
    at = next((at + 1 for at, word in enumerate(prefix) if Path(word).name == "env"), len(prefix))
    words = iter(prefix[at:])
    for word in words:
        name, sign, value = word.partition("=")
        if word in ("-i", "-", "--ignore-environment"):
            changed.clear()
        elif word == "-u" or name == "--unset":
            changed.pop(value if sign else next(words, ""), None)
        elif word.startswith("-u"):
            changed.pop(word[2:], None)
        elif sign and name.isidentifier():
            changed[name] = value
    return changed


def _cannot_read(file: Path, line: int | None, why: str) -> RaydebugError:
    return UsageError(
        f"the script '{file}' cannot be read without running it",
        cause=f"{file}:{line}: {why}" if line else f"{file}: {why}",
        fix="give the training command itself, as `set -x` prints it; `raydebug run` runs it without reading it",
        code="profile.unreadable-script",
    )
