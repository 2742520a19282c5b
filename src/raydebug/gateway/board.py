"""The pauses of a cluster, and which client holds which pause: the one owner of that state. No I/O."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, cast

from raydebug.gateway.numbers import PAUSE, Numbers
from raydebug.gateway.processes import Process
from raydebug.protocol.listings import ListedPause, PauseFacts
from raydebug.protocol.records import PauseRecord
from raydebug.protocol.wire import Message

MAX_ENDED = 10_000  # ended pauses whose reason is kept
MAX_REASON = 300  # characters of one
MAX_BYTES = 128 * 1024 * 1024  # of what processes have said of all pauses; those of one job have a quarter at most
MAX_CLAIMS = 1000


@dataclass(eq=False)
class Pause:
    """A suspended thread of a process that waits for a debugger. Times are seconds of time.monotonic()."""

    id: str  # short, and of no other pause in the life of the cluster (numbers.py)
    process: Process
    thread_id: int  # as pydevd numbers it
    record: PauseRecord  # the process's description of the pause
    stopped: Message | None = None  # body of pydevd's last `stopped`; None once it has confirmed that the thread runs
    announced: bool = False  # the process has sent the record, and the `stopped` event is still to come
    located: bool = True  # the record has the current location; without one the pause is not listed
    since: float = field(default_factory=time.monotonic)
    expires_at: float | None = None  # when it is resumed for want of a client
    reserved: bool = False  # a client has requested it and is about to be assigned to it
    bytes: int = 0  # of what its process has said of it
    # The pause to which its client attached, when later pauses were assigned to that client; else itself.
    first: Pause = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.first = self


class Holder(Protocol):
    """A debugger client to which pauses are assigned."""

    name: str

    def show(self, pause: Pause) -> None:
        """Report a pause that was assigned after the client had resumed its last one."""

    def forward(self, event: Message) -> None:
        """Forward an event of the process."""

    def lost(self, reason: str) -> None:
        """Report that the pause or the process is gone, and end."""


class _Hold(NamedTuple):
    client: Holder
    since: float


class Board:
    """All pauses, oldest first, with their clients."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._pauses: OrderedDict[str, Pause] = OrderedDict()
        self._by_thread: dict[Process, dict[int, Pause]] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._holds: dict[Pause, _Hold] = {}
        self._assigned: dict[Holder, Pause] = {}  # the pause last assigned to each client, also when it has ended
        self._claims: dict[str, Callable[[Pause], None]] = {}
        self._change = asyncio.Event()

    # Pauses

    def begin(self, process: Process, thread_id: int, record: PauseRecord) -> Pause:
        """Add a pause of a thread; it is listed once the thread has stopped."""
        located = "file" in record
        nth = record.pop("nth", 0)
        pause_id = str(self._numbers.of_pause(process.instance, nth)) if nth else ""
        if not pause_id or pause_id in self._pauses:  # the process gives two of its threads one number
            pause_id = str(self._numbers.new(PAUSE))
        pause = Pause(pause_id, process, thread_id, record, announced=located, located=located)
        self._ended.pop(pause.id, None)  # its process has dialled in again
        self._pauses[pause.id] = pause
        self._by_thread.setdefault(process, {})[thread_id] = pause
        return pause

    def end(self, pause: Pause, reason: str) -> None:
        """Remove a pause; a later `attach` to it is refused with the reason."""
        threads = self._by_thread.get(pause.process, {})
        if threads.get(pause.thread_id) is pause:  # otherwise the thread has paused again already
            del threads[pause.thread_id]
            if not threads:
                del self._by_thread[pause.process]
        self._holds.pop(pause, None)
        if self.get(pause.id) is pause:
            del self._pauses[pause.id]
            self._ended[pause.id] = reason[:MAX_REASON]
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
            self.changed()

    def has_room(self, process: Process, size: int) -> bool:
        """Return whether the pauses of a process's job, and those of all jobs, may have so many bytes more."""
        job = process.about.get("job")
        of_job = sum(pause.bytes for pause in self._pauses.values() if pause.process.about.get("job") == job)
        return size + of_job <= MAX_BYTES // 4 and size + sum(one.bytes for one in self._pauses.values()) <= MAX_BYTES

    def resumed(self, pause: Pause, stop: Message | None, *, reason: str | None = None) -> None:
        """Note that pydevd has confirmed that a thread runs.

        Args:
            pause: of that thread.
            stop: `pause.stopped` when the request was sent: a later stop may be reported before the confirmation.
            reason: why the pause has ended; None for a step, whose pause continues at the next stop.
        """
        if pause.stopped is not None and pause.stopped is not stop:
            return
        pause.stopped = None
        if reason is not None:
            self.end(pause, reason)

    def get(self, pause_id: str) -> Pause | None:
        """Return a pause that has not ended."""
        return self._pauses.get(pause_id)

    def why_gone(self, pause_id: str) -> str | None:
        """Return why a pause is not listed; None if there never was one with this id."""
        if pause_id in self._ended:
            return f"has ended: {self._ended[pause_id]}"
        why = "is not here: it has ended, or its process has not dialled in again since the gateway restarted"
        return why if self._numbers.was_given(pause_id) else None

    def listed(self) -> list[Pause]:
        """Return the pauses that clients can see: suspended with a known location, or held."""
        return [p for p in self._pauses.values() if (p.stopped is not None and p.located) or p in self._holds]

    def of_instance(self, instance: str) -> list[Pause]:
        """Return the listed pauses of a process, by its instance id."""
        return [pause for pause in self.listed() if pause.process.instance == instance]

    def of_thread(self, process: Process, thread_id: int) -> Pause | None:
        """Return the pause of a thread."""
        return self._by_thread.get(process, {}).get(thread_id)

    def of_process(self, process: Process) -> list[Pause]:
        """Return all pauses of a process, listed or not."""
        return list(self._by_thread.get(process, {}).values())

    def describe(self, pause: Pause) -> ListedPause:
        """Return the JSON object of `raydebug paused --json`."""
        about = {**pause.process.about, **{k: v for k, v in pause.record.items() if v is not None}}
        now = time.monotonic()
        expires_in_s = None if pause.expires_at is None else round(pause.expires_at - now, 3)
        times = {"since_s": round(now - pause.since, 3), "expires_in_s": expires_in_s}
        state = "attached" if pause in self._holds else "waiting"
        shown = {name: about.get(name) for name in PauseFacts.__annotations__}
        return cast(ListedPause, {"id": pause.id, **shown, **times, "state": state})

    # Who holds a pause

    def assign(self, pause: Pause, client: Holder) -> None:
        """Give a pause to a client; the client's last pause is free again."""
        last = self._assigned.get(client)
        if last is not None:
            pause.first = last.first
            self._holds.pop(last, None)
        self._assigned[client] = pause
        self._holds[pause] = _Hold(client, time.monotonic())
        pause.reserved = False

    def release(self, client: Holder) -> Pause | None:
        """Forget a client, and return the pause that it held last; the thread stays suspended for the next client."""
        pause = self._assigned.pop(client, None)
        if pause is not None and self.holder(pause) is client:
            del self._holds[pause]
            self.changed()
        return pause

    def holder(self, pause: Pause) -> Holder | None:
        """Return the client of a pause."""
        hold = self._holds.get(pause)
        return None if hold is None else hold.client

    def held_s(self, pause: Pause) -> float:
        """Return for how many seconds the client of a pause has held it."""
        hold = self._holds.get(pause)
        return 0.0 if hold is None else time.monotonic() - hold.since

    def pause_of(self, client: Holder) -> Pause | None:
        """Return the pause last assigned to a client, also when it has ended; None before the first one."""
        return self._assigned.get(client)

    def clients_of(self, process: Process) -> list[Holder]:
        """Return the clients that hold a pause of a process or wait for its next one."""
        return [client for client, pause in self._assigned.items() if pause.process is process]

    def next_for(self, process: Process) -> Holder | None:
        """Return the client that gets the next pause of a process: it has resumed its last pause there."""
        waiting = (c for c, pause in self._assigned.items() if pause.process is process and not self.get(pause.id))
        return next(waiting, None)

    def claim(self, request: str, take: Callable[[Pause], None]) -> None:
        """Hand the pause that a pause request brings about to `take`, instead of to a waiting client."""
        self._claims.pop(request, None)
        self._claims[request] = take
        while len(self._claims) > MAX_CLAIMS:
            del self._claims[next(iter(self._claims))]

    def claimed(self, pause: Pause) -> Callable[[Pause], None] | None:
        """Return the callback of the request that brought a new pause about, once."""
        return self._claims.pop(str(pause.record.get("request")), None)

    def is_free(self, pause: Pause) -> bool:
        """Return whether a pause waits for any client."""
        return pause.stopped is not None and pause not in self._holds and not pause.reserved

    # Changes

    def changed(self) -> None:
        """Wake all tasks that wait for a change."""
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def change(self) -> None:
        """Wait until a pause begins, ends, or changes hands."""
        await self._change.wait()

    async def next_waiting(self) -> Pause:
        """Return the oldest free pause; wait for one if there is none."""
        while True:
            for pause in self._pauses.values():
                if self.is_free(pause):
                    return pause
            await self.change()
