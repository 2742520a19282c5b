"""Who holds which pause: assign, release, next_for and claim, without a process and without a network."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from raydebug.gateway import board as boards
from raydebug.gateway import pause_lifecycle
from raydebug.gateway.board import Board, Pause
from raydebug.gateway.kept import KeptPerJob
from raydebug.gateway.listener import PROCESSES_SHARE, Proven
from raydebug.gateway.numbers import Numbers
from raydebug.gateway.pause_lifecycle import Expiry
from raydebug.gateway.processes import Process
from raydebug.protocol import messages
from raydebug.protocol.records import PauseRecord, read

RECORD: Any = {"kind": "breakpoint", "file": "train.py", "line": 7}


class FakeClient:
    """A client that is assigned pauses and receives no request."""

    name = "a client"

    def show(self, pause: Pause) -> None: ...

    def forward(self, event: dict[str, Any]) -> None: ...

    def lost(self, reason: str) -> None: ...


def paused(board: Board, process: Process, thread_id: int = 1, **record: Any) -> Pause:
    """Begin a pause, and suspend its thread."""
    pause = board.begin(process, thread_id, {**RECORD, **record})
    pause.stopped = {"threadId": thread_id}
    return pause


def a_process(instance: str = "i1") -> Process:
    return Process({"pid": 41, "instance": instance})


async def test_assigned_pause_is_attached() -> None:
    """A pause is `waiting` until it is assigned, then `attached` to that client alone."""
    board, client = Board(Numbers()), FakeClient()
    pause = paused(board, a_process())
    assert (board.describe(pause)["state"], board.is_free(pause)) == ("waiting", True)
    board.assign(pause, client)
    assert (board.describe(pause)["state"], board.is_free(pause)) == ("attached", False)
    assert (board.holder(pause), board.pause_of(client)) == (client, pause)
    assert board.clients_of(pause.process) == [client]


async def test_released_pause_wakes_the_next_client() -> None:
    """A client that waits for any pause gets the one that another client releases."""
    board, client = Board(Numbers()), FakeClient()
    pause = paused(board, a_process())
    board.assign(pause, client)
    waiting = asyncio.ensure_future(board.next_waiting())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert board.release(client) is pause
    assert await asyncio.wait_for(waiting, 1) is pause
    assert (board.holder(pause), board.pause_of(client), board.release(client)) == (None, None, None)


async def test_client_keeps_its_process_after_a_resume() -> None:
    """A client whose pause was resumed gets the next pause of the same process, and of no other."""
    board, client, process, other = Board(Numbers()), FakeClient(), a_process(), a_process("i2")
    first = paused(board, process)
    board.assign(first, client)
    assert board.next_for(process) is None
    board.resumed(first, first.stopped, reason="it was continued")
    assert (board.next_for(process), board.next_for(other)) == (client, None)
    assert board.why_gone(first.id) == "has ended: it was continued"
    second = paused(board, process)
    board.assign(second, client)
    assert (second.first, board.next_for(process)) == (first, None)


async def test_late_confirmation_ends_no_later_stop() -> None:
    """The confirmation of a resume that arrives after the thread's next stop ends nothing."""
    board = Board(Numbers())
    pause = paused(board, a_process())
    stop, pause.stopped = pause.stopped, {"threadId": 1, "reason": "step"}
    board.resumed(pause, stop, reason="it was continued")
    assert board.get(pause.id) is pause
    assert pause.stopped == {"threadId": 1, "reason": "step"}


async def test_claimed_pause_goes_to_its_request_once() -> None:
    """A pause with a request's number is handed to that request, once; further claims displace the oldest ones."""
    board, taken = Board(Numbers()), list[Pause]()
    board.claim("r1", taken.append)
    pause = paused(board, a_process(), request="r1")
    take = board.claimed(pause)
    assert take is not None
    take(pause)
    assert (taken, board.claimed(pause)) == ([pause], None)
    for number in range(boards.MAX_CLAIMS + 1):
        board.claim(f"q{number}", taken.append)
    assert board.claimed(paused(board, a_process(), request="q0")) is None


async def test_end_of_a_pause_frees_its_thread() -> None:
    """An ended pause leaves the list, its thread and its client; the thread's next pause is another one."""
    board, client, process = Board(Numbers()), FakeClient(), a_process()
    first = paused(board, process)
    board.assign(first, client)
    board.end(first, "its thread ended")
    assert (board.listed(), board.of_process(process), board.holder(first)) == ([], [], None)
    second = paused(board, process)
    board.end(first, "again")
    assert board.of_thread(process, 1) is second
    assert board.why_gone(first.id) == "has ended: its thread ended"


