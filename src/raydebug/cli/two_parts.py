"""Verbs whose own words stand before `--`, and the user's command behind it."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from raydebug.errors import Exit, RaydebugError

_COMMAND = "raydebug.command"


class TwoParts(TyperCommand):
    """A verb of that kind: what stands behind the first `--` is no argument of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the user's command apart."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


def command_of(ctx: typer.Context) -> list[str]:
    """Return the user's command; empty where there is none."""
    command: list[str] = ctx.meta[_COMMAND]
    return command


def needed_command_of(ctx: typer.Context, purpose: str, *, or_else: str = "") -> list[str]:
    """Return the user's command.

    Args:
        ctx: of the verb.
        purpose: what the command is wanted for, as `to try`.
        or_else: what may be done without one, added to the fix.

    Raises:
        RaydebugError: there is none.
    """
    command = command_of(ctx)
    if not command:
        raise RaydebugError(
            f"there is no command {purpose}",
            cause="the training command stands behind `--`, as for `raydebug run`",
            fix=f"raydebug {ctx.info_name} -- python -m verl.trainer.main_ppo ...{or_else}",
            code=f"{ctx.info_name}.no-command",
            exit_code=Exit.USAGE,
        )
    return command
