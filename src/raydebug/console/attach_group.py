"""`raydebug attach all`, `--ranks`, `--job`: several pauses at one prompt, or one script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from raydebug.console.group import Group
from raydebug.console.group_script import run_group_script
from raydebug.console.interrupt import Interrupted, ignore_interrupts, interruptible
from raydebug.console.paint import Paint
from raydebug.console.script import STOP_TIMEOUT_S, from_list, from_stdin
from raydebug.console.selection import Pause, Selection
from raydebug.console.session import Door
from raydebug.errors import Exit
from raydebug.settings.paths import state_dir


def attach_group(
    door: Door,
    selection: Selection,
    list_pauses: Callable[[], list[Pause]],
    *,
    commands: Sequence[str] = (),
    timeout_s: float | None = None,
    history_dir: Path | None = None,
) -> Exit:
    """Attach to every pause of a selection and stay until the person leaves or the script ends.

    Args:
        door: the gateway.
        selection: which pauses.
        list_pauses: asks the gateway for all of its pauses; blocks.
        commands: of `-x`; none: from stdin, which is a prompt when it is a terminal.
        timeout_s: limit in seconds of the wait for the pauses, and of each wait for stops in a script.
        history_dir: where the history of the prompt is kept; None: this user's state directory.

    Raises:
        RaydebugError: none could be attached, all are lost, or out of time.
    """
    return asyncio.run(_attach(door, selection, list_pauses, commands, timeout_s, history_dir))


async def _attach(
    door: Door,
    selection: Selection,
    list_pauses: Callable[[], list[Pause]],
    commands: Sequence[str],
    timeout_s: float | None,
    history_dir: Path | None,
) -> Exit:
    ignore_interrupts()
    paint = Paint.for_stdout()
    interactive = not commands and sys.stdin.isatty()
    group = Group(door, selection, list_pauses, paint)
    try:
        await interruptible(group.begin(whole=not interactive, timeout_s=timeout_s))
        if interactive:
            from raydebug.console.group_prompt import GroupConversation  # prompt_toolkit costs 100 ms

            return await GroupConversation(group, paint, history_dir or state_dir()).run()
        lines = from_list(commands) if commands else from_stdin()
        return await run_group_script(group, lines, timeout_s=STOP_TIMEOUT_S if timeout_s is None else timeout_s)
    except Interrupted:
        return Exit.INTERRUPTED
    finally:
        await group.leave()
