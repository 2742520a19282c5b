"""Lays a profile over a training command inside its driver process, before the program reads its arguments."""

from __future__ import annotations

import os
import sys

from raydebug.worker import names


def lay_profile() -> None:
    """Change sys.argv when this process is a training driver that the profile knows; say so in the job log."""
    arguments = getattr(sys, "orig_argv", [])
    if "-m" not in arguments and not any(a.endswith(".py") for a in arguments):
        return
    from raydebug.profile.overlay import apply

    changed = apply(arguments, profile=os.environ[names.PROFILE])
    if changed is not None:
        # orig_argv is [python, options, -m, module, args...]; sys.argv[0] is set by Python itself later.
        sys.argv[1:] = changed
        os.environ.pop(names.PROFILE)  # a child of the driver must not be changed again
