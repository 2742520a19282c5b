"""Builtins of bash, and programs about texts and paths, as far as they only change what a shell knows.

Each takes a `Call` and returns its status: None where only a run can tell.
Source: bash 5.2 manual, "Shell Builtin Commands"; POSIX.1-2024 for the programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from raydebug.commands.conditions import decide_test
from raydebug.commands.expand import Expander, unescaped
from raydebug.commands.state import Note, State, Variable, hidden, is_name, readable
from raydebug.commands.syntax import Unreadable
from raydebug.settings.files import NotPlainText, decode, read_bounded

TEXT_BYTES_MAX = 256 * 1024  # of a file that a script reads
_HARMLESS = (
    *("xtrace", "verbose", "hashall", "monitor", "notify", "noclobber", "errtrace", "functrace", "history"),
    *("histexpand", "physical", "emacs", "vi"),
)
OPTIONS = {  # of `set -o`, by the letter that has the same effect
    "errexit": "e", "nounset": "u", "noglob": "f", "allexport": "a", "pipefail": "pipefail", "braceexpand": "B",
    **dict.fromkeys(_HARMLESS, "x"),
}  # fmt: skip
_SHOPT_HARMLESS = frozenset(("checkwinsize", "cmdhist", "extglob", "histappend", "huponexit", "interactive_comments"))


class Input:
    """What a command reads: a text, or what is not known (None)."""

    def __init__(self, text: str | None) -> None:
        self.text, self.at = text, 0

    def line(self) -> str | None:
        """Return the next line with its end; empty at the end."""
        start, self.at = self.at, (self.text or "").find("\n", self.at) + 1 or len(self.text or "")
        return None if self.text is None else self.text[start : self.at]

    def rest(self) -> str | None:
        """Return all that is left."""
        start, self.at = self.at, len(self.text or "")
        return None if self.text is None else self.text[start:]


@dataclass
class Call:
    """One command, and what is uncertain about its words."""

    argv: list[str]
    notes: set[Note]
    place: str
    expand: Expander
    input: Input
    write: Callable[[str | None], None]  # takes what it prints; None: only a run can tell that

    @property
    def state(self) -> State:
        """What the shell knows."""
        return self.expand.state

    @property
    def is_hidden(self) -> bool:
        """Whether a word of it is not known."""
        return hidden(self.notes)

    def arguments(self, letters: str) -> tuple[str, list[str]] | None:
        """Return the option letters before the first argument, and the arguments; None if not all are known."""
        words, options = self.argv[1:], ""
        while words and words[0][:1] == "-" and len(words[0]) > 1:
            word = words.pop(0)
            if word == "--":
                break
            options += word[1:]
        return None if self.is_hidden or set(options) - set(letters) else (options, words)


Builtin: TypeAlias = Callable[[Call], "int | None"]


def file_text(state: State, name: str) -> str | None:
    """Return the text of a file, as far as it is known before the script runs."""
    path = state.folder / name
    if name == "/dev/null" or path in state.files:
        return state.files.get(path, "")
    try:
        text = decode(read_bounded(path, bytes_max=TEXT_BYTES_MAX, what="a file"))
        return text if not state.folder_notes or name[:1] == "/" else None
    except NotPlainText:
        return None


def _cd(call: Call) -> int | None:
    state, arguments = call.state, call.arguments("LPe")
    if arguments is None or len(arguments[1]) > 1 or state.get("CDPATH").value:
        return _lost(call)
    target = (*arguments[1], state.get("HOME").text or ".")[0]
    if target == "-":
        before = state.get("OLDPWD")
        target = "" if before.text is None or hidden(before.notes) else before.text
        call.write(f"{target}\n")
    if not target or (state.folder_notes and target[:1] != "/"):
        return _lost(call)
    folder = state.folder / target
    is_here = len(target) <= 4096 and folder.is_dir()
    if not is_here:
        state.doubt(f"{call.place}: the folder of `{readable(' '.join(call.argv))[:80]}` is not here")
    state.change_folder(os.path.realpath(folder) if "P" in arguments[0] and is_here else target)
    return 0 if is_here else None


def _lost(call: Call) -> int | None:
    """Note that the folder is not known from here on."""
    why = f"{call.place}: the folder of `{readable(' '.join(call.argv))[:80]}` is not known"
    call.write(None)
    call.state.doubt(why)
    call.state.folder_notes |= {Note(why)}
    return None


def _pwd(call: Call) -> int:
    call.write(None if call.state.folder_notes else f"{call.state.folder}\n")
    return 0


def _unset(call: Call) -> int | None:
    state, arguments = call.state, call.arguments("fvn")
    if arguments is None:
        state.forget_all(f"{call.place}: what unset takes away is not known here")
        return None
    for word in arguments[1]:
        name, bracket, index = word.partition("[")
        variable = state.variables.get(name)
        if "f" in arguments[0] or (variable is None and "v" not in arguments[0] and name in state.functions):
            state.own("functions").pop(name, None)
        elif variable is not None and "r" in variable.flags:
            return 1
        elif bracket and index[:-1] not in ("@", "*"):
            state.hide(name, f"{call.place}: an element of {name} is taken away, which is not followed")
        else:
            state.put(name, Variable())
    return 0


def _shift(call: Call) -> int | None:
    state, count = call.state, (*call.argv[1:], "1")[0]
    if call.is_hidden or hidden(state.argument_notes) or not count.isdigit():
        why = f"{call.place}: how far `shift` goes is not known here"
        state.doubt(why)
        state.argument_notes |= {Note(why)}
        return None
    if int(count) > len(state.arguments):
        return 1
    state.arguments = state.arguments[int(count) :]
    return 0


def _set(call: Call) -> int:
    state, words = call.state, call.argv[1:]
    if not words:
        call.write(None)
    while words and words[0][:1] in ("-", "+") and len(words[0]) > 1 and words[0] != "--":
        word = words.pop(0)
        for letter in word[1:]:
            option = OPTIONS.get(words.pop(0), "") if letter == "o" and words else letter
            if option in ("e", "u", "f", "a", "B", "pipefail"):
                state.options = state.options | {option} if word[0] == "-" else state.options - {option}
            elif option not in "xvhmbCETHPo" or not option:
                state.doubt(f"{call.place}: `{' '.join(call.argv[:3])}` is not followed")
    if words:
        state.arguments = tuple(words[1:] if words[0] in ("--", "-") else words)
        state.argument_notes = frozenset(call.notes)
    return 0


def _shopt(call: Call) -> int | None:
    options, names = call.arguments("supqo") or ("", [])
    if not set(options) & {"s", "u"}:
        return _unknown(call)
    followed = set(names) & {"nullglob", "expand_aliases"}
    if "o" in options or set(names) - followed - _SHOPT_HARMLESS:
        call.state.doubt(f"{call.place}: `{' '.join(call.argv)}` is not followed")
    call.state.options = call.state.options | followed if "s" in options else call.state.options - followed
    return 0


def _echo(call: Call) -> int:
    words, flags = call.argv[1:], ""
    while words and re.fullmatch(r"-[neE]+", words[0]):
        flags += words.pop(0)[1:]
    text = " ".join(words)
    printed: str | None = text
    if flags.rfind("e") > flags.rfind("E"):
        printed = None if set(text) & set("'\"") else unescaped(text)
    call.write(None if call.is_hidden or printed is None else printed + "\n" * ("n" not in flags))
    return 0


def _printf(call: Call) -> int | None:
    if call.argv[1:2] == ["-v"]:
        return _hide(call, [word.partition("[")[0] for word in call.argv[2:3]])
    return _unknown(call)


def _read(call: Call) -> int | None:
    words, options = call.argv[1:], ""
    while words and words[0][:1] == "-":
        options += words.pop(0)[1:]
        if options[-1:] == "p":
            del words[:1]
    names = words or ["REPLY"]
    line = None if call.is_hidden or set(options) - set("rsap") else call.input.line()
    if line is None or ("r" not in options and "\\" in line) or not all(map(is_name, names)):
        return _hide(call, names)
    separators = call.expand.separators() if words else ""
    notes = call.notes | call.expand.taken()
    values = _values(line.removesuffix("\n"), separators, 0 if "a" in options else len(names))
    if "a" in options:
        call.state.set(names[0], dict(enumerate(values)), notes)
    else:
        for name, value in zip(names, [*values, *[""] * len(names)], strict=False):
            call.expand.assign(name, None, value, notes)
    return int(not line.endswith("\n"))


def _values(text: str, separators: str, count: int) -> list[str]:
    """Return the fields of a line, at most so many, of which the last is the rest; 0: all."""
    blanks, values = "".join(char for char in separators if char in " \t\n"), list[str]()
    text = text.strip(blanks) if blanks else text
    inner = f"[{re.escape(blanks)}]*" if blanks else ""
    delimiter = re.compile(f"{inner}[{re.escape(separators)}]{inner}" if separators else "(?!)")
    while len(values) != count - 1 and (match := delimiter.search(text)):
        values.append(text[: match.start()])
        text = text[match.end() :]
    return [*values, text] if text else values


def _hide(call: Call, names: Sequence[str] = ()) -> int | None:
    """Follow what sets variables in a way that is not followed."""
    name, words = call.argv[0], [word for word in call.argv[1:] if word[:1] != "-"]
    set_here = names or ([*words[1:2], "OPTARG", "OPTIND"] if name == "getopts" else ["MAPFILE", *words])
    if call.is_hidden:
        call.state.forget_all(f"{call.place}: what {name} sets is not known here")
    for variable in filter(is_name, set_here):
        how = "is read from input" if name == "read" else f"is set by {name}, to what is not known here"
        call.state.hide(variable, f"{call.place}: {variable} {how}")
    return None


def _test(call: Call) -> int | None:
    words = call.argv[1:]
    if call.argv[0] == "[" and words[-1:] != ["]"]:
        return 2
    status = decide_test(words[: len(words) - (call.argv[0] == "[")], call.expand)
    call.notes |= call.expand.taken()
    return None if call.is_hidden else status


def _alias(call: Call) -> int:
    if "expand_aliases" in call.state.options:
        raise Unreadable(0, "aliases are not followed")
    return 0


def _unknown(call: Call) -> int | None:
    call.write(None)
    return None


BUILTINS: dict[str, Builtin] = {
    ":": lambda _: 0, "true": lambda _: 0, "false": lambda _: 1, "cd": _cd, "pushd": _lost, "popd": _lost,
    "pwd": _pwd, "unset": _unset, "shift": _shift, "set": _set, "shopt": _shopt, "echo": _echo, "printf": _printf,
    "read": _read, "mapfile": _hide, "readarray": _hide, "getopts": _hide, "[": _test, "test": _test,
    "alias": _alias, "unalias": lambda _: 0,
    **dict.fromkeys(("wait", "jobs", "kill", "ulimit", "umask", "hash", "type", "dirs", "disown", "times"), _unknown),
    **dict.fromkeys(("history", "bind", "complete", "compgen", "caller", "help", "fg", "bg"), _unknown),
}  # fmt: skip


def _dirname(call: Call) -> int | None:
    if len(call.argv) != 2:
        return _unknown(call)
    stripped = call.argv[1].rstrip("/")
    parent = stripped.rpartition("/")[0].rstrip("/") or "/" if "/" in stripped else "."
    call.write(f"{parent if stripped or not call.argv[1] else '/'}\n")
    return 0


def _basename(call: Call) -> int | None:
    if not 2 <= len(call.argv) <= 3 or call.argv[1][:1] == "-":
        return _unknown(call)
    name, suffix = call.argv[1].rstrip("/").rpartition("/")[2], (*call.argv[2:], "")[0]
    call.write((name.removesuffix(suffix) or name) + "\n")
    return 0


def _realpath(call: Call) -> int | None:
    arguments = [word for word in call.argv[1:] if word not in ("-f", "-e", "-m", "-s", "--")]
    is_link = call.argv[0] == "readlink" and not set(call.argv) & {"-f", "-e", "-m"}
    if len(arguments) != 1 or call.state.folder_notes or arguments[0][:1] in ("-", "") or is_link:
        return _unknown(call)
    call.write(os.path.realpath(call.state.folder / arguments[0]) + "\n")
    return 0


def _seq(call: Call) -> int | None:
    if not all(re.fullmatch(r"-?(0|[1-9]\d{0,6})", word) for word in call.argv[1:]):
        return _unknown(call)
    values = [int(word) for word in call.argv[1:]]
    first, step, last = {1: [1, 1, *values], 2: [*values[:1], 1, *values[1:]], 3: values}.get(len(values), [0, 0, 0])
    if step == 0 or abs(last - first) // abs(step) > 4096:
        return _unknown(call)
    call.write("".join(f"{number}\n" for number in range(first, last + (1 if step > 0 else -1), step)))
    return 0


def _cat(call: Call) -> int | None:
    words = call.argv[1:] or ["-"]
    if any(word[:1] == "-" and word != "-" for word in words):
        return _unknown(call)
    texts = [call.input.rest() if word == "-" else file_text(call.state, word) for word in words]
    call.write(None if None in texts else "".join(text or "" for text in texts))
    return None if None in texts else 0


PROGRAMS: dict[str, Builtin] = {
    "dirname": _dirname, "basename": _basename, "realpath": _realpath, "readlink": _realpath, "seq": _seq, "cat": _cat,
}  # fmt: skip
