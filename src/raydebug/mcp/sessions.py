"""What tools do at pauses. Each call attaches, acts and detaches: a pause is free for other clients between calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import anyio

from raydebug import render
from raydebug.client.gateway_client import fetch_pauses, name_owner, name_place, name_reason
from raydebug.cluster.state import Cluster
from raydebug.console import commands
from raydebug.console.debugger import CommandFailed, Debugger
from raydebug.console.group import Group
from raydebug.console.selection import Selection, joined
from raydebug.console.session import GatewayAddress
from raydebug.console.view import opening
from raydebug.errors import UsageError
from raydebug.protocol.listings import ListedPause

T = TypeVar("T")
ALL = "all"
STEPS = {"no": "c", "over": "n", "into": "s", "out": "r"}
LOOK_PERIOD_S = 0.5


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread; when the caller is cancelled, the thread is abandoned."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


class QuietDebugger(Debugger):
    """A debugger whose output is returned by a tool, and not printed."""

    @functools.cached_property
    def heard(self) -> list[str]:
        return []

    def say(self, text: str, *, to: Callable[[str], None] = render.out) -> None:
        self.heard.append(text)


class Sessions:
    """Acts at the pauses of a cluster. Every method raises RaydebugError when a pause cannot be attached.

    Args:
        runs_code: whether `stack` may show values as pydevd does, by `__repr__` and `__str__` of the user's classes.
    """

    def __init__(self, find: Callable[[], Cluster], *, runs_code: bool) -> None:
        self._find, self._runs_code = find, runs_code
        self._attaching = asyncio.Lock()  # agents call tools side by side, and a pause has one client at a time

    async def stack(self, pauses: str, frame: int, timeout_s: float) -> str:
        """Return where pauses are: heading, source, frames, and, where code may run, the locals of one frame.

        Raises:
            CommandFailed: there is no such frame.
            TimeoutError: it took longer than timeout_s seconds.
        """
        shown = []
        with anyio.fail_after(timeout_s):
            async with self._attaching, self._attached(pauses) as group:
                for debugger in group.debuggers:
                    select_frame(debugger, frame)
                    heading = f"pause {debugger.session.pause.get('id')}: {await opening(debugger)}"
                    pause = f"snapshot(pause={debugger.session.pause.get('id')!r}, frame={frame})"
                    unread = "" if self._runs_code else f"not read, as that runs code of the job; {pause} shows them"
                    shown.append(await show_frame(debugger, heading, unread))
        return "\n\n".join(shown)

    async def evaluate(self, code: str, pauses: str, frame: int, timeout_s: float) -> str:
        """Run code at pauses, and return the different answers, each after the names of those that gave it.

        Raises:
            TimeoutError: the pauses could not be attached within timeout_s seconds.
        """
        answers: dict[str, str] = {}

        async def ask(group: Group, one: Debugger) -> None:
            try:
                select_frame(one, frame)
                ((_, outcome),) = await group.run([one], f"! {code}")
            except CommandFailed as failed:
                outcome = failed
            text = f"*** {outcome}" if isinstance(outcome, CommandFailed) else outcome
            answers[_name(one)] = "\n".join(filter(None, [*_heard(one), text])) or "None"

        with anyio.move_on_after(timeout_s):
            async with self._attaching, self._attached(pauses) as group:
                late = f"*** no answer within {timeout_s:g} s: it is interrupted at its next line of Python"
                answers |= {_name(debugger): late for debugger in group.debuggers}
                await asyncio.gather(*(ask(group, debugger) for debugger in group.debuggers))
        if not answers:
            raise TimeoutError
        same: dict[str, list[str]] = {}
        for name, text in answers.items():
            same.setdefault(text, []).append(name)
        return "\n".join(f"{joined(names)}: {_indented(text)}" for text, names in same.items())

    async def resume(self, pauses: str, step: str, wait_s: float) -> str:
        """Resume pauses, and return where each stopped next; one that runs longer than wait_s seconds is left running.

        The wait ends early when another thread pauses: the resumed ones may wait for it.

        Raises:
            TimeoutError: the pauses could not be attached in time.
        """
        deadline = anyio.current_time() + wait_s
        others: list[ListedPause] = []
        async with contextlib.AsyncExitStack() as stack:
            with anyio.fail_after(max(wait_s, 2 * LOOK_PERIOD_S)):
                async with self._attaching:
                    known = {pause["id"] for pause in await self._listed()}
                    group = await stack.enter_async_context(self._attached(pauses))
                    names = {debugger: _name(debugger) for debugger in group.debuggers}
                    outcomes = dict(await group.run(list(names), STEPS[step]))
            left_s = wait_s
            while left_s > 0 and not others and await group.wait_stopped(names, timeout_s=min(LOOK_PERIOD_S, left_s)):
                others = [
                    pause for pause in await self._listed() if pause["id"] not in known and pause["state"] == "waiting"
                ]
                left_s = deadline - anyio.current_time()
            lines = [f"{name}: {_indented(_what_became(one, outcomes[one]))}" for one, name in names.items()]
        return "\n".join([*lines, *(f"also paused: {pause_line(pause)}" for pause in others)])

    async def _listed(self) -> list[ListedPause]:
        return await in_thread(lambda: fetch_pauses(self._find()))

    @contextlib.asynccontextmanager
    async def _attached(self, pauses: str) -> AsyncIterator[Group]:
        cluster = await in_thread(self._find)
        chosen = choose_pauses(await self._listed(), pauses)
        address = GatewayAddress.of(cluster, reads_exceptions=self._runs_code)
        group = Group(address, render.Paint(), interactive=False, kind=QuietDebugger)
        try:
            failures = await group.join(chosen)
            if failures:  # an answer of some of the named pauses would mislead
                raise failures[0]
            yield group
        finally:
            with anyio.CancelScope(shield=True):  # also when the client has left: what still runs there is interrupted
                await group.leave()


def choose_pauses(listed: Sequence[ListedPause], wanted: str) -> list[ListedPause]:
    """Return the pauses that a tool names: ids, separated by commas, or `all` that wait.

    Raises:
        RaydebugError: there is no such pause.
    """
    known = {pause["id"]: pause for pause in listed}
    waiting = [pause["id"] for pause in Selection().split(listed)[0]]
    ids = (waiting or [ALL]) if wanted.strip() == ALL else [word.strip() for word in wanted.split(",")]
    unknown = next((pause_id for pause_id in ids if pause_id not in known), None)
    if unknown is not None:
        raise UsageError(
            "no pause waits" if unknown == ALL else f"there is no pause '{unknown[:40]}'",
            cause=f"paused: {', '.join([*known][:20]) or 'nothing'}", fix="overview() lists the pauses",
            code="pause.none" if unknown == ALL else "pause.unknown",
        )  # fmt: skip
    return [known[pause_id] for pause_id in dict.fromkeys(ids)]


def pause_line(pause: ListedPause) -> str:
    """Return a pause on one line, its id first."""
    since = render.duration(pause.get("since_s"), whole=True)
    facts = (pause["kind"], name_place(pause), name_reason(pause), name_owner(pause))
    return render.visible(", ".join(filter(None, (f"{pause['id']} ({pause['state']}, {since})", *facts))), keep="")


def own_frames(debugger: Debugger) -> list[int]:
    """Return the indices of the frames that are not Ray's, innermost first; of all frames if there are no others."""
    frames = debugger.stack.frames
    return [at for at, one in enumerate(frames) if not one.folded] or list(range(len(frames)))


