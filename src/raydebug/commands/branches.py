"""What a shell does where a condition is not decided: each branch is read, and what they make different is noted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from raydebug.commands.builtins import Input
from raydebug.commands.state import Note, Notes, State


@dataclass
class Command:
    """A program that a script starts."""

    argv: list[str]
    notes: set[str]  # what is uncertain about it, or about whether it is started
    environ: dict[str, str]
    unsure: dict[str, Notes]  # what is uncertain about its environment, by name
    folder: Path
    files: dict[Path, str | None]  # text of those that the script has written
    where: tuple[int, ...]  # the place in the script, and those of the calls that led to it
    again: str  # the note for one that a loop starts again, with other words


Run: TypeAlias = Callable[[Command], None]
Action: TypeAlias = Callable[[], object]


@dataclass
class Choices:
    """The branches that are taken where a condition is not decided, by place: `line 3`, `line 3 of env.sh`."""

    # The number of the branch; at other places the first one is taken that does not end the script.
    asked: Mapping[str, int] = field(default_factory=dict)
    # Each such place that was reached: the branch taken, and what is said of each that can be.
    met: dict[str, tuple[int, dict[int, str]]] = field(default_factory=dict)


class Flow(Exception):
    """What leaves the statements that are being read."""


class Exit(Flow):
    """The shell, or the subshell, ends."""


class Return(Flow):
    """A function or a sourced file ends."""


class Leave(Flow):
    """A loop ends (`break`), or its round (`continue`); `count` loops are meant."""

    def __init__(self, count: int, *, ends: bool) -> None:
        super().__init__(count, ends)
        self.count, self.ends = count, ends


@dataclass
class _Outcome:
    """What a branch leaves, how it is left, the commands that it starts, and the places that it meets."""

    state: State
    flow: Flow | None
    commands: list[Command]
    met: dict[str, tuple[int, dict[int, str]]]

    @property
    def ends(self) -> bool:
        """Whether the shell ends in it."""
        return isinstance(self.flow, Exit)

    def is_like(self, other: _Outcome) -> bool:
        """Return whether all that follows is the same as behind another branch."""
        flows = [(type(it), it.args if it else ()) for it in (self.flow, other.flow)]
        return (
            flows[0] == flows[1] and not self.commands and not other.commands
            and self.state.variables == other.state.variables and self.state.files == other.state.files
            and self.state.doubts == other.state.doubts
            and self.state.surroundings() == other.state.surroundings()
        )  # fmt: skip


class Branches:
    """The part of a shell that takes branches; `run` is called with each program that it starts."""

    def __init__(self, state: State, run: Run, choices: Choices) -> None:
        self._state, self._run, self._choices = state, run, choices
        self._line = self._rounds = 0
        self._undecided = 0  # in a branch that may be taken
        self._presumed: int | None = None  # the status that is taken for granted where it ends a script: 0 of a program
        self._conditions: list[str] = []
        self._input = Input(None)
        self._write: Callable[[str | None], None] = lambda _: None

    @contextlib.contextmanager
    def _holding(self, **values: object) -> Iterator[None]:
        """Have other values of attributes for a while."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def _outcome(self, action: Action, conditions: Sequence[str]) -> _Outcome:
        """Return what an action would do; all is as before."""
        state, before, commands, write = self._state, self._state.copied(), list[Command](), self._write
        position, flow, choices = self._input.at, None, Choices(self._choices.asked)
        with self._holding(
            _run=commands.append, _choices=choices, _write=lambda _: write(None), _undecided=self._undecided + 1,
            _conditions=[*self._conditions, *conditions], _rounds=self._rounds, _line=self._line,
        ):  # fmt: skip
            try:
                action()
            except Flow as left:
                flow = left
        if self._input.at != position:
            self._input.text = None
        outcome = _Outcome(state.copied(), flow, commands, choices.met)
        state.become(before)
        return outcome

    def _start(self, outcome: _Outcome) -> None:
        """Start the programs of a branch that is taken."""
        for command in outcome.commands:
            self._run(command)
        for place, branches in outcome.met.items():
            self._choices.met.setdefault(place, branches)

    def _maybe(self, place: str, text: str, otherwise: str, action: Action, *, presumed: bool = False) -> None:
        """Do what may be done: what it changes is not known afterwards.

        `text` is said of what is done, `otherwise` of all that follows where it leaves the statements; what ends the
        script may be `presumed` not to be done.
        """
        state, outcome = self._state, self._outcome(action, [text] if text else [])
        self._start(outcome)
        if outcome.flow is None:
            self._merge(outcome.state, place)
        elif not (outcome.ends and presumed):
            state.doubt(otherwise)
        state.status, self._presumed = None, None

    def _merge(self, other: State, place: str) -> None:
        """Make unknown what would be different behind another branch; of a value that is there in one that is shown."""
        state, why = self._state, f"depends on a condition ({place}), which was not decided"
        is_same = state.surroundings() == other.surroundings()
        for name in state.differing(other):
            mine, new = state.get(name), other.get(name)
            kept = mine if any(mine.elements.values()) or new.value is None else new
            notes = mine.notes | new.notes
            if (mine.value, mine.flags) != (new.value, new.flags):
                notes |= {Note(f"{name} {why}")}
            state.put(name, replace(kept, flags=mine.flags | new.flags, notes=notes))
        for path in state.files.keys() | other.files.keys():
            if state.files.get(path, "") != other.files.get(path, ""):
                state.own("files")[path] = None
        state.doubts |= other.doubts
        if is_same:
            return
        if state.arguments != other.arguments:
            state.argument_notes |= {Note(f"what `shift` leaves {why}")}
        if state.folder != other.folder:
            state.folder_notes |= {Note(f"the folder {why}")}
        state.argument_notes |= other.argument_notes
        state.folder_notes |= other.folder_notes
        state.unknowns |= other.unknowns
        state.functions = {**other.functions, **state.functions}
        state.doubt(f"what follows {why}")

    def _decide(self, actions: Sequence[Action], place: str, texts: Sequence[str], decided: int | None) -> None:
        """Take the branch that is decided; None: all that follows depends on it, where they differ, as `texts` say."""
        if decided is not None:
            actions[decided]()
            return
        presumed = self._presumed
        outcomes = [self._outcome(action, [text]) for action, text in zip(actions, texts, strict=True)]
        able = [at for at, it in enumerate(outcomes) if not it.ends or it.commands] or [0]
        first = next((at for at in able if not outcomes[at].ends), able[0])
        taken = self._choices.asked.get(place, first)
        outcome = outcomes[taken]
        self._state.become(outcome.state)
        if not all(it.is_like(outcome) for it in outcomes):
            if len(able) > 1:
                self._choices.met.setdefault(place, (taken, {at: texts[at] for at in able}))
            self._start(outcome)
            failing = None if presumed is None else int(presumed == 0)  # the branch behind a program that fails
            if any(not (it.ends and at == failing) for at, it in enumerate(outcomes) if at != taken):
                self._state.doubts |= {texts[taken]}
        if any(it.state.status != outcome.state.status for it in outcomes if not it.ends):
            self._state.status = None
        if outcome.flow is not None:
            raise outcome.flow
