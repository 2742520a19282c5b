"""Follow the statements of a shell script without running it: what is read, what is not, and why.

Every construct is evaluated as bash does, or makes what it touches unknown, with a note. Where a branch is not
decided, one is taken and `choices` takes another one, so that a caller can read them all. A file that is sourced is
read in its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from raydebug.commands.branches import Action, Branches, Choices, Command, Exit, Flow, Leave, Return, Run
from raydebug.commands.builtins import BUILTINS, PROGRAMS, Call, Input, file_text
from raydebug.commands.conditions import decide_condition
from raydebug.commands.expand import NESTED_AT_MOST, Expander
from raydebug.commands.patterns import matches
from raydebug.commands.state import ODD_FLAGS, Function, Note, NotFollowed, State, Variable, hidden, is_name, readable
from raydebug.commands.syntax import SHELLS, Node, Script, Unreadable, literal, read_script, read_tree
from raydebug.settings.files import NotPlainText

EVALS_AT_MOST = 8  # evals, functions and sourced files in one another
STEPS_MAX = 40_000  # statements in functions, loops and sourced files: one that calls itself ten times goes on for ever
ITERATIONS_MAX = 256  # of all loops of a script together
_HOOKS = ("conda", "mamba", "micromamba", "module")  # whose effect is their environment's
# What `set -e` looks at: the command behind the last `&&`, and those in a group or a branch, have looked themselves.
_CHECKED = ("CallExpr", "TestClause", "ArithmCmd", "LetClause", "DeclClause", "Subshell", "BinaryCmd", "TimeClause")
_Output: TypeAlias = tuple[Path, str | None, list[str | None]]  # a file, its text before, and what is written


class Shell(Branches):
    """Reads the statements of a script; `starts` tells whether words may start a training, or another shell."""

    def __init__(self, state: State, run: Run, starts: Callable[[list[str]], bool], choices: Choices) -> None:
        super().__init__(state, run, choices)
        self._starts = starts
        self._expand = Expander(state, self._capture)
        self._place_of_eval = ""
        self._steps = self._depth = self._subshells = 0
        self._guarded = 0  # in a condition, where `set -e` does nothing
        self._loops: list[str] = []  # what is said of a training that one starts again
        self._frames: list[dict[str, Variable | None]] = []  # of each function: what its locals were before
        self._called: set[str] = set()
        self._calls: tuple[int, ...] = ()
        self._document_notes: set[Note] = set()
        self._substituted: int | None = 0

    def read(self, text: str) -> Unreadable | None:
        """Read a script, and return where it is broken; a function that nobody calls is read at the end.

        Raises:
            Unreadable: it is not understood.
        """
        script = self._expand.script = read_tree(text)
        ended = script.broken is not None
        try:
            self._statements(script.statements)
        except Exit:
            ended = True
        except Flow:
            pass
        except RecursionError:
            raise Unreadable(self._line, "too many commands are in one another") from None
        for name, function in [] if ended else list(self._state.functions.items()):
            if not function.source and name not in self._called:
                self._state.arguments = ()
                why = f"{name}() is not called by the script"
                with self._holding(_conditions=[why]), contextlib.suppress(Flow):
                    self._call(name, [])
        return script.broken

    # Statements.

    @property
    def _place(self) -> str:
        return self._place_of_eval or f"line {self._line}{f' of {self._state.source}' if self._state.source else ''}"

    def _statements(self, statements: Sequence[Node] | None) -> None:
        for statement in statements or ():
            self._statement(statement)

    def _statement(self, statement: Node) -> None:
        self._line = statement["Position"]["Line"]
        self._steps += 1
        if statement.get("Background") or statement.get("Coprocess"):
            self._subshell(lambda: self._command(statement))
            self._state.status, self._presumed = 0, None
        else:
            self._command(statement)

    def _command(self, statement: Node) -> None:
        node, state, redirections = statement.get("Cmd"), self._state, statement.get("Redirs")
        negated = bool(statement.get("Negated"))
        redirected = self._redirected(redirections) if redirections else contextlib.nullcontext()
        with self._holding(_guarded=self._guarded + negated), redirected:
            if node is None:
                self._write(self._input.rest() if redirections and redirections[0]["Op"] == "<" else "")
                state.status, self._presumed = 0, None
            else:
                self._COMMANDS[node["Type"]](self, node)
        if negated:
            state.status = None if state.status is None else int(not state.status)
            self._presumed = None if self._presumed is None else int(not self._presumed)
        elif (
            state.status and not self._guarded and "e" in state.options
            and node is not None and node["Type"] in _CHECKED and node.get("Op") not in ("&&", "||")
        ):  # fmt: skip
            self._line = node["Pos"]["Line"]
            self._exit(state.status)

    def _exit(self, status: int | None) -> None:
        """End the script, or the subshell; where it complains about its call, it is read on."""
        if status and not (self._subshells or self._undecided):
            self._state.doubt(f"{self._place}: called like this, the script ends here")
            return
        self._state.status = status
        raise Exit

    def _subshell(self, action: Action) -> None:
        """Do something, of which only the status is left."""
        if self._subshells == NESTED_AT_MOST:
            raise Unreadable(self._line, f"more than {NESTED_AT_MOST} subshells in one another")
        state, saved = self._state, self._state.copied()
        with self._holding(_subshells=self._subshells + 1, _loops=[]), contextlib.suppress(Flow):
            action()
        status = state.status if state.doubts == saved.doubts else None
        state.become(saved)
        state.status = status

    def _capture(self, statements: Sequence[Node]) -> str | None:
        """Return what statements print in a subshell; None where only a run can tell that."""
        printed, doubts = list[str | None](), self._state.doubts

        def action() -> None:
            self._state.options -= {"e"}
            self._state.status = 0
            self._statements(statements)
            if self._state.doubts != doubts:
                printed.append(None)

        notes, self._expand.notes = self._expand.notes, set()
        with self._holding(_write=printed.append, _line=self._line):
            self._subshell(action)
        self._expand.notes = notes
        self._substituted = self._state.status
        return _whole(printed)

    # Compound commands.

    def _condition(self, statements: Sequence[Node]) -> int | None:
        with self._holding(_guarded=self._guarded + 1):
            self._statements(statements)
        return self._state.status

    def _if(self, node: Node) -> None:
        if not node.get("Cond"):  # else
            self._statements(node["Then"])
            return
        self._line = node["Position"]["Line"]
        place = self._place
        status = self._condition(node["Cond"])

        def otherwise() -> None:
            self._state.status = 0
            if node.get("Else"):
                self._if(node["Else"])

        texts = [f"only if the condition of {place} holds", f"only if the condition of {place} does not hold"]
        actions: list[Action] = [lambda: self._statements(node["Then"]), otherwise]
        self._decide(actions, place, texts, None if status is None else int(status != 0))

    def _case(self, node: Node) -> None:
        word, notes = self._expand.text(node["Word"]), self._expand.taken()
        self._presumed = None
        self._case_from(node.get("Items") or [], 0, None if hidden(notes) else word, self._place)

    def _case_from(self, items: Sequence[Node], at: int, word: str | None, place: str) -> None:
        """Take the branch of a `case`, from a number on, that a word has; None: it is not known."""
        self._state.status = 0
        while at < len(items) and (is_match := self._is_match(items[at], word)) is False:
            at += 1
        if at == len(items):
            return

        def action() -> None:
            for item in items[at:]:
                self._statements(item.get("Stmts"))
                if item["Op"] == ";;":
                    return
                if item["Op"] == ";;&":
                    self._state.forget_all(f"{place}: `;;&` is not followed")

        texts = [f"only if the `case` of {place} {how} its branch {at + 1}" for how in ("takes", "does not take")]
        actions: list[Action] = [action, lambda: self._case_from(items, at + 1, word, place)]
        self._decide(actions, f"{place}, branch {at + 1}", texts, 0 if is_match else None)

    def _is_match(self, item: Node, word: str | None) -> bool | None:
        is_open = False
        for node in item["Patterns"]:
            pattern, notes = self._expand.pattern(node), self._expand.taken()
            try:
                if pattern == "*" or (word is not None and not hidden(notes) and matches(pattern, word)):
                    return None if is_open else True
                is_open = is_open or word is None or hidden(notes)
            except NotFollowed:
                is_open = True
        return None if is_open else False

    def _while(self, node: Node) -> None:
        self._repeat(node, lambda: self._condition(node["Cond"]), int(bool(node.get("Until"))), lambda: None)

    def _count(self, node: Node) -> None:
        loop = node["Loop"]
        self._value(loop.get("Init"))

        def condition() -> int | None:
            value = self._value(loop["Cond"]) if loop.get("Cond") else 1
            return None if value is None else int(not value)

        self._repeat(node, condition, 0, lambda: self._value(loop.get("Post")))

    def _repeat(self, node: Node, condition: Callable[[], int | None], until: int, step: Action) -> None:
        """Do the body of a loop while the status of its condition is 0, or (`until`) is not."""
        place, before = self._place, self._state.copied()
        status: int | None = 0
        with self._holding(_loops=[*self._loops, f"the loop of {place} starts it again, with other words"]):
            while self._goes_on(place, before):
                held = condition()
                if held is None:
                    self._perhaps(f"only if the condition of {place} holds", node, place)
                    status = None
                if held is None or int(held != 0) != until:
                    break
                goes_on = self._round(node["Do"])
                status = self._state.status
                if not goes_on:
                    break
                step()
        self._state.status = status

    def _perhaps(self, text: str, node: Node, place: str) -> None:  # never, once, or often
        self._maybe(place, text, f"only if the loop of {place} ends by itself", lambda: self._round(node["Do"]))

    def _for(self, node: Node) -> None:
        loop, place = node["Loop"], self._place
        if loop["Type"] != "WordIter":
            self._count(node)
            return
        name = loop["Name"]["Value"]
        has_items = loop.get("InPos") is not None or loop.get("Items") is not None
        items = self._expand.words(loop.get("Items") or []) if has_items else list(self._state.arguments)
        notes = self._expand.taken() | (self._state.argument_notes if not has_items else set())
        before = self._state.copied()
        self._state.status = 0
        with self._holding(_loops=[*self._loops, f"{name} is a loop's: its first value is shown"]):
            if node.get("Select") or hidden(notes):
                why = notes if hidden(notes) else {Note(f"{place}: {name} is read from input")}
                self._state.set(name, items[0] if items else f"${name}", why)
                self._perhaps("", node, place)
                return
            for item in items:
                if not self._goes_on(place, before):
                    break
                self._state.set(name, item, notes)
                if not self._round(node["Do"]):
                    break

    def _value(self, node: Node | None) -> int | None:
        if node is None:
            return 0
        value = self._expand.number(node)
        return None if hidden(self._expand.taken()) else value or 0

    def _goes_on(self, place: str, before: State) -> bool:
        """Return whether a loop may have another round; there is a limit."""
        self._rounds += 1
        if self._rounds < ITERATIONS_MAX and self._steps < STEPS_MAX:
            return True
        after = self._state.copied()
        self._state.become(before)
        self._merge(after, place)
        self._state.doubt(f"{place}: the loop was not followed to its end")
        return False

    def _round(self, statements: Sequence[Node]) -> bool:
        """Do the body of a loop once; return whether the loop goes on."""
        try:
            self._statements(statements)
        except Leave as left:
            self._state.status = 0
            if left.count > 1:
                raise Leave(left.count - 1, ends=left.ends) from None
            return not left.ends
        return True

    def _binary(self, node: Node) -> None:
        if node["Op"] in ("|", "|&"):
            self._pipeline(node)
            return
        with self._holding(_guarded=self._guarded + 1):
            self._statement(node["X"])
        status, is_and = self._state.status, node["Op"] == "&&"
        self._line = node["Y"]["Position"]["Line"]
        place = self._place
        texts = [f"only if the condition of {place} {how}" for how in ("holds", "does not hold")]
        actions: list[Action] = [lambda: self._statement(node["Y"]), lambda: None]
        if status is None:
            presumed = not is_and and self._presumed == 0
            self._maybe(place, texts[not is_and], texts[is_and], actions[0], presumed=presumed)
        else:
            self._decide(actions, place, texts, int((status == 0) != is_and))

    def _pipeline(self, node: Node) -> None:
        parts = [node["Y"]]
        while (
            node["X"].get("Cmd", {}).get("Type") == "BinaryCmd"
            and node["X"]["Cmd"]["Op"] in ("|", "|&")
            and not (node["X"].get("Redirs") or node["X"].get("Negated"))
        ):
            node = node["X"]["Cmd"]
            parts.append(node["Y"])
        parts.append(node["X"])
        conditions = [*self._conditions, *_taken_by_tee(parts[0].get("Cmd") or {})]
        write, statuses = self._write, list[int | None]()
        with self._holding(_write=write, _input=self._input, _conditions=conditions):
            for number, part in enumerate(reversed(parts)):
                printed: list[str | None] = []
                self._write = printed.append if number < len(parts) - 1 else write
                self._subshell(lambda part=part: self._statement(part))  # type: ignore[misc]
                statuses.append(self._state.status)
                self._input = Input(_whole(printed))
        status = statuses[-1]
        if "pipefail" in self._state.options:
            status = None if None in statuses else next((it for it in reversed(statuses) if it), 0)
        self._state.status, self._presumed = status, None if status is not None else 0

    def _define(self, node: Node) -> None:
        function = Function(node["Body"], self._expand.script, self._state.source)
        self._state.own("functions")[node["Name"]["Value"]] = function
        self._state.status = 0

    def _double(self, node: Node) -> None:
        holds = decide_condition(node["X"], self._expand)
        self._expand.taken()
        self._state.status, self._presumed = None if holds is None else int(not holds), None

    def _arithmetic(self, node: Node) -> None:
        """Follow `(( ))` and `let`; the status is that of the last expression."""
        values = [self._value(it) for it in node.get("Exprs") or [node.get("X")]]
        self._state.status, self._presumed = None if values[-1] is None else int(not values[-1]), None

    # Simple commands.

    @contextlib.contextmanager
    def _redirected(self, redirections: Sequence[Node]) -> Iterator[None]:
        outputs = list[_Output]()
        with self._holding(_input=self._input, _write=self._write):
            for it in redirections:
                self._redirect(it, it["Op"], (it.get("N") or {}).get("Value", ""), outputs)
            try:
                yield
            finally:
                for path, start, printed in outputs:
                    self._state.own("files")[path] = _whole([start, *printed])

    def _redirect(self, node: Node, operator: str, number: str, outputs: list[_Output]) -> None:
        word, expand = node["Word"], self._expand
        if operator in ("<<", "<<-", "<<<"):
            is_quoted = any(part["Type"] != "Lit" or "\\" in part["Value"] for part in word["Parts"])
            if operator == "<<<":
                text = expand.text(word) + "\n"
            else:
                text = expand.document(node.get("Hdoc") or {}, quoted=is_quoted, tabs=operator == "<<-")
            self._document_notes = expand.taken()
            self._input = Input(readable(text))
        elif operator == "<" and number in ("", "0"):
            is_program = word["Parts"][0]["Type"] == "ProcSubst"
            name = "" if is_program else expand.text(word)
            if is_program:
                self._input = Input(self._capture(word["Parts"][0].get("Stmts") or []))
            else:
                self._input = Input(None if hidden(expand.taken()) else file_text(self._state, name))
        elif operator == "<&":
            self._input = Input(None)
        elif operator in (">", ">>", ">|", "&>", "&>>"):
            printed: list[str | None] = [] if number in ("", "1") else [None]
            if number in ("", "1"):
                self._write = printed.append
            name = expand.text(word)
            if not hidden(expand.taken()) and name != "/dev/null":
                path = self._state.folder / name
                outputs.append((path, self._state.files.get(path) if operator in (">>", "&>>") else "", printed))
        elif operator == ">&" and number in ("", "1"):
            self._write = lambda _: None

    def _call_expression(self, node: Node) -> None:
        state, self._substituted = self._state, 0
        arguments, assignments = node.get("Args") or [], node.get("Assigns") or []
        self._line = (arguments or assignments)[0]["Pos"]["Line"] if arguments or assignments else self._line
        argv, notes = self._expand.words(arguments), self._expand.taken()
        self._presumed = None
        saved = {it["Name"]["Value"]: state.variables.get(it["Name"]["Value"]) for it in assignments if argv}
        for assignment in assignments:
            self._value_of(assignment, set())()
            if argv:
                state.flag(assignment["Name"]["Value"], "x")
        if not argv:
            state.status = self._substituted if not hidden(notes) else None
            return
        if (value := literal(arguments[-1])) and value in ("\\ ", "\\\t"):
            self._line = arguments[-1]["Pos"]["Line"]
            notes.add(Note(f"{self._place}: a blank follows the backslash, so the command ends there", "remark"))
        if self._expand.script.is_cut_by_comment(node):
            why = f"line {node['End']['Line'] + 1}: a comment ends the command there; what follows is no part of it"
            notes.add(Note(why, "remark"))
        is_certain = literal(arguments[0]) not in (None, ".", "source")
        doubts = [] if is_certain else [note.text for note in notes if note.kind == "hidden"]
        calls = (*self._calls, node["Pos"]["Offset"])
        with self._holding(_calls=calls, _conditions=[*self._conditions, *doubts]):
            try:
                self._execute(argv, notes)
            finally:
                for name, variable in saved.items():
                    state.put(name, variable)

    def _value_of(self, node: Node, flags: set[str]) -> Action:
        expand, name, appends = self._expand, node["Name"]["Value"], bool(node.get("Append"))
        if node.get("Array"):
            variable = self._state.get(name)
            nodes, keyed = node["Array"].get("Elems") or [], "A" in variable.flags | flags
            elements = self._elements(nodes, variable, keyed=keyed, appends=appends)
            notes = self._expand.taken() | (variable.notes if appends else frozenset())
            return lambda: expand.assign(name, None, elements, notes)
        key = expand.key(self._state.get(name), node["Index"]) if node.get("Index") else None
        text, notes = expand.text(node.get("Value"), assigns=True), self._expand.taken()
        return lambda: expand.assign(name, key, text, notes, appends=appends)

    def _elements(self, nodes: Sequence[Node], before: Variable, *, keyed: bool, appends: bool) -> dict[int | str, str]:
        elements: dict[int | str, str] = dict(before.elements) if appends else {}
        number = max((int(key) for key in elements if isinstance(key, int)), default=-1) + 1
        for node in nodes:
            has_index = node.get("Index") is not None
            if keyed is not has_index and (keyed or not (literal(node["Index"]) or "").isdigit()):
                self._expand.notes.add(Note("keys of an array of this form are not followed"))
            if not has_index:
                values = self._expand.fields(node["Value"])
                elements |= dict(enumerate(values, number))
                number += len(values)
                continue
            key = self._expand.key(Variable(elements, frozenset("A" * keyed)), node["Index"])
            elements[key] = self._expand.text(node.get("Value"))
            number = key + 1 if isinstance(key, int) else number
        return elements if keyed else dict(sorted(elements.items()))

    def _declare(self, node: Node) -> None:
        """Follow `export`, `declare`, `local`, `readonly`: all words are expanded, then assigned."""
        state, kind = self._state, node["Variant"]["Value"]
        on, off, assigned = set[str](), set[str](), list[tuple[str, Action]]()
        self._substituted = 0
        for it in node.get("Args") or []:
            if it.get("Name"):
                action = (lambda: None) if it.get("Naked") else self._value_of(it, on)
                assigned.append((it["Name"]["Value"], action))
                continue
            for word in self._expand.fields(it["Value"]):
                notes = self._expand.taken()
                if word[:1] in ("-", "+") and not notes:
                    (on if word[0] == "-" else off).update(word[1:])
                    continue
                name, sign, text = word.partition("=")
                if not is_name(name):
                    state.forget_all(f"{self._place}: what {kind} sets is not known here")
                    continue
                setter = lambda name=name, text=text, notes=notes: self._expand.assign(name, None, text, notes)  # noqa: E731
                assigned.append((name, setter if sign else lambda: None))
        if on & set("fFp") or (kind == "local" and not self._frames):
            self._write(None)
            state.status = None
            return
        if kind == "export":
            on, off = (set[str](), {"x"}) if "n" in on else ({"x"}, off)
        is_local = bool(self._frames) and kind not in ("export", "readonly") and "g" not in on
        for name, assign in assigned:
            if is_local and name not in self._frames[-1]:
                self._frames[-1][name] = before = state.variables.get(name)
                state.put(name, Variable(flags=(before or Variable()).flags & {"x"}))
            state.flag(name, on & {"x", "A", *ODD_FLAGS}, off)
            assign()
            state.flag(name, {"r"} if "r" in on or kind == "readonly" else ())
        state.status, self._presumed = 0, None

    # Commands.

    def _execute(self, argv: list[str], notes: set[Note], *, is_function: bool = True) -> None:
        name, state = argv[0], self._state
        if is_function and name in state.functions:
            self._call(name, argv[1:], notes)
        elif (control := self._CONTROLS.get(name)) is not None:
            control(self, argv, notes)
        elif name in ("export", "declare", "local", "readonly", "typeset", "let"):  # behind `command`, in a variable
            state.forget_all(f"{self._place}: what {name} sets is not known here")
        elif name in BUILTINS or (name in PROGRAMS and not hidden(notes)):
            call = Call(argv, notes, self._place, self._expand, self._input, self._write)
            state.status = (BUILTINS.get(name) or PROGRAMS[name])(call)
            self._expand.taken()
            self._presumed = 0 if name in PROGRAMS or name in ("cd", "wait") else None
        else:
            self._program([readable(word) for word in argv], notes)

    def _program(self, argv: list[str], notes: set[Note]) -> None:
        state = self._state
        self._write(self._input.rest() if argv[0] == "tee" else None)
        state.status, self._presumed = None, 0
        if argv[0] in _HOOKS and argv[1:2] in (["activate"], ["load"]):
            self._enter_environment(argv)
            return
        if argv[0] == "xargs":
            notes = {*notes, Note(f"{self._place}: what xargs adds is not known here")}
        if (at := next((at for at, word in enumerate(argv) if Path(word).name in SHELLS), None)) is not None:
            argv, notes = self._shell_of(argv, at, notes)
        if not self._starts(argv):
            return
        environ, unsure = state.environ()
        texts = {note.text for note in notes} | state.doubts | set(self._conditions)
        texts |= {note.text for known in unsure.values() for note in known}
        again = self._loops[-1] if self._loops else f"{self._place}: it is started again, with other words"
        state.shared |= {"files"}
        self._run(Command(argv, texts, environ, unsure, state.folder, state.files, self._calls, again))

    def _enter_environment(self, shown: list[str]) -> None:
        why = f"{self._place}: the environment of {' '.join(shown)[:80]} was not looked into"
        self._state.doubt(why)
        for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV"):
            self._state.mark(name, {Note(why)})

    def _shell_of(self, argv: list[str], at: int, notes: set[Note]) -> tuple[list[str], set[Note]]:
        """Return the command of a shell that reads its input, as `-c` has it."""
        rest = argv[at + 1 :]
        first = next((number for number, word in enumerate(rest) if word[:1] not in ("-", "+")), len(rest))
        text = self._input.rest() if "-s" in rest[:first] or first == len(rest) else None
        if text is None:
            return argv, notes
        options = [word for word in rest[:first] if word != "-s"]
        return [*argv[: at + 1], *options, "-c", text, argv[at], *rest[first:]], notes | self._document_notes

    def _may_read(self) -> bool:
        """Return whether a function, a sourced file or an `eval` is read; there is a limit to how often."""
        self._steps += 20
        return self._depth < EVALS_AT_MOST and self._steps < STEPS_MAX

    @contextlib.contextmanager
    def _within(self, script: Script, source: str, *, eval_place: str = "") -> Iterator[None]:
        """Be in the body of a function, a sourced file or an `eval`."""
        saved = self._expand.script, self._state.source
        self._expand.script, self._state.source = script, source
        with self._holding(_place_of_eval=eval_place, _depth=self._depth + 1):
            try:
                yield
            except Return:
                if eval_place:
                    raise
            finally:
                self._expand.script, self._state.source = saved

    def _call(self, name: str, arguments: list[str], notes: Iterable[Note] = ()) -> None:
        state, function = self._state, self._state.functions[name]
        self._called.add(name)
        if not self._may_read():
            state.forget_all(f"{self._place}: too many functions call one another")
            return
        saved = state.arguments, state.argument_notes
        state.arguments = tuple(arguments)
        state.argument_notes = frozenset(note for note in notes if note.kind != "remark")
        self._frames.append({})
        try:
            with self._within(function.script, function.source):
                self._statement(function.body)
        finally:
            for local, variable in self._frames.pop().items():
                state.put(local, variable)
            state.arguments, state.argument_notes = saved

    def _eval(self, argv: list[str], notes: set[Note]) -> None:
        """Read words as if they stood here."""
        text, place = readable(" ".join(argv[1:])), self._place
        if not self._may_read():
            raise Unreadable(self._line, f"more than {EVALS_AT_MOST} evals in one another")
        if hidden(notes) and any(f"$({hook}" in text for hook in _HOOKS):
            self._enter_environment([readable(word) for word in argv])
            self._state.status = None
            return
        if hidden(notes):
            self._state.forget_all(f"{place}: what eval runs is not known here")
        script = read_tree(text)
        with self._within(script, self._state.source, eval_place=place):
            self._state.status = 0
            self._statements(script.statements)
        if script.broken:
            self._state.forget_all(f"{place}: {script.broken.why}")

    def _source(self, argv: list[str], notes: set[Note]) -> None:
        """Read a file as if it stood here, with arguments of its own if some are given, or note why it cannot be."""
        state, arguments = self._state, tuple(argv[2:])
        shown = " ".join(word for word in map(readable, argv) if word[:2] != "<(")
        unknown = f"{self._place}: what {shown} sets is not known here"
        try:
            script = self._sourced((argv[1:2] or [""])[0])
        except (NotPlainText, Unreadable) as failure:
            why = "" if hidden(notes) else str(failure).removeprefix("line 0: ")
            state.forget_all(f"{unknown}: {why}".removesuffix(": "))
            state.status = None
            return
        outer = state.arguments, state.argument_notes
        state.arguments, state.status = arguments or state.arguments, 0
        state.argument_notes |= notes if arguments else set()
        try:
            with self._within(script, argv[1]):
                self._statements(script.statements)
        finally:
            if arguments:
                if arguments[len(arguments) - len(state.arguments) :] != state.arguments:  # its `set` may change ours
                    state.forget_all(f"{unknown}: the arguments")
                state.arguments, state.argument_notes = outer[0], outer[1] | state.unknowns
        if script.broken or hidden(notes):
            state.forget_all(f"{unknown}: {script.broken or 'its words are not known'}")

    def _sourced(self, name: str) -> Script:
        state = self._state
        if not name or (state.folder_notes and name[:1] != "/"):
            raise Unreadable(0, "")
        if not self._may_read():
            raise Unreadable(0, "too many files source one another")
        text, doubts = state.files.get(state.folder / name, ""), set[str]()
        if state.folder / name not in state.files:
            text, doubts = read_script(state.folder / name)
        if text is None:
            raise Unreadable(0, "it is written by a program")
        state.doubts |= doubts
        return read_tree(text)

    def _leave(self, argv: list[str], notes: set[Note]) -> None:
        name, count, state = argv[0], (argv[1:] or [""])[0], self._state
        number = int(count) if count.isdigit() else None
        if name in ("break", "continue"):
            if not self._loops:
                state.status = 0
                return
            if hidden(notes) or (count and not number):
                state.doubt(f"{self._place}: how far `{name}` goes is not known here")
            raise Leave(min(number or 1, len(self._loops)), ends=name == "break")
        status = None if hidden(notes) else number if count else state.status
        if name == "exit":
            self._exit(status)
        elif self._frames or state.source:
            state.status = None if status is None else status % 256
            raise Return
        else:
            state.status = 1  # at the top of a script it does nothing

    def _replace(self, argv: list[str], notes: set[Note]) -> None:
        """Follow `exec`: the command runs in the shell's place."""
        if len(argv) == 1:
            self._state.status = 0
            return
        self._program([readable(word) for word in argv[1:]], notes)
        raise Exit

    def _plain(self, argv: list[str], notes: set[Note]) -> None:
        """Follow `command` and `builtin`, which pass functions over."""
        rest = argv[1:]
        del rest[: rest[:1] in (["-p"], ["--"])]
        if rest and rest[0] not in ("-v", "-V"):
            self._execute(rest, notes, is_function=False)
            return
        self._write(None)
        self._state.status, self._presumed = None, None

    def _trap(self, argv: list[str], notes: set[Note]) -> None:
        """Note what `trap` may do: what runs at the end changes nothing that is shown here, but may start something."""
        rest = argv[2:] if argv[1:2] == ["--"] else argv[1:]
        if len(rest) > 1 and rest[0] not in ("", "-"):
            why = f"only if `trap` of {self._place} runs it"
            self._start(self._outcome(lambda: self._eval(["eval", rest[0]], set()), [why]))
            if hidden(notes) or {"ERR", "DEBUG", "RETURN"} & set(rest[1:]):
                self._state.doubt(f"{self._place}: what `trap` runs is not followed")
        self._write(None)
        self._state.status = 0

    _COMMANDS: Mapping[str, Callable[[Shell, Node], object]] = {
        "CallExpr": _call_expression, "IfClause": _if, "CaseClause": _case, "WhileClause": _while, "ForClause": _for,
        "BinaryCmd": _binary, "FuncDecl": _define, "TestClause": _double, "ArithmCmd": _arithmetic,
        "LetClause": _arithmetic, "DeclClause": _declare,
        "TimeClause": lambda self, node: self._statements([node["Stmt"]] if "Stmt" in node else []),
        "Block": lambda self, node: self._statements(node.get("Stmts")),
        "Subshell": lambda self, node: self._subshell(lambda: self._statements(node.get("Stmts"))),
        "CoprocClause": lambda self, node: self._subshell(lambda: self._statement(node["Stmt"])),
    }  # fmt: skip
    _CONTROLS: Mapping[str, Callable[[Shell, list[str], set[Note]], None]] = {
        "eval": _eval, "source": _source, ".": _source, "exit": _leave, "return": _leave, "break": _leave,
        "continue": _leave, "exec": _replace, "command": _plain, "builtin": _plain, "trap": _trap,
    }  # fmt: skip


def _whole(printed: Sequence[str | None]) -> str | None:
    """Return pieces as one text; None where one of them is not known."""
    texts = [text for text in printed if text is not None]
    return "".join(texts) if len(texts) == len(printed) else None


def _taken_by_tee(node: Node) -> list[str]:
    """Return what `tee` takes as the name of a file and looks like a setting of the command before it."""
    words = [literal(word) or "" for word in node.get("Args") or []]
    settings = [word for word in words[2:] if "=" in word] if words[:1] == ["tee"] else []
    line = node["Pos"]["Line"] if settings else 0
    return [f"line {line}: {word} is an argument of `tee`, which writes a file of that name" for word in settings[:3]]
