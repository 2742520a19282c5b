"""Hooks into Ray: its debugger pauses here, its workers export their ids and take breakpoints and our hook along.

Sources (held by tests/ray/test_contracts.py): ray 2.60.0

- util/rpdb.py:298 (`ray.util.ray_debugpy.set_trace`), :343 (`_post_mortem`), and _raylet.pyx, which calls
  `_post_mortem()` inside the `except` block of a failed task.
- util/rpdb.py, the legacy debugger: `_connect_ray_pdb` makes a `_RemotePdb`, publishes it in Ray's key-value store,
  blocks in `listen` until a client connects, and returns it; its callers call `set_trace` or `post_mortem` of it.
- _private/function_manager.py:357 `FunctionActorManager.get_execution_info`: _raylet.pyx calls it before the first run
  of each function in a worker, including an actor's `__init__` and methods.
- _private/workers/setup_worker.py executes a worker through _private/runtime_env/context.py
  `RuntimeEnvContext.exec_worker(["DEFAULT_WORKER.py", ...], language)`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from raydebug import worker
from raydebug.protocol import variables
from raydebug.worker import records
from raydebug.worker.breakpoints import registry
from raydebug.worker.frames import start_thread

LOOK_EVERY_S = 0.2
CONTAINER_ENGINES = ("podman", "docker")  # their images do not have our file
_MACHINERY = ("/ray/util/rpdb.py", "/raydebug/worker/")


# Entry points of Ray's debugger


def replace_entry_points(module: ModuleType) -> None:
    """Replace the two entry points of Ray's debugger in its freshly loaded module."""
    records.note_ray_process()
    if os.environ.get(variables.OPEN) == "1":
        sys.breakpointhook = sys.__breakpointhook__  # goes by PYTHONBREAKPOINT, which Ray sets when it connects
        return
    module.set_trace = _set_trace  # type: ignore[attr-defined]
    module._post_mortem = _post_mortem  # type: ignore[attr-defined]


def _set_trace(breakpoint_uuid: Any = None) -> None:
    with worker.fork_guard:
        from raydebug.worker import pause
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("ray.util.rpdb", "ray.util.debugpy"):
        frame = frame.f_back
    pause.pause_at(frame, kind="breakpoint")


def _post_mortem() -> None:
    with worker.fork_guard:
        from raydebug.worker import pause
    kind, error, trace = sys.exc_info()
    if kind is not None and error is not None:
        pause.pause_on_error(kind, error, trace)


# Functions that arrive in a worker


def hook_function_manager(module: ModuleType) -> None:
    """Run our part before the first run of each function, in Ray's freshly loaded function manager.

    No variable of Ray's has a worker's ids, so a worker exports them: a pause of a child (a subprocess, a fork, vLLM's
    engine) can then name its ancestor. And functions that Ray unpickles get their breakpoints here: no import loads
    those of a driver's `__main__`.
    """
    manager = module.FunctionActorManager
    find = manager.get_execution_info

    @functools.wraps(find)
    def get_execution_info(*args: Any, **kwargs: Any) -> Any:
        found = find(*args, **kwargs)
        with worker.harmless("children of this process will not name it"):
            if (ids := records.describe_ray_process()) is not None:
                os.environ[variables.ANCESTOR] = json.dumps(ids)
        registry.build_in_pending()
        return found

    manager.get_execution_info = get_execution_info


# Workers of another Python


def hook_runtime_env(module: ModuleType) -> None:
    """Let Ray start workers of another Python through py_executable.py."""
    context: Any = module.RuntimeEnvContext
    exec_worker = context.exec_worker
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "py_executable.py")

    def exec_worker_with_hook(self: Any, arguments: list[str], language: Any) -> Any:
        if self.env_vars.get(variables.EXPORTS):
            from raydebug.worker import script_exports

            self.env_vars = script_exports.unpack(self.env_vars)
        if _has_another_python(self) and arguments and arguments[0].endswith(".py"):
            arguments = [program, *arguments]
        return exec_worker(self, arguments, language)

    context.exec_worker = exec_worker_with_hook


def _has_another_python(context: Any) -> bool:
    words = [*context.command_prefix, *context.py_executable.split()]
    if context.override_worker_entrypoint or {os.path.basename(word) for word in words}.intersection(CONTAINER_ENGINES):
        return False
    return bool(context.command_prefix) or context.py_executable != sys.executable


# Ray's legacy debugger


def hook_legacy(module: ModuleType) -> None:
    """Offer a stop of the legacy debugger to the gateway too, in the freshly loaded `ray.util.rpdb`.

    The first client, of `ray debug` or of the gateway, wins.
    """
    plain: Callable[[Any], None] = module._RemotePdb.listen

    def listen(pdb: Any) -> None:
        frame = _users_frame()
        error = sys.exc_info()
        try:
            _correct_location(module, pdb, frame)
            outcome = _wait_for_either(pdb, frame, error)
        except Exception as failure:  # noqa: BLE001 - Ray's own debugger remains
            worker.log(f"not listed by `raydebug paused`: {type(failure).__name__}: {failure}")
            outcome = "ray debug"
        if outcome == "ray debug":
            plain(pdb)
            with contextlib.suppress(AttributeError):  # else it stops in the hook that Ray was called from
                set_trace = pdb.set_trace
                pdb.set_trace = lambda frame=None: set_trace(frame=frame if error[0] else _users_frame())
            return
        pdb._listen_socket.close()
        pdb.set_trace = pdb.post_mortem = lambda *_, **__: None

    module._RemotePdb.listen = listen


def _users_frame() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _MACHINERY):
        frame = frame.f_back
    return frame


def _correct_location(module: ModuleType, pdb: Any, frame: FrameType) -> None:
    """Correct the location that `ray debug` lists: Ray takes the caller of its function, which is our hook."""
    from ray._private import ray_constants
    from ray.experimental.internal_kv import _internal_kv_get

    key, space = f"RAY_PDB_{pdb._breakpoint_uuid}", ray_constants.KV_NAMESPACE_PDB
    about = json.loads(_internal_kv_get(key, namespace=space))
    if "/raydebug/worker/" in about["filename"]:
        about.update(filename=frame.f_code.co_filename, lineno=frame.f_lineno)
        module._internal_kv_put(key, json.dumps(about), overwrite=True, namespace=space)


def _wait_for_either(pdb: Any, frame: FrameType, error: Any) -> str:
    """Pause until a debugger resumes the thread, or `ray debug` connects.

    Return `raydebug`; or `ray debug` if it has connected, or if the thread cannot be paused.
    """
    with worker.fork_guard:
        from raydebug.worker import pause
    pdb._listen_socket.listen(1)
    ended, end = os.pipe()
    connected: list[bool] = []
    thread = threading.current_thread()

    def watch() -> None:
        ready, _, _ = select.select([pdb._listen_socket, ended], [], [])
        if ended not in ready:
            connected.append(True)
        while ended not in ready:  # the thread may not be paused yet
            pause.resume(thread, "`ray debug` has taken it")
            ready, _, _ = select.select([ended], [], [], LOOK_EVERY_S)

    watcher = start_thread(watch, "raydebug-legacy")
    try:
        kind, value, trace = error
        paused = pause.pause_at(frame, kind="breakpoint") if kind is None else pause.pause_on_error(kind, value, trace)
    finally:
        os.write(end, b"x")
        watcher.join()
        os.close(ended)
        os.close(end)
    return "raydebug" if paused and not connected else "ray debug"