async def test_reserved_pause_is_not_offered() -> None:
    """A pause that a request has reserved is not the next one of a waiting client."""
    board = Board(Numbers())
    pause = paused(board, a_process())
    pause.reserved = True
    assert not board.is_free(pause)
    board.assign(pause, FakeClient())
    assert not pause.reserved


async def test_fields_of_a_listed_pause() -> None:
    """A pause has all fields that docs/02-attach.md shows, null where its process has sent none, and no others."""
    board = Board(Numbers())
    about = board.describe(board.begin(Process({"pid": 41}), 1, read({"kind": "breakpoint", "nth": 1}, PauseRecord)))
    page = (Path(__file__).parents[2] / "docs/02-attach.md").read_text()
    example = page.partition("## `raydebug paused --json`")[2].partition("```json\n")[2].partition("```")[0]
    assert about.keys() == json.loads(example)["pauses"][0].keys()
    assert {name for name, value in about.items() if value is not None} == {"id", "kind", "pid", "since_s", "state"}


async def test_pause_that_is_reported_again() -> None:
    """A pause whose process dials in again has its number again; no two pauses have one."""
    board = Board(Numbers())
    pause = paused(board, a_process(), nth=1)
    board.end(pause, "out of reach")
    again = a_process()
    assert paused(board, again, nth=1).id == pause.id
    assert board.get(pause.id) in board.of_process(again)
    other = paused(board, again, 2, nth=1)
    assert other.id != pause.id
    board.end(pause, "late")
    assert board.get(pause.id) is board.of_thread(again, 1)


async def test_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that is set two hours ahead makes no pause older, and resumes none before its limit."""
    board, real = Board(Numbers()), time.time
    monkeypatch.setattr(pause_lifecycle, "CHECK_EVERY_S", 0.0)
    pause = paused(board, a_process())
    resumed = []
    monkeypatch.setattr(Expiry, "_resume", lambda self, pause, why: asyncio.sleep(0, resumed.append(why)))
    monkeypatch.setattr(Expiry, "_log_in_job", lambda self, pause, text: asyncio.sleep(0, resumed.append(text)))
    watching = asyncio.ensure_future(Expiry(board).watch())
    while pause.expires_at is None:
        await asyncio.sleep(0)
    board.assign(pause, client := FakeClient())
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    assert board.held_s(pause) < 3600
    board.release(client)
    for _ in range(10):
        await asyncio.sleep(0)
    watching.cancel()
    about = board.describe(pause)
    assert resumed == []
    assert about["since_s"] < 3600 < 7000 + (about["expires_in_s"] or 0)


async def test_a_job_takes_no_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the processes of a job make the gateway keep displaces what others have only if these have ended."""
    kept = KeptPerJob[int](10, 3, lambda: ["lives", "floods"])
    for number, job in enumerate(["ended", "lives", *5 * ["floods"], *"abcdefgh"]):
        kept.add(job, number, 3)
    assert [kept.of_job(job) for job in ("lives", "floods", "ended", "h")] == [[1], [5, 6], [], []]
    board, flood = Board(Numbers()), Process({"pid": 1, "job": "floods", "instance": "x"})
    events = pause_lifecycle.ProcessEvents(flood, board)
    monkeypatch.setattr(boards, "MAX_BYTES", 400_000)
    monkeypatch.setattr(Process, "top_frame", lambda *_: asyncio.sleep(0, {}))
    for thread in range(20):
        record = {**RECORD, "exception": "x" * 60_000 * (thread < 10)}
        events.take({"event": messages.PAUSE_EVENT, "body": {"threadId": thread, "record": record}})
        events.take({"event": "stopped", "body": {"threadId": thread, "text": "x" * 90_000}})
    assert sum(pause.bytes for pause in board._pauses.values()) < 120_000
    assert len(board.of_process(flood)) == 20
    assert board.has_room(a_process(), 60_000)
    board.end(first := board.of_process(flood)[0], "x" * 60_000)
    assert len((board.why_gone(first.id) or "").removeprefix("has ended: ")) == boards.MAX_REASON
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    dials, open_ones = Proven(PROCESSES_SHARE), [MagicMock(is_closing=lambda: False) for _ in range(80)]
    for of, job, most in ((0, "floods", 24), (24, "b", 32)):
        for one in open_ones[of:most]:
            dials.add(one, job)
        with pytest.raises(ConnectionRefusedError):
            dials.add(open_ones[-1], job)
