"""Lay a profile inside the driver of a job, before the trainer reads its arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from raydebug.profile.recognise import recognise


def apply(argv: Sequence[str], *, profile: str, tiny: Sequence[str] = ()) -> list[str] | None:
    """Return what a training command's sys.argv[1:] becomes, and say in the job's log what changed.

    Args:
        argv: the whole command, as `sys.orig_argv` has it.
        profile: the profile's name.
        tiny: what is swapped in: `model`, `data`.

    Returns:
        The new arguments; None when the command is no training that we know.

    Raises:
        RaydebugError: the profile is unknown or cannot be laid over this command, or nothing tiny can be made.
    """
    trainer = recognise(argv)
    if trainer is None:
        return None
    from pathlib import Path

    from raydebug import render
    from raydebug.profile.lay import lay
    from raydebug.profile.swap import OURS, hide_from_git

    # `python -m` puts the working folder first, only after site has run; with -P or -I it does not at all.
    search = sys.path if sys.flags.safe_path else ["", *sys.path]
    laid = lay(argv, profile=profile, environ=os.environ, folder=Path.cwd(), search=search, tiny=tiny)
    if any(f"{OURS}/" in str(change.new) for change in laid.overlay.changes):
        hide_from_git(Path(OURS))
    speaks = os.environ.get("RANK", "0") == "0"
    for build in laid.builds:
        if speaks:
            render.say(f"raydebug: making a tiny {build.what} in {build.target}")
        build.make(os.environ)
    if speaks:
        changes = laid.overlay.changes
        render.say(f"raydebug: the profile '{profile}' changes {len(changes)} settings of {trainer.module}:")
        for line in (*changes, *laid.overlay.notes):
            render.say(f"  {line}")
        if laid.overlay.missing:
            render.say(f"  left alone, it has no key for: {', '.join(one.setting for one in laid.overlay.missing)}")
    first = trainer.overrides_at if trainer.launcher_at is None else trainer.launcher_at
    return laid.argv[first:]
