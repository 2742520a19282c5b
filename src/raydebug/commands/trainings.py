"""Find the training commands that a command runs, itself or by a shell script, without running anything.

`check` and `run --dry-run` need it; `run` uses what it finds, and runs without.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raydebug.commands.branches import Choices, Command
from raydebug.commands.builtins import OPTIONS
from raydebug.commands.state import State, Variable, readable
from raydebug.commands.statements import Shell
from raydebug.commands.syntax import SHELLS, Unreadable, read_script
from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.files import NotPlainText
from raydebug.trainers.config import is_file
from raydebug.trainers.launchers import copies_of, env_notes, environ_of, starts_in
from raydebug.trainers.registry import recognise, started_by
from raydebug.trainers.trainer import Program

NESTED_AT_MOST = 4
_PART_OF_PYTHON = ("pip", "venv", "http.server", "json.tool")
READINGS_MAX = 16  # of a script, with other branches
_ASKED = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*)")  # `$NAME`, `${NAME:-...}`
_EXPORTED = frozenset("x")
_BEFORE = "the same line has started it before, perhaps with other words"
_MANY = f"more than {READINGS_MAX} branches were not decided: not all of them were read"
_TALK = ("echo", "printf", "cat", "grep", "sed", "awk", "tee", "type", "which")  # a training in its words is none


@dataclass(frozen=True)
class Training:
    """A training command that was found."""

    argv: list[str]  # as it would run; what could not be read is left as it is written
    program: Program
    environ: dict[str, str]  # that it would run in, as far as it was read
    folder: Path  # where it would run
    copies: tuple[str, str] | None = None  # the launcher that would start it several times: `launchers.copies_of`
    notes: list[str] = field(default_factory=list)  # what of it could not be read, and why
    is_variant: bool = False  # whether it runs in place of another one, by a condition that was not decided
    where: tuple[int, ...] = field(default=(), compare=False, repr=False)  # the places in scripts that led to it

    def as_variant(self, said: set[str]) -> Training:
        """Return it as one that runs only if these conditions are so."""
        return replace(self, notes=sorted({*self.notes, *said}), is_variant=True)


@dataclass(frozen=True)
class Reading:
    """A command, and the training commands that it runs, itself or by a shell script, in their order."""

    command: Sequence[str]
    trainings: list[Training]  # none where a script cannot be read
    others: list[str]  # the Python programs that it runs and that are no known trainings
    unreadable: RaydebugError | None  # why a script cannot be read
    asked: frozenset[str]  # the variables that its scripts name

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
    reading = read_command(command, environ, folder)
    if reading.unreadable is not None:
        raise reading.unreadable
    return reading.trainings


def read_command(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> Reading:
    """Return what a command runs; a script that cannot be read has no trainings."""
    exported = {name: Variable(text, _EXPORTED) for name, text in environ.items()}
    asked = set[str]()
    follower, unreadable = _Follower(exported, folder, asked), None
    try:
        follower.run(list(command), frozenset())
    except RaydebugError as failure:
        follower.trainings, unreadable = [], failure
    return Reading(command, follower.trainings, list(dict.fromkeys(follower.others)), unreadable, frozenset(asked))


class _Follower:
    """Follows commands; a script that it names is read in turn."""

    def __init__(self, environ: Mapping[str, Variable], folder: Path, asked: set[str], depth: int = 0) -> None:
        self.trainings: list[Training] = []
        self.others: list[str] = []  # Python programs that are no known trainings
        self._environ, self._folder, self._asked, self._depth = dict(environ), folder, asked, depth
        self._where: tuple[int, ...] = ()
        self._files: dict[Path, str | None] = {}
        self._again = ""

    def run(self, argv: list[str], notes: frozenset[str]) -> None:
        """Follow one command: a training is noted, a shell's script is read."""
        if training := self._training_in(argv):
            start, program = training
            prefix = argv[: len(argv) - len(start)]
            copies, noted = copies_of(argv, program), sorted(notes | env_notes(prefix))
            environ = environ_of(prefix, self._texts())
            self._keep(Training(start, program, environ, self._folder, copies, noted, where=self._where))
            return
        for at, word in enumerate(argv):
            if Path(word).name in SHELLS:
                texts = environ_of(argv[:at], self._texts())
                self._environ = {
                    name: self._environ[name] if self._texts().get(name) == text else Variable(text, _EXPORTED)
                    for name, text in texts.items()
                }
                self._shell(argv[at + 1 :], notes)
                return
            if at == 0 and "/" in word and word.endswith(".sh"):
                self._script(word, argv[1:], notes)
                return

    def _texts(self) -> dict[str, str]:
        return {name: readable(str(variable.value)) for name, variable in self._environ.items()}

    def _keep(self, training: Training, again: str = "") -> None:
        """Keep a training; one that was started from the same place has a note, if its words were others."""
        for at, kept in enumerate(self.trainings):
            if not training.where or kept.where[-1:] != training.where[-1:] or kept.is_variant != training.is_variant:
                continue
            same = (kept.argv, kept.environ, kept.folder) == (training.argv, training.environ, training.folder)
            if kept.where == training.where and (same or not training.is_variant):
                self.trainings[at] = kept if same else replace(kept, notes=sorted({*kept.notes, again or self._again}))
                return
            if kept.notes and not same:  # the same line, of a function that is called again
                training = replace(training, notes=sorted({*training.notes, _BEFORE}))
        self.trainings.append(training)

    def _training_in(self, argv: list[str]) -> tuple[list[str], Program] | None:
        """Return a training from its interpreter or launcher on: env, nohup, uv run and the like may precede it."""
        if not argv or Path(argv[0]).name in _TALK:
            return None
        search = ["", *self._texts().get("PYTHONPATH", "").split(os.pathsep)]
        for start in starts_in(argv):
            if program := recognise(start, folder=self._folder, search=search):
                return start, program
            module = started.module if (started := started_by(start)) else ""
            if module and not module.endswith(_PART_OF_PYTHON):
                self.others.append(module)
        # A console script: Python gets it as a file.
        is_name = "=" not in argv[0] and not argv[0].startswith("-")
        is_script = is_name and not any(Path(word).name in SHELLS or word.endswith(".sh") for word in argv)
        program = recognise(["python", *argv]) if is_script and not any(starts_in(argv)) else None
        return (["python", *argv], program) if program else None

    def _shell(self, arguments: list[str], notes: frozenset[str]) -> None:
        options = set[str]()
        while arguments and arguments[0].startswith(("-", "+")):
            option = arguments.pop(0)
            if option.startswith("-") and not option.startswith("--"):
                options |= set(option[1:]) & set("euf")
            if option.startswith("-") and not option.startswith("--") and "c" in option:
                if self._depth >= NESTED_AT_MOST:
                    return
                state = self._state((arguments[1:2] or ["bash"])[0], arguments[2:], options)
                self._read_inner((arguments or [""])[0], state, notes)
                return
            if option in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
                options |= {OPTIONS.get(arguments[0], "")} if option == "-o" and arguments else set()
                del arguments[:1]
        if arguments:
            self._script(arguments[0], arguments[1:], notes, options)

    def _script(self, name: str, arguments: list[str], notes: frozenset[str], options: set[str] | None = None) -> None:
        file = self._folder / name
        written = self._files.get(file)
        if self._depth >= NESTED_AT_MOST or (self._depth and written is None and not is_file(file)):
            return
        try:
            text, doubts = (written, set[str]()) if written is not None else read_script(file)
        except NotPlainText as failure:
            raise _cannot_read(file, failure.line, failure.cause) from failure
        first = text.partition("\n")[0]
        if first.startswith("#!") and not any(shell in first for shell in SHELLS):
            return
        if options is None:  # started by its name: its first line has options
            options = {letter for word in first.split()[1:] if word[:1] == "-" for letter in word[1:]} & set("euf")
        state = self._state(name, arguments, options)
        state.file = name
        self._read_inner(text, state, notes | doubts, file)

    def _state(self, name: str, arguments: list[str], options: set[str]) -> State:
        variables = {**self._environ, "OPTIND": Variable("1"), "IFS": Variable(" \t\n")}
        state = State(name, tuple(arguments), self._folder, variables, options=frozenset(options | {"B"}) - {""})
        state.files = dict(self._files)
        return state

    def _read_inner(self, text: str, state: State, notes: frozenset[str], file: Path | None = None) -> None:
        """Read a script; one inside of another that cannot be read leaves the other as it is."""
        self._asked.update(_ASKED.findall(text))
        try:
            self._read(text, state, notes)
        except Unreadable as failure:
            if self._depth == 0 or not failure.is_certain:
                raise _cannot_read(file or Path("bash -c"), failure.line, failure.why) from failure

    def _read(self, text: str, state: State, notes: frozenset[str]) -> None:
        """Read a script; where a condition is not decided, once more for each of its other branches."""
        waiting: list[Mapping[str, int]] = [{}]
        first: Mapping[str, object] = {}
        kept, outer = list[Training](), self.trainings
        is_cut = False
        for asked in waiting:  # which grows
            choices, self.trainings = Choices(asked), []
            shell_state = state.copied()
            shell_state.doubts = notes
            shell = Shell(shell_state, self._inside, self._starts_something, choices)
            broken = shell.read(text)
            found, self.trainings = self.trainings, outer
            first = first or choices.met
            if asked:
                conditions = {choices.met[place][1].get(at, "") for place, at in asked.items() if place in choices.met}
                seen = [(training.argv, training.folder) for training in kept]
                found = [it.as_variant(conditions) for it in found if (it.argv, it.folder) not in seen]
            kept += found
            for place in sorted(choices.met, key=lambda it: " of " in it):  # the script's own before sourced ones
                taken, branches = choices.met[place]
                if place not in asked and (not asked or place not in first):
                    waiting += [{**asked, place: at} for at in branches if at != taken]
                    is_cut = is_cut or len(waiting) > READINGS_MAX
                    del waiting[READINGS_MAX:]
        if broken and not kept:
            raise broken
        said = {_MANY} if is_cut else set()
        said |= {f"{broken}: bash stops there"} if broken else set()
        for training in kept:
            self._keep(replace(training, notes=sorted({*training.notes, *said})))

    def _starts_something(self, argv: list[str]) -> bool:
        """Return whether the words of a command start a training, or another shell."""
        if any(Path(word).name in SHELLS for word in argv) or ("/" in argv[0] and argv[0].endswith(".sh")):
            return True
        if not any(starts_in(argv)):
            return self._training_in(argv) is not None
        modules = [started.module for start in starts_in(argv) if (started := started_by(start))]
        return any(module and not module.endswith(_PART_OF_PYTHON) for module in modules)

    def _inside(self, command: Command) -> None:
        """Follow a command of a script: it has the script's environment and folder."""
        environ = {
            name: Variable(text, _EXPORTED, command.unsure.get(name, frozenset()))
            for name, text in command.environ.items()
        }
        inner = _Follower(environ, command.folder, self._asked, self._depth + 1)
        inner.trainings, inner.others = self.trainings, self.others
        inner._where, inner._again = (*self._where, *command.where), command.again
        inner._files = command.files
        inner.run(command.argv, frozenset(command.notes))


def _cannot_read(file: Path, line: int | None, why: str) -> RaydebugError:
    return UsageError(
        f"the script '{file}' cannot be read without running it",
        cause=f"{file}:{line}: {why}" if line else f"{file}: {why}",
        fix="give the training command itself, as `set -x` prints it; `raydebug run` runs it without reading it",
        code="profile.unreadable-script",
    )
