"""The session that an editor opens first: it holds no pause, and makes the editor open a session for each of them.

debugpy does the same for subprocesses, and editors know it from there: an editor that offers `startDebugging` is sent
that request, any other the event `debugpyAttach`. Source: debugpy 1.8.22, adapter/clients.py:750-800.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import PurePath
from typing import Any

from raydebug.dap import wire
from raydebug.dap.wire import Message
from raydebug.gateway.connection import Connection
from raydebug.gateway.pauses import Pause, Pauses
from raydebug.gateway.refusals import Refused
from raydebug.pause.ranks import parse_ranks

TARGET = "all"
# A terminal that waits for the next pause, or a session that waits for this process's next one, takes it first.
OTHERS_FIRST_S = 0.05
# Of the editor's own configuration these concern the first session alone.
LEFT_OUT = ("processId", "preLaunchTask", "postDebugTask", "restart", "steal", "job", "ranks", "host", "port")
WHERE_BREAKPOINTS_COUNT = "it counts in the session of each pause; `raydebug run --break` stops where none is yet"
EMPTY: dict[str, Message] = {
    "threads": {"threads": []},
    "modules": {"modules": [], "totalModules": 0},
    "loadedSources": {"sources": []},
    "completions": {"targets": []},
    "setExceptionBreakpoints": {},
}


class Parent:
    """Tells a client of every pause that it wants to see.

    Args:
        to: the client, which has proven itself.
        pauses: all of the cluster.
        arguments: of its `attach`: what the sessions of the pauses inherit, and `job` and `ranks`.
        address: where the client reached this gateway, for sessions whose configuration does not say where to go.
        starts_sessions: whether the client offers `startDebugging`.

    Raises:
        Refused: `ranks` is no list of ranks.
    """

    def __init__(
        self, to: Connection, pauses: Pauses, arguments: Message, address: tuple[str, int], *, starts_sessions: bool
    ) -> None:
        self._to = to
        self._pauses = pauses
        self._arguments = arguments
        self._address = address
        self._starts_sessions = starts_sessions
        self._job = arguments.get("job")
        self._ranks = read_ranks(arguments.get("ranks"))
        self._told: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    def take(self, message: Message) -> None:
        """Answer a request."""
        command = str(message.get("command"))
        arguments = message.get("arguments") or {}
        if command == "configurationDone":
            self._to.answer(message)
            if self._watching is None:
                self._watching = asyncio.ensure_future(self._tell_of_pauses())
        elif command in ("setBreakpoints", "setFunctionBreakpoints"):
            asked = arguments.get("breakpoints") or []
            unset = [{"verified": False, "message": WHERE_BREAKPOINTS_COUNT, **_line(one)} for one in asked]
            self._to.answer(message, {"breakpoints": unset})
        elif command in EMPTY:
            self._to.answer(message, EMPTY[command])
        else:
            fix = "use the session of a pause; each opens by itself"
            self._to.refuse(message, Refused("parent.no-pause", f"no pause is here for '{command}'", fix))

    def end(self) -> None:
        """Tell of no more pauses."""
        if self._watching is not None:
            self._watching.cancel()

    async def _tell_of_pauses(self) -> None:
        while True:
            if any(self._is_new(pause) for pause in self._pauses.listed()):
                await asyncio.sleep(OTHERS_FIRST_S)
                for pause in self._pauses.listed():
                    if self._is_new(pause):
                        self._told.add(pause.first)
                        self._tell(child_configuration(self._arguments, pause.describe(), self._address))
            await self._pauses.change()

    def _is_new(self, pause: Pause) -> bool:
        return (
            pause.first not in self._told  # nor one that came to such a session later
            and pause.client is None
            and not pause.promised
            and pause.stopped is not None
            and self._is_wanted(pause.describe())
            and not any(client.waits_for_next() for client in pause.process.clients)
        )

    def _is_wanted(self, about: Message) -> bool:
        if self._job is not None and self._job not in (about.get("job"), about.get("job_id")):
            return False
        return self._ranks is None or about.get("rank") in self._ranks

    def _tell(self, configuration: Message) -> None:
        if self._starts_sessions:
            self._to.send(wire.request(0, "startDebugging", {"request": "attach", "configuration": configuration}))
        else:
            self._to.send(wire.event(0, "debugpyAttach", {**configuration, "request": "attach"}))


def child_configuration(arguments: Message, pause: Message, address: tuple[str, int]) -> Message:
    """Return the whole configuration of a pause's own session, in the terms of launch.json.

    Args:
        arguments: of the first session's `attach`.
        pause: as `raydebug paused --json` has it.
        address: host and port of this gateway, as the client sees them.
    """
    kept = {name: value for name, value in arguments.items() if name not in LEFT_OUT}
    if "listen" not in kept or "connect" in kept:  # `listen` is of an editor that starts its adapter by itself
        kept.pop("listen", None)
        connect = kept.get("connect")
        there = {"host": arguments.get("host", address[0]), "port": arguments.get("port", address[1])}
        kept["connect"] = {**there, **(connect if isinstance(connect, dict) else {})}
    return {"type": "debugpy", "justMyCode": False, **kept, "name": name_session(pause), "target": pause["id"]}


def name_session(pause: Message) -> str:
    """Return what an editor calls the session of a pause."""
    rank = "" if pause.get("rank") is None else f"rank {pause['rank']} "
    return f"pause {pause['id']}: {rank}{PurePath(str(pause.get('file'))).name}:{pause.get('line')}"


def read_ranks(given: Any) -> set[int] | None:
    """Return the ranks that are wanted: a list of numbers, or text such as `0,3`; None for all.

    Raises:
        Refused: it is neither.
    """
    if given is None or given == "":
        return None
    with contextlib.suppress(ValueError, TypeError):
        return parse_ranks(given if isinstance(given, str) else ",".join(map(str, given)))
    raise Refused("attach.bad-ranks", f"'{str(given)[:60]}' is no list of ranks", '"ranks": [0, 3]')


def _line(asked: Any) -> Message:
    line = asked.get("line") if isinstance(asked, dict) else None
    return {} if line is None else {"line": line}
