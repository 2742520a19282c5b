"""Install the hooks of the debugger in every Python below the cluster; raydebug.pth imports this module.

Each interpreter pays for it at its start, so it imports nothing that the interpreter has not loaded already.
"""

from __future__ import annotations

import atexit
import os
import sys

import raydebug
from raydebug import worker
from raydebug.protocol import variables
from raydebug.worker import import_hooks

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost 17 ms of imports
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any

_getframe = sys._getframe
EXIT_USAGE = 2  # as raydebug's own verbs


def _is_zero() -> bool:
    # Python ignores the variable with -E and -I.
    return os.environ.get("PYTHONBREAKPOINT") == "0" and not sys.flags.ignore_environment


_is_switched_off = _is_zero()  # as the program was started: Ray sets the variable when it connects


def breakpoint_hook(*_args: Any, **_kwargs: Any) -> None:
    """Stand in for `breakpoint()`: pause the calling frame; nothing with PYTHONBREAKPOINT=0, as in plain Python."""
    if _is_switched_off or _is_zero():
        return
    mode = os.environ.get(variables.RAY_DEBUG, "1")
    if mode not in ("0", "1"):
        _call_legacy_debugger()
    elif mode == "1" or "pydevd" in sys.modules:  # the program may have connected a debugger of its own
        with worker.fork_guard:
            from raydebug.worker import pause
        frame = _getframe(1)
        if mode == "0" or not pause.pause_at(frame, kind="breakpoint"):
            pause.stop_for_own_debugger(frame)


_call_in_code: Callable[..., None] | None = None
_skips: dict[int, Iterator[None]] = {}
"""By N of `every=N`: the remaining calls to skip, while exactly one call site uses this N (breakpoints/runtime.py)."""


def code_breakpoint(
    when: Any = True,  # positions with defaults: Python calls nothing faster
    every: int = 1,
    rank: Any = None,
    once: bool = False,
    max: int | None = None,  # noqa: A002 - the word of --break
    timeout: float | None = None,
    log: str | None = None,
) -> None:
    """Stand in for `raydebug.breakpoint()` below a cluster."""
    if not when:
        return
    if every > 1:
        try:
            next(_skips[every])
            return  # a miss: two look-ups and a call
        except (KeyError, StopIteration):
            pass
    global _call_in_code
    if _call_in_code is None:  # an import statement in each call would cost 400 ns
        with worker.fork_guard:
            from raydebug.worker.breakpoints import runtime
        _call_in_code = runtime.call_in_code
    _call_in_code(_getframe(1), _skips, every, rank, once, max, timeout, log)


def _call_legacy_debugger() -> None:
    # What Ray itself puts into PYTHONBREAKPOINT for workers (ray/_private/worker.py:2646, 2.60.0).
    rpdb = sys.modules.get("ray.util.rpdb")
    ray_worker = sys.modules.get("ray._private.worker")
    if rpdb is not None and ray_worker is not None and ray_worker.global_worker.connected:
        if ray_worker.global_worker.mode == ray_worker.WORKER_MODE:
            rpdb.set_trace()
        else:
            rpdb._driver_set_trace()
    else:
        worker.log("breakpoint() skipped: Ray's legacy debugger needs a process connected to Ray")


_plain_excepthook = sys.excepthook
_uncaught: BaseException | None = None  # the error that excepthook has seen


def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Stand in for `sys.excepthook`: send a snapshot of the error that ends the program, and pause."""
    global _uncaught
    _uncaught = error
    import_hooks.note_uncaught(error, trace)
    _plain_excepthook(kind, error, trace)


def _at_exit() -> None:
    """Note the error that ends a program with an excepthook of its own, and end the debugger's session.

    It runs after the program's own functions of this kind, which may pause: atexit calls the last one first.
    """
    error: BaseException | None = getattr(sys, "last_value", None)
    if sys.excepthook is not excepthook and error is not None and error is not _uncaught:
        import_hooks.note_uncaught(error, sys.last_traceback)
    session = sys.modules.get("raydebug.worker.pydevd_session")
    if session is not None:
        session.end()


def _apply_when_it_begins(event: str, _arguments: Any) -> None:
    """Apply the profile when the program begins: by then all of site's files are read, and packages may be imported."""
    if event in ("cpython.run_module", "cpython.run_file"):  # once: CPython 3.11 to 3.13 Modules/main.c
        _apply_profile()


