"""`raydebug attach`: take one pause or several, then talk with a person at a prompt, or run a script."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from raydebug import render
from raydebug.console import commands
from raydebug.console.debugger import CommandFailed, Debugger
from raydebug.console.group import Group
from raydebug.console.interrupt import Interrupted, ignore_interrupts, interruptible
from raydebug.console.selection import Selection, joined
from raydebug.console.session import GatewayAddress
from raydebug.console.unmanaged_session import UnmanagedCluster
from raydebug.console.view import opening
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.protocol.listings import ListedPause
from raydebug.render import Paint
from raydebug.settings.files import state_dir

STOP_TIMEOUT_S = 60.0  # of a script


def choose_pause(pauses: Sequence[ListedPause]) -> str:
    """Return the id of the only waiting pause of a cluster.

    Raises:
        RaydebugError: no pause waits, or several do; the fix says how to choose.
    """
    waiting = [pause for pause in pauses if pause.get("state") == "waiting"]
    if len(waiting) == 1:
        return str(waiting[0]["id"])
    if not waiting:
        held = f"; {len(pauses)} held by other clients" if pauses else ""
        raise RaydebugError(
            "no pause waits to be attached",
            cause=f"the gateway lists no waiting pause{held}",
            fix="`raydebug attach next` waits for the next one",
            code="pause.none",
        )
    ids = ", ".join(str(pause["id"]) for pause in waiting[:8])
    one = render.command("raydebug", "attach", str(waiting[0]["id"]))
    raise UsageError(
        f"{len(waiting)} pauses wait, and no ID says which one",
        cause=f"waiting: {ids}{', ...' if len(waiting) > 8 else ''}",
        fix=f"name one: {one}; all at one prompt: raydebug attach all",
        code="pause.ambiguous",
    )


def attach_pause(
    address: GatewayAddress | UnmanagedCluster,
    target: str,
    *,
    cluster: str,
    commands: Sequence[str] = (),
    timeout_s: float | None = None,
    steal: bool = False,
    history_dir: Path | None = None,
) -> Exit:
    """Attach to one pause and stay until the person leaves or the script ends.

    Args:
        address: the gateway, or a cluster without one.
        target: a pause's id, `next`, or a process: `pid:PID`, `pid:PID@IP`, `worker:ID`.
        cluster: its name, shown while waiting.
        commands: of `-x`; if empty, lines of stdin, or a prompt when stdin is a terminal.
        timeout_s: limit in seconds of the wait for `next` or a process, and of each wait for a stop in a script.
        steal: take the pause from the client that holds it.
        history_dir: folder for the history of the prompt; None: this user's state directory.

    Raises:
        RaydebugError: refused, lost, or out of time.
    """
    attach = partial(Group.attach_one, target=target, cluster=cluster, steal=steal, timeout_s=timeout_s)
    return asyncio.run(_converse(address, attach, commands, timeout_s, history_dir))


def attach_group(
    address: GatewayAddress | UnmanagedCluster,
    selection: Selection,
    list_pauses: Callable[[], list[ListedPause]],
    *,
    commands: Sequence[str] = (),
    timeout_s: float | None = None,
    history_dir: Path | None = None,
) -> Exit:
    """Attach to every pause of a selection and stay until the person leaves or the script ends.

    Args:
        address: the gateway.
        selection: which pauses.
        list_pauses: asks the gateway for all of its pauses; blocks.
        commands: as of `attach_pause`.
        timeout_s: limit in seconds of the wait for the pauses, and of each wait for stops in a script.
        history_dir: as of `attach_pause`.

    Raises:
        RaydebugError: no pause could be attached, all are lost, or out of time.
    """
    attach = partial(Group.attach_selection, selection=selection, list_pauses=list_pauses, timeout_s=timeout_s)
    return asyncio.run(_converse(address, attach, commands, timeout_s, history_dir))


async def _converse(
    address: GatewayAddress | UnmanagedCluster,
    attach: Callable[[Group], Awaitable[None]],
    commands: Sequence[str],
    timeout_s: float | None,
    history_dir: Path | None,
) -> Exit:
    ignore_interrupts()
    interactive = not commands and sys.stdin.isatty()
    group = Group(address, Paint.for_stdout(), interactive=interactive)
    try:
        await interruptible(attach(group))
        if interactive:
            from raydebug.console.prompt import Prompt  # prompt_toolkit costs 100 ms that a script does not need

            return await Prompt(group, history_dir or state_dir()).run()
        if group.lone and group.current is not None and not commands:
            render.out(await opening(group.current))
        lines = from_list(commands) if commands else from_stdin()
        return await run_script(group, lines, timeout_s=STOP_TIMEOUT_S if timeout_s is None else timeout_s)
    except Interrupted:
        return Exit.INTERRUPTED
    finally:
        await group.leave()


async def from_list(lines: Iterable[str]) -> AsyncIterator[str]:
    """Yield the commands of `-x`."""
    for line in lines:
        yield line


async def from_stdin() -> AsyncIterator[str]:
    """Yield lines of stdin as they arrive; a program may write them one at a time."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read() -> None:
        try:
            for line in iter(sys.stdin.readline, ""):
                loop.call_soon_threadsafe(queue.put_nowait, line)
        finally:  # a script that cannot be read on has ended
            loop.call_soon_threadsafe(queue.put_nowait, "")

    # A daemon thread: a pipe that is never closed must not keep us from leaving.
    threading.Thread(target=read, name="stdin", daemon=True).start()
    while line := await queue.get():
        yield line


async def run_script(group: Group, lines: AsyncIterator[str], *, timeout_s: float = STOP_TIMEOUT_S) -> Exit:
    """Run commands one after the other; return at the first that fails at any rank. A final `c` is not waited for.

    Raises:
        RaydebugError: all sessions are lost, or a stop did not come in time.
        Interrupted: Ctrl-C.
    """
    async for line in lines:
        for command in commands.split(line):
            try:
                debuggers, rest = group.address(command)
                await _wait_stopped(group, debuggers, timeout_s)
                debuggers, rest = group.address(command)  # a process may have ended meanwhile
            except CommandFailed as failed:
                render.say(f"*** {failed}")
                return Exit.FAILED
            if not debuggers:
                return group.ended()
            if not group.show(await interruptible(group.run(debuggers, rest)), rest):
                return Exit.FAILED
            if any(debugger.leaving for debugger in debuggers):
                return Exit.OK
            await _wait_stopped(group, [debugger for debugger in debuggers if debugger.stepping], timeout_s)
    return Exit.OK


async def _wait_stopped(group: Group, debuggers: list[Debugger], timeout_s: float) -> None:
    late = await interruptible(group.wait_stopped(debuggers, timeout_s=timeout_s))
    if not late:
        return
    session = late[0].session
    name = f"process {session.pause.get('pid', '?')}" if group.lone else joined([debugger.label for debugger in late])
    raise RaydebugError(
        f"no stop within {timeout_s:g} s",
        cause=f"{name} {'has' if len(late) == 1 else 'have'} been running since '{session.resumed_by}'",
        fix="wait longer with --timeout SECONDS, or see `raydebug ps --processes`",
        code="session.no-stop",
        exit_code=Exit.TIMEOUT,
    )
