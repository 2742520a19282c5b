"""Commands from `-x` or from a pipe at several pauses: one after the other, at the first that fails it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

from raydebug import render
from raydebug.console import commands
from raydebug.console.debugger import CommandFailed
from raydebug.console.group import Group
from raydebug.console.interrupt import interruptible
from raydebug.console.labels import joined
from raydebug.console.member import Member
from raydebug.errors import Exit, RaydebugError


async def run_group_script(group: Group, lines: AsyncIterator[str], *, timeout_s: float) -> Exit:
    """Run commands one after the other; leave at the first that fails anywhere. A last `c` is not waited for.

    Args:
        group: attached pauses.
        lines: the commands; each may hold several, divided by `;;`.
        timeout_s: limit of each wait for stops, in seconds.

    Raises:
        RaydebugError: all sessions are lost, or a stop did not come in time.
        Interrupted: Ctrl-C.
    """
    async for line in lines:
        for command in commands.split(line):
            try:
                members, rest = group.address(command)
            except CommandFailed as failed:
                render.say(f"*** {failed}")
                return Exit.FAILED
            await _stopped(members, timeout_s)
            members, rest = group.address(command)  # some may be gone by now
            if not members:
                return group.ended()
            if not group.show(await interruptible(group.run(members, rest)), rest):
                return Exit.FAILED
            if any(member.debugger.leaving for member in members):
                return Exit.OK
            stepping = [one for one in members if one.running and one.debugger.session.resumed_by != "continue"]
            await _stopped(stepping, timeout_s)
    return Exit.OK


async def _stopped(members: list[Member], timeout_s: float) -> None:
    late = await interruptible(Group.wait_stopped(members, timeout_s=timeout_s))
    if late:
        raise RaydebugError(
            f"no stop within {timeout_s:g} s",
            cause=f"{joined([member.label for member in late])} still run{'s' if len(late) == 1 else ''}",
            fix="wait longer with --timeout SECONDS, or look at what they do",
            code="session.no-stop",
            exit_code=Exit.TIMEOUT,
        )