def select_frame(debugger: Debugger, number: int) -> None:
    """Select a frame by its place in `own_frames`.

    Raises:
        CommandFailed: there is no such frame.
    """
    frames = own_frames(debugger)
    if number >= len(frames):
        raise CommandFailed(f"there is no frame {number}: the outermost is {len(frames) - 1}")
    debugger.stack.selected = frames[number]


async def show_frame(debugger: Debugger, heading: str, unread: str = "") -> str:
    """Return a heading with source, then the frames with their numbers, then the locals of the selected frame."""
    stack = debugger.stack
    frames = [
        f"{'>' if at == stack.selected else ' '} {number}  {stack.frames[at].place}"
        for number, at in enumerate(own_frames(debugger))
    ]
    local = unread or await commands.BY_NAME["locals"].run(debugger, "")
    return "\n".join([heading.rstrip(), "", "frames, the innermost first:", *frames, "", "locals:", local])


def _what_became(debugger: Debugger, outcome: str | CommandFailed) -> str:
    session = debugger.session
    if isinstance(outcome, CommandFailed):
        return f"not resumed: {outcome}"
    if session.ended.is_set():
        return f"gone: {session.lost().cause}"
    state = "running" if debugger.running else f"stopped, as pause {session.pause.get('id')}"
    return "\n".join([state, *_heard(debugger)])


def _heard(debugger: Debugger) -> list[str]:
    assert isinstance(debugger, QuietDebugger)
    return debugger.heard


def _name(debugger: Debugger) -> str:
    """Return the rank of a pause; without one, or where two have the same, its id."""
    return debugger.label if debugger.label == f"rank {debugger.rank}" else f"pause {debugger.session.pause.get('id')}"


def _indented(text: str) -> str:
    """Return text; several lines below, indented: a value must not look like the answer of another rank."""
    lines = text.split("\n")
    return text if len(lines) == 1 else "".join(f"\n    {line}" for line in lines)
