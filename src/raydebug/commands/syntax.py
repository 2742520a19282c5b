"""The syntax tree of a shell script, as `shfmt` reads it. Runs nothing of the script.

Source: mvdan.cc/sh 3.14, `shfmt --to-json`: the nodes of its package `syntax`, with byte offsets and lines.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from raydebug.errors import RaydebugError
from raydebug.process import start_filter
from raydebug.settings.files import decode, read_bounded
from raydebug.settings.flavours import install_raydebug

SCRIPT_BYTES_MAX = 256 * 1024
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_LINES_TRIED = 60  # back from the line where a script is broken
_READ_S = 30.0  # 256 KiB of the smallest commands take 4 s
_FAILED = re.compile(r"(?:<standard input>:)?(\d+):\d+: (.*)", re.DOTALL)
_NOT_CLOSED = re.compile(r"reached (?:EOF|.*) without (?:matching|closing quote) [`\"](.+?)[`\"](?: with .*)?")

_TWICE = re.compile(rb"(?<!\S)!\s!(?=\s)")
Node: TypeAlias = dict[str, Any]


class Unreadable(Exception):
    """Text that is no shell script, or not one that is understood: the line, counted from 1, and what is wrong."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line, self.why = line, why

    @property
    def is_certain(self) -> bool:
        """Whether bash stops there too, after what is before."""
        return "is not closed" in self.why or "must be followed by a statement" in self.why


class Script:
    """A script's text, and its statements; of one that is broken those before that, which bash runs too."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode("utf-8", "surrogateescape")
        self.broken: Unreadable | None = None
        try:
            tree = self._read()
        except Unreadable as failure:
            tree, self.broken = {}, failure
            lines, tried = self._bytes.split(b"\n"), _LINES_TRIED if failure.is_certain else 0
            for count in range(failure.line - 1, max(failure.line - 1 - tried, 0), -1):
                with contextlib.suppress(Unreadable):
                    self._bytes = b"\n".join(lines[:count])
                    tree = self._read()
                    break
        self.statements: list[Node] = tree.get("Stmts") or []

    def _read(self) -> Node:
        tree = _tree(self._bytes)
        is_suspect = re.search(rb"#[^\n]*\\\n", self._bytes)
        if is_suspect and (joined := [it["Pos"]["Offset"] for it in _comments(tree) if it["Text"].endswith("\\\n")]):
            # shfmt takes the line behind such a comment for a part of it; for bash a backslash is nothing in a comment.
            for start in joined:
                at = self._bytes.index(b"\\\n", start)
                self._bytes = self._bytes[:at] + b" " + self._bytes[at + 1 :]
            tree = _tree(self._bytes)
        return tree

    def source(self, node: Node) -> str:
        """Return the text of a node as it is written."""
        return self.between(node["Pos"]["Offset"], node["End"]["Offset"])

    def is_cut_by_comment(self, node: Node) -> bool:
        """Return whether a comment follows the backslash that continues a command, and so ends it."""
        return re.match(rb"[ \t]*\\\n[ \t]*#", self._bytes[node["End"]["Offset"] :][:400]) is not None

    def between(self, start: int, end: int) -> str:
        """Return the text from one byte to another."""
        return self._bytes[start:end].decode("utf-8", "surrogateescape")


@functools.lru_cache(maxsize=64)
def read_tree(text: str) -> Script:
    """Return the statements of a script, as far as it can be read."""
    return Script(text)


def _tree(text: bytes) -> Node:
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    program = shutil.which("shfmt", path=places)
    if program is None:
        raise RaydebugError(
            "a shell script cannot be read without running it",
            cause="the program `shfmt` is not installed",
            fix=f"in raydebug's checkout: {install_raydebug('cli')}; or give the training command itself",
            code="profile.no-shfmt",
        )
    with start_filter([program, "--to-json", "--language-dialect", "bash"], errors=subprocess.PIPE) as reader:
        try:
            printed, complaint = reader.communicate(text, timeout=_READ_S)
            if reader.returncode == 0:
                tree: Node = json.loads(printed)
                return tree
        except subprocess.TimeoutExpired:
            reader.kill()
            raise Unreadable(1, f"it takes more than {_READ_S:.0f} s to read") from None
        except RecursionError:
            raise Unreadable(1, "too many commands are in one another") from None
    message = complaint.decode("utf-8", "replace").strip()
    failure = _FAILED.fullmatch(message)
    if failure is None:
        too_deep = "too many expansions are in one another" if "max depth" in message else ""
        raise Unreadable(1, too_deep or message or f"shfmt ended with {reader.returncode}")
    line, why = int(failure[1]), failure[2]
    if "cannot negate a command multiple times" in why and (twice := _TWICE.search(text)):  # bash can: `! !` is nothing
        return _tree(text[: twice.start()] + b"   " + text[twice.end() :])
    opening = _NOT_CLOSED.match(why)
    raise Unreadable(line, f"{opening[1]} is not closed" if opening else why.partition("\n")[0][:200])


def _comments(node: Any) -> Iterator[Node]:
    """Yield the comments in a node."""
    if isinstance(node, dict) and "Hash" in node:
        yield node
        return
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(inner, (dict, list)):
            yield from _comments(inner)


def literal(word: Node | None) -> str | None:
    """Return a word's text where nothing in it is quoted or expanded."""
    parts = (word or {}).get("Parts") or []
    return parts[0]["Value"] if len(parts) == 1 and parts[0]["Type"] == "Lit" else None


def read_script(file: Path) -> tuple[str, set[str]]:
    """Return the text of a script, and what makes all of it uncertain.

    Raises:
        NotPlainText: it is missing, too big, or no text.
    """
    text = decode(read_bounded(file, bytes_max=SCRIPT_BYTES_MAX, what="a script"))
    if "\r\n" not in text:
        return text, set()
    why = f"{file.name} has line ends of Windows, with which bash runs another command"
    return text.replace("\r\n", "\n"), {f"{why}: sed -i 's/\\r$//' {shlex.quote(str(file))}"}
