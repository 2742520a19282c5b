"""The root session of an editor (target `all`): it holds no pause, and makes the editor open a session for each pause.

debugpy does the same for subprocesses. Editors without `startDebugging` get its own event `debugpyAttach`; they are
refused here, because some of them reject unknown events.

Source: debugpy 1.8.22, adapter/clients.py:750-800.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import weakref
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from raydebug.gateway.board import Board, Pause
from raydebug.gateway.client_requests import Refused
from raydebug.gateway.forwarding import Connection
from raydebug.protocol import wire
from raydebug.protocol.listings import ListedPause
from raydebug.protocol.messages import COPIES
from raydebug.protocol.names import parse_ranks
from raydebug.protocol.wire import Message

TARGET = "all"
ROOT = "raydebugParent"  # in the configuration of a child session: the id of its root session
ENDED = "the editor ended the session that opened this one; the task stays paused"
# A terminal that waits for the next pause, or a session that waits for the next one of its process, gets it first.
OTHERS_FIRST_S = 0.05
# Keys of the editor's configuration that concern the root session alone.
ROOT_ONLY = ("processId", "preLaunchTask", "postDebugTask", "restart", "steal", "job", "ranks", "host", "port", COPIES)
BREAKPOINTS_HINT = "it applies in the session of each pause; `raydebug run --break` pauses where there is none yet"
EMPTY_BODIES: dict[str, Message] = {
    "threads": {"threads": []},
    "modules": {"modules": [], "totalModules": 0},
    "loadedSources": {"sources": []},
    "completions": {"targets": []},
    "setExceptionBreakpoints": {},
}


class RootSession:
    """Starts a session in a client for every pause that the client wants to see.

    Args:
        to: the connection of the authenticated client.
        board: the cluster's pauses.
        arguments: of `attach`: settings that the child sessions inherit, and `job` and `ranks`.
        address: where the client reached this gateway, for configurations without `connect`.

    Raises:
        Refused: `ranks` is not a list of ranks.
    """

    def __init__(self, to: Connection, board: Board, arguments: Message, address: tuple[str, int]) -> None:
        self.id = secrets.token_hex(8)
        self.children: set[Callable[[str], None]] = set()  # called with the reason when this session ends before them
        self._to = to
        self._board = board
        self._arguments = arguments
        self._address = address
        self._job = arguments.get("job")
        self._ranks = read_ranks(arguments.get("ranks"))
        self._started: weakref.WeakSet[Pause] = weakref.WeakSet()
        self._watching: asyncio.Task[None] | None = None

    def take(self, message: Message) -> None:
        """Answer a request."""
        command = str(message.get("command"))
        arguments = message.get("arguments") or {}
        if command == "configurationDone":
            self._to.answer(message)
            if self._watching is None:
                self._watching = asyncio.ensure_future(self._start_sessions())
        elif command in ("setBreakpoints", "setFunctionBreakpoints"):
            wanted = arguments.get("breakpoints") or []
            unset: list[Message] = []
            for point in wanted:
                line = point.get("line") if isinstance(point, dict) else None
                at = {} if line is None else {"line": line}
                unset.append({"verified": False, "message": BREAKPOINTS_HINT, **at})
            self._to.answer(message, {"breakpoints": unset})
        elif command in EMPTY_BODIES:
            self._to.answer(message, EMPTY_BODIES[command])
        else:
            fix = "use the session of a pause; the editor opens one for each"
            self._to.refuse(message, Refused("parent.no-pause", f"this session has no pause for '{command}'", fix))

    def end(self) -> None:
        """Start no more sessions, and end the child sessions; paused tasks stay paused."""
        if self._watching is not None:
            self._watching.cancel()
        children, self.children = self.children, set()
        for end in children:
            end(ENDED)

    async def _start_sessions(self) -> None:
        while True:
            if any(self._is_new(pause) for pause in self._board.listed()):
                await asyncio.sleep(OTHERS_FIRST_S)
                for pause in self._board.listed():
                    if self._is_new(pause):
                        self._started.add(pause.first)
                        configuration = child_configuration(self._arguments, self._board.describe(pause), self._address)
                        arguments = {"request": "attach", "configuration": {**configuration, ROOT: self.id}}
                        self._to.send(wire.request(0, "startDebugging", arguments))
            await self._board.change()

    def _is_new(self, pause: Pause) -> bool:
        about = self._board.describe(pause)
        return (
            pause.first not in self._started  # later pauses of such a session have the same `first`
            and self._board.is_free(pause)
            and self._job in (None, about.get("job"), about.get("job_id"))
            and (self._ranks is None or about.get("rank") in self._ranks)
            and self._board.next_for(pause.process) is None
        )


def child_configuration(arguments: Message, pause: ListedPause, address: tuple[str, int]) -> Message:
    """Return the whole configuration of a child session, as in launch.json.

    Args:
        arguments: of the root session's `attach`.
        pause: the JSON object of `raydebug paused --json`.
        address: host and port of this gateway, as the client sees them.
    """
    kept = {name: value for name, value in arguments.items() if name not in ROOT_ONLY}
    if "listen" not in kept or "connect" in kept:  # an editor with `listen` starts its adapter itself
        kept.pop("listen", None)
        connect = kept.get("connect")
        there = {"host": arguments.get("host", address[0]), "port": arguments.get("port", address[1])}
        kept["connect"] = {**there, **(connect if isinstance(connect, dict) else {})}
    return {"type": "debugpy", "justMyCode": False, **kept, "name": name_session(pause), "target": pause["id"]}


def name_session(pause: ListedPause) -> str:
    """Return the name of a pause's session in an editor."""
    rank = "" if pause.get("rank") is None else f"rank {pause['rank']} "
    return f"pause {pause['id']}: {rank}{PurePath(str(pause.get('file'))).name}:{pause.get('line')}"


def read_ranks(given: Any) -> set[int] | None:
    """Return the ranks in `ranks`: a list of numbers, or text such as `0,3`; None for all.

    Raises:
        Refused: it is neither.
    """
    if given is None or given == "":
        return None
    with contextlib.suppress(ValueError, TypeError):
        return parse_ranks(given if isinstance(given, str) else ",".join(map(str, given)))
    raise Refused("attach.bad-ranks", f"'{str(given)[:60]}' is not a list of ranks", '"ranks": [0, 3]')
