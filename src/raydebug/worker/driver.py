"""Lays a profile over a training command inside its driver process, before the program reads its arguments."""

from __future__ import annotations

import os
import sys

from raydebug.worker import names

EXIT_USAGE = 2  # as raydebug's own verbs


def lay_profile() -> None:
    """Change sys.argv when this process is a training driver that the profile knows; say so in the job log.

    A profile that was asked for and cannot be laid ends the process: in its place would start the whole training.
    """
    arguments = getattr(sys, "orig_argv", [])
    if "-m" not in arguments and not any(a.endswith(".py") or a.startswith("-m") for a in arguments):
        return
    from raydebug.profile.apply import apply

    tiny = os.environ.get(names.TINY, "").split()
    try:
        changed = apply(arguments, profile=os.environ[names.PROFILE], tiny=tiny)
    except Exception as failure:  # noqa: BLE001 - see above
        _end(failure)
        return
    if changed is not None:
        # orig_argv is [python, options, -m, module, args...]; sys.argv[0] is set by Python itself later.
        sys.argv[1:] = changed
        os.environ.pop(names.PROFILE)  # a child of the driver must not be changed again


def _end(failure: Exception) -> None:
    """Print the three lines, and end here: an exception would be taken for one of the import of site."""
    if hasattr(failure, "fix"):
        lines = str(failure)
    else:
        lines = (
            f"error: raydebug itself failed: {type(failure).__name__}: {failure}\n"
            "cause: this is a fault of raydebug's own, while it laid the profile\n"
            "fix: run without --profile, and report this"
        )
    sys.stderr.write(f"{lines}\n")
    sys.stderr.flush()
    os._exit(EXIT_USAGE)
