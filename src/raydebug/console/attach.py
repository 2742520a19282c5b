"""`raydebug attach`: take a pause, then talk with a person, or run a script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from raydebug import render
from raydebug.console.debugger import Debugger
from raydebug.console.interrupt import Interrupted, ignore_interrupts, interruptible
from raydebug.console.paint import Paint
from raydebug.console.screen import opening
from raydebug.console.script import STOP_TIMEOUT_S, from_list, from_stdin, run_script
from raydebug.console.session import DebugSession, Door, Output
from raydebug.console.stock_session import StockDoor
from raydebug.errors import Exit, RaydebugError
from raydebug.settings.paths import state_dir

NEXT = "next"
PROCESS = ("pid:", "worker:")  # gateway/asked.py
# pydevd's advice after 3 s of an evaluation (pydevd_net_command_factory_json.py, 1.8.22): the prompt says its own. And
# the gateway's last words, which come again as the reason of its `terminated`.
_SAID_BETTER = ("Evaluating: ", "raydebug: ")


def choose_pause(pauses: Sequence[dict[str, Any]], suffix: str = "") -> str:
    """Return the id of the only pause that waits.

    Args:
        pauses: those of the cluster.
        suffix: what a command needs to name the cluster: "" or " --name NAME".

    Raises:
        RaydebugError: none waits, or several do; says how to choose.
    """
    waiting = [pause for pause in pauses if pause.get("state") == "waiting"]
    if len(waiting) == 1:
        return str(waiting[0]["id"])
    if not waiting:
        held = f"; {len(pauses)} held by other clients" if pauses else ""
        raise RaydebugError(
            "no pause waits to be attached",
            cause=f"the gateway lists no waiting pause{held}",
            fix=f"`raydebug attach next{suffix}` waits for the next one",
            code="pause.none",
        )
    ids = ", ".join(str(pause["id"]) for pause in waiting[:8])
    raise RaydebugError(
        f"{len(waiting)} pauses wait, and no ID says which one",
        cause=f"waiting: {ids}{', ...' if len(waiting) > 8 else ''}",
        fix=f"name one: raydebug attach {waiting[0]['id']}{suffix}; all at one prompt: raydebug attach all{suffix}",
        code="pause.ambiguous",
        exit_code=Exit.USAGE,
    )


def attach_pause(
    door: Door | StockDoor,
    target: str,
    *,
    cluster: str,
    commands: Sequence[str] = (),
    timeout_s: float | None = None,
    steal: bool = False,
    history_dir: Path | None = None,
) -> Exit:
    """Attach to a pause and stay until the person leaves or the script ends.

    Args:
        door: the gateway, or what stands in where there is none.
        target: a pause's id, `next`, or a process: `pid:PID`, `pid:PID@IP`, `worker:ID`.
        cluster: its name, for what is said while waiting.
        commands: of `-x`; none: from stdin, which is a prompt when it is a terminal.
        timeout_s: limit in seconds of the wait for `next` or a process, and of each wait for a stop in a script.
        steal: take the pause from a client that holds it.
        history_dir: where the history of the prompt is kept; None: this user's state directory.

    Raises:
        RaydebugError: refused, lost, or out of time.
    """
    return asyncio.run(_attach(door, target, cluster, commands, timeout_s, steal, history_dir))


async def _attach(
    door: Door | StockDoor,
    target: str,
    cluster: str,
    commands: Sequence[str],
    timeout_s: float | None,
    steal: bool,
    history_dir: Path | None,
) -> Exit:
    ignore_interrupts()
    paint = Paint.for_stdout()
    interactive = not commands and sys.stdin.isatty()
    try:
        session = await _open(door, target, cluster, timeout_s, steal)
    except Interrupted:
        return Exit.INTERRUPTED
    try:
        debugger = Debugger(session, paint, interactive=interactive)
        if interactive:
            from raydebug.console.prompt import Conversation  # prompt_toolkit costs 100 ms that a script does not need

            return await Conversation(debugger, history_dir or state_dir()).run()
        if not commands:
            render.out(await opening(debugger))
        lines = from_list(commands) if commands else from_stdin()
        return await run_script(debugger, lines, timeout_s=STOP_TIMEOUT_S if timeout_s is None else timeout_s)
    except Interrupted:
        return Exit.INTERRUPTED
    finally:
        if not (session.stays_paused or session.running or session.ended.is_set()):
            render.say("the task goes on: without a gateway nothing holds a pause that no debugger has")
        await session.leave()


async def _open(
    door: Door | StockDoor, target: str, cluster: str, timeout_s: float | None, steal: bool
) -> DebugSession:
    opened = door.open(target, steal=steal, on_output=_show_output)
    if target.startswith(PROCESS):
        return await _open_process(opened, target, timeout_s)
    if target != NEXT:
        return await interruptible(opened)
    try:
        async with asyncio.timeout(timeout_s):
            with render.waiting(f"waits for the next pause of cluster '{cluster}'; Ctrl-C leaves"):
                return await interruptible(opened)
    except TimeoutError as error:
        raise RaydebugError(
            f"no pause came within {timeout_s:g} s",
            cause=f"no thread of cluster '{cluster}' stopped while we waited",
            fix="wait longer with --timeout SECONDS, or see what runs with `raydebug ps`",
            code="pause.none-in-time",
            exit_code=Exit.TIMEOUT,
        ) from error


async def _open_process(opened: Awaitable[DebugSession], target: str, timeout_s: float | None) -> DebugSession:
    try:
        async with asyncio.timeout(timeout_s):
            with render.waiting(f"asks {target} to pause; Ctrl-C leaves it alone"):
                return await interruptible(opened)
    except TimeoutError as error:
        raise RaydebugError(
            f"{target} did not stop within {timeout_s:g} s",
            cause="its thread did not come to a line of the user's code; what it does is said above",
            fix="wait longer (without --timeout: until Ctrl-C), or set a breakpoint with `raydebug break add`",
            code="process.not-stopped",
            exit_code=Exit.TIMEOUT,
        ) from error


def _show_output(output: Output) -> None:
    """Print what code that we run prints, and log points; of the rest, what is important.

    Nothing else comes as `stdout`: the job's own output is not redirected, it is in its log.
    """
    text = render.visible(output.text)
    if output.category == "stdout":
        render.out_raw(text)
    elif output.category in ("important", "stderr") and not output.text.startswith(_SAID_BETTER):
        render.say(text.rstrip("\n"))