def _apply_profile() -> None:
    """Change sys.argv if this process is a training driver that the profile supports; log each change in the job's log.

    A requested profile that cannot be applied ends the process: without it the whole training would start.
    """
    arguments = getattr(sys, "orig_argv", [])
    if not any(a.startswith("-m") or a.endswith(".py") or "=" in a or a[:2] == "--" for a in arguments[1:]):
        return  # no program, or without arguments that could tell
    from pathlib import Path

    from raydebug.trainers.registry import recognise

    try:
        folder = Path.cwd()
    except OSError:  # it was removed: no relative name leads anywhere
        folder = Path("/")
    if recognise(arguments, folder=folder, search=["", *sys.path]) is None:
        return
    from raydebug.profile.apply_profile import apply_in_driver

    tiny = os.environ.get(variables.TINY, "").split()
    rollouts = os.environ.get(variables.ROLLOUTS, "")
    try:
        changed = apply_in_driver(arguments, profile=os.environ[variables.PROFILE], tiny=tiny, rollouts=rollouts)
    except Exception as failure:  # noqa: BLE001 - see above
        _end_driver(failure)
        return
    if changed is not None:
        # orig_argv is [python, options, -m, module, args...]; sys.argv[0] is set by Python itself later.
        sys.argv[1:] = changed
        os.environ.pop(variables.PROFILE)  # a child of the driver must not be changed again


def _end_driver(failure: Exception) -> None:
    """Print the three lines of the error and exit at once: the import of `site` would swallow an exception."""
    if hasattr(failure, "fix"):
        lines = str(failure)
    else:
        lines = (
            f"error: raydebug itself failed: {type(failure).__name__}: {failure}\n"
            "cause: this is a fault of raydebug's own, while it applied the profile\n"
            "fix: run without --profile, and report this"
        )
        if os.readlink("/proc/self/cwd").endswith(" (deleted)"):
            lines = (
                "error: the profile cannot be applied to this program\n"
                "cause: the folder in which it was started does not exist any more\n"
                "fix: start it in a folder that exists, or run without --profile"
            )
    sys.stderr.write(f"{lines}\n")
    sys.stderr.flush()
    os._exit(EXIT_USAGE)


_RAYS_OWN = ("/ray/dashboard/", "/ray/_private/", "/ray/autoscaler/", "ray.scripts.")


def install() -> None:
    """Install the hooks for breakpoint(), uncaught errors and imports; apply the profile in a training driver."""
    # Ray's dashboard, agents, monitors and commands run below the cluster too: they are not the user's program.
    words = getattr(sys, "orig_argv", [])[1:4]
    is_worker = any("/ray/_private/workers/" in word for word in words)
    program = next((word for word in words if word[:1] != "-"), "")
    if not is_worker and (program.endswith("/bin/ray") or any(part in program for part in _RAYS_OWN)):
        if "/ray/dashboard/" in program:
            del os.environ[variables.GATEWAY]  # Ray 2.60 starts modules of its dashboard as processes, by spawn
        return
    worker.replace(sys, "breakpointhook", breakpoint_hook)
    # For children without our hook.
    os.environ.setdefault("PYTHONBREAKPOINT", "raydebug.worker.pause.fallback_breakpoint")
    raydebug.breakpoint = code_breakpoint
    import_hooks.install()
    if "raydebug.prefork.forked_process" in sys.modules:  # forked from a process with the heavy imports done
        import_hooks.catch_up()
    if is_worker:
        # Under a plain ray.init() workers start in the driver's folder; on a cluster that runs already they do not.
        folder = os.environ.get(variables.WORKING_DIR)
        if folder and os.getcwd() == variables.CLUSTER_DIR and os.path.isdir(folder):
            os.chdir(folder)
        return
    worker.replace(sys, "excepthook", excepthook)
    atexit.register(_at_exit)
    if os.environ.get(variables.PROFILE):
        if "raydebug.prefork.forked_process" in sys.modules:
            _apply_profile()
        else:
            sys.addaudithook(_apply_when_it_begins)


with worker.harmless("no breakpoints in this process"):
    install()
