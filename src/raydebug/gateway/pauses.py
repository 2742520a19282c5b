"""The pauses of a cluster, as the gateway knows them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raydebug.gateway.clients import Client
    from raydebug.gateway.processes import Process

ENDED_REMEMBERED = 10_000
SHOWN = (
    *("kind", "file", "line", "function", "thread", "exception", "where", "rank", "step", "pid"),
    *("child_of", "ip", "node_id", "worker_id", "job_id", "job", "task", "task_id"),
    *("attempt", "actor", "actor_id", "compiled", "watchdog"),
)


@dataclass(eq=False)
class Pause:
    """A thread of a process that waits for a debugger.

    Args:
        id: short and never used twice in a cluster's life.
        process: whose thread it is.
        thread_id: the thread, as pydevd numbers it.
        record: what the process told about it (worker/records.py).
        stopped: the body of pydevd's last `stopped` event; None while the thread runs a step.
        announced: its process has told the record, and the stop itself is still to come.
        located: its record says where it stands; until then it is not listed.
        expires_at: when it goes on by itself (seconds since the epoch), while it has no client.
        promised: somebody asked for it and is about to take it; nobody else who waits does.
        first: id of the pause that its client attached to, when it came to that client by itself; else its own.
    """

    id: str
    process: Process
    thread_id: int
    record: dict[str, Any]
    stopped: dict[str, Any] | None = None
    announced: bool = False
    located: bool = True
    since: float = field(default_factory=time.time)
    client: Client | None = None
    client_since: float = 0.0
    expires_at: float | None = None
    promised: bool = False
    first: str = ""

    def __post_init__(self) -> None:
        self.first = self.first or self.id

    @property
    def state(self) -> str:
        """`waiting` for a client, or `attached` to one."""
        return "waiting" if self.client is None else "attached"

    def describe(self) -> dict[str, Any]:
        """Return the JSON object of `raydebug paused --json`."""
        about = {**self.process.about, **{k: v for k, v in self.record.items() if v is not None}}
        shown = {name: about.get(name) for name in SHOWN}
        now = time.time()
        expires_in_s = None if self.expires_at is None else round(self.expires_at - now, 3)
        times = {"since_s": round(now - self.since, 3), "expires_in_s": expires_in_s}
        return {"id": self.id, **shown, **times, "state": self.state}


class Pauses:
    """All pauses, oldest first, and whoever waits for the next one."""

    def __init__(self) -> None:
        self._next_id = itertools.count(1)
        self._all: OrderedDict[str, Pause] = OrderedDict()
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._changed = asyncio.Condition()
        self.claims: dict[str, Callable[[Pause], None]] = {}  # by the question that a pause answers: who takes it
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, process: Process, thread_id: int, record: dict[str, Any]) -> Pause:
        """Enter a pause that a process announced; it is listed once its thread has stopped."""
        placed = "file" in record
        pause = Pause(str(next(self._next_id)), process, thread_id, record, announced=placed, located=placed)
        self._all[pause.id] = pause
        return pause

    def end(self, pause: Pause, reason: str) -> None:
        """Forget a pause; the reason is what a later `attach` to it is told."""
        if self._all.pop(pause.id, None) is not None:
            self._ended[pause.id] = reason
            if len(self._ended) > ENDED_REMEMBERED:
                self._ended.popitem(last=False)
            self.changed()

    def changed(self) -> None:
        """Wake whoever waits for a pause."""
        task = asyncio.ensure_future(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def listed(self) -> list[Pause]:
        """Return the pauses that somebody can look at: stopped, or in a client's hands."""
        return [p for p in self._all.values() if (p.stopped is not None and p.located) or p.client is not None]

    def of_process(self, instance: str) -> list[Pause]:
        """Return the listed pauses of a process."""
        return [pause for pause in self.listed() if pause.process.instance == instance]

    def get(self, pause_id: str) -> Pause | None:
        """Return a pause that has not ended."""
        return self._all.get(pause_id)

    def why_ended(self, pause_id: str) -> str | None:
        """Return why a pause ended; None if there never was one with this id."""
        return self._ended.get(pause_id)

    async def change(self) -> None:
        """Wait until a pause begins, ends, or changes hands."""
        async with self._changed:
            await self._changed.wait()

    async def next_waiting(self) -> Pause:
        """Return the oldest pause that waits for a client; wait for one where there is none."""
        while True:
            for pause in self._all.values():
                if pause.client is None and pause.stopped is not None and not pause.promised:
                    return pause
            await self.change()
