"""The breakpoints that this client has set, numbered as in pdb."""

from __future__ import annotations

from dataclasses import dataclass

from raydebug.console.session import DebugSession
from raydebug.dap import RequestFailed
from raydebug.protocol.wire import Message


@dataclass
class Breakpoint:
    """A breakpoint; `line` is the line that the process chose. With a `log` it prints that text and does not stop."""

    number: int
    path: str
    line: int
    condition: str = ""
    temporary: bool = False
    log: str = ""
    hits: int = 0

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


class BreakpointTable:
    """The table. DAP's setBreakpoints replaces all breakpoints of a file, so they are sent file by file."""

    def __init__(self, session: DebugSession) -> None:
        self._session = session
        self._next = 1
        self._scratch: tuple[str, tuple[int, ...]] = ("", ())
        self.table: list[Breakpoint] = []

    async def add(
        self, path: str, line: int, *, condition: str = "", temporary: bool = False, log: str = ""
    ) -> Breakpoint:
        """Set a breakpoint and return it, with the line that the process chose.

        Args:
            path: the file as the process knows it.
            line: where in it.
            condition: an expression; the breakpoint stops only where it is true.
            temporary: it stops once.
            log: print this text, with each `{expression}` filled in, and do not stop.

        Raises:
            ValueError: the process refuses it; the message says why.
        """
        new = Breakpoint(self._next, path, line, condition, temporary, log)
        self.table.append(new)
        try:
            answers = await self._send(path)
        except RequestFailed as failed:
            self.table.remove(new)
            raise ValueError(str(failed)) from failed
        answer = answers[[one for one in self.table if one.path == path].index(new)]
        if not answer.get("verified"):
            self.table.remove(new)
            await self._send(path)
            raise ValueError(str(answer.get("message") or "the process refused it"))
        new.line = int(answer.get("line") or line)
        self._next += 1
        return new

    async def remove(self, gone: list[Breakpoint]) -> None:
        """Remove breakpoints."""
        self.table = [one for one in self.table if one not in gone]
        for path in {one.path for one in gone}:
            await self._send(path)

    async def stop_once_at(self, path: str, lines: list[int]) -> None:
        """Also stop at these lines until `forget_once`, for `until`."""
        self._scratch = (path, tuple(lines))
        await self._send(path)

    async def forget_once(self) -> None:
        """Remove the lines of `stop_once_at`."""
        (path, lines), self._scratch = self._scratch, ("", ())
        if lines:
            await self._send(path)

    async def note_stop(self, path: str, line: int) -> list[Breakpoint]:
        """Count a stop at a line; remove and return the temporary breakpoints among those hit."""
        hit = [one for one in self.table if one.path == path and one.line == line and not one.log]
        for one in hit:
            one.hits += 1
        used = [one for one in hit if one.temporary]
        if used:
            await self.remove(used)
        return used

    def lines_in(self, path: str) -> set[int]:
        """Return the lines of a file that have a breakpoint."""
        return {one.line for one in self.table if one.path == path}

    async def _send(self, path: str) -> list[Message]:
        wanted: list[Message] = [
            {
                "line": one.line,
                **({"condition": one.condition} if one.condition else {}),
                **({"logMessage": one.log} if one.log else {}),
            }
            for one in self.table
            if one.path == path
        ]
        if self._scratch[0] == path:
            wanted += [{"line": line} for line in self._scratch[1]]
        answer = await self._session.request("setBreakpoints", {"source": {"path": path}, "breakpoints": wanted})
        return list(answer.get("breakpoints") or [])
