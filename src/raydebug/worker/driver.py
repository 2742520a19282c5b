"""Apply a profile to a training command inside its driver process, before the program reads its arguments."""

from __future__ import annotations

import os
import sys

from raydebug.protocol import variables

EXIT_USAGE = 2  # as raydebug's own verbs


def apply_profile() -> None:
    """Change sys.argv if this process is a training driver that the profile supports; log each change in the job's log.

    A requested profile that cannot be applied ends the process: without it the whole training would start.
    """
    arguments = getattr(sys, "orig_argv", [])
    if "-m" not in arguments and not any(a.endswith(".py") or a.startswith("-m") for a in arguments):
        return
    from raydebug.trainers.registry import recognise

    if recognise(arguments) is None:
        return
    from raydebug.profile.apply_profile import apply_in_driver

    tiny = os.environ.get(variables.TINY, "").split()
    try:
        changed = apply_in_driver(arguments, profile=os.environ[variables.PROFILE], tiny=tiny)
    except Exception as failure:  # noqa: BLE001 - see above
        _end(failure)
        return
    if changed is not None:
        # orig_argv is [python, options, -m, module, args...]; sys.argv[0] is set by Python itself later.
        sys.argv[1:] = changed
        os.environ.pop(variables.PROFILE)  # a child of the driver must not be changed again


def _end(failure: Exception) -> None:
    """Print the three lines of the error and exit at once: the import of `site` would swallow an exception."""
    if hasattr(failure, "fix"):
        lines = str(failure)
    else:
        lines = (
            f"error: raydebug itself failed: {type(failure).__name__}: {failure}\n"
            "cause: this is a fault of raydebug's own, while it applied the profile\n"
            "fix: run without --profile, and report this"
        )
    sys.stderr.write(f"{lines}\n")
    sys.stderr.flush()
    os._exit(EXIT_USAGE)
