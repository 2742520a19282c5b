"""Ray's legacy debugger: while it waits for `ray debug`, the same stop is a pause of ours; whoever comes first has it.

Source: ray 2.60.0 util/rpdb.py, held by tests/ray/test_contracts.py: `_connect_ray_pdb` makes a `_RemotePdb`, tells of
it in Ray's key-value store, blocks in `listen` until a client has come, and returns it; its callers then call
`set_trace` or `post_mortem` of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from raydebug.worker import job_log, pause

LOOK_EVERY_S = 0.2
_MACHINERY = ("/ray/util/rpdb.py", "/raydebug/worker/")


def take_over(module: ModuleType) -> None:
    """Put our pause into the freshly loaded `ray.util.rpdb`, where it waits for a client."""
    plain: Callable[[Any], None] = module._RemotePdb.listen

    def listen(pdb: Any) -> None:
        frame = _users_frame()
        error = sys.exc_info()
        try:
            _tell_where(module, pdb, frame)
            outcome = _wait_for_either(pdb, frame, error)
        except Exception as failure:  # noqa: BLE001 - Ray's own debugger is there still
            job_log.write(f"not listed by `raydebug paused`: {type(failure).__name__}: {failure}")
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


def _tell_where(module: ModuleType, pdb: Any, frame: FrameType) -> None:
    """Correct where `ray debug` lists it: Ray takes the caller of its function, which is our hook."""
    from ray._private import ray_constants
    from ray.experimental.internal_kv import _internal_kv_get

    key, space = f"RAY_PDB_{pdb._breakpoint_uuid}", ray_constants.KV_NAMESPACE_PDB
    about = json.loads(_internal_kv_get(key, namespace=space))
    if "/raydebug/worker/" in about["filename"]:
        about.update(filename=frame.f_code.co_filename, lineno=frame.f_lineno)
        module._internal_kv_put(key, json.dumps(about), overwrite=True, namespace=space)


def _wait_for_either(pdb: Any, frame: FrameType, error: Any) -> str:
    """Pause until a debugger lets go, or `ray debug` connects.

    Returns:
        `raydebug`, or `ray debug` where that has come or there is nobody else to wait for.
    """
    pdb._listen_socket.listen(1)
    over, wake = os.pipe()
    came: list[bool] = []
    thread = threading.current_thread()

    def watch() -> None:
        ready, _, _ = select.select([pdb._listen_socket, over], [], [])
        if over not in ready:
            came.append(True)
        while over not in ready:  # it may be on its way to the pause still
            pause.break_off(thread, "`ray debug` has taken it")
            ready, _, _ = select.select([over], [], [], LOOK_EVERY_S)

    watcher = threading.Thread(target=watch, name="raydebug-legacy", daemon=True)
    watcher.pydev_do_not_trace = True  # type: ignore[attr-defined]  # pydevd's own mark for its helpers
    watcher.start()
    try:
        kind, value, trace = error
        paused = pause.pause_at(frame, kind="breakpoint") if kind is None else pause.pause_on_error(kind, value, trace)
    finally:
        os.write(wake, b"x")
        watcher.join()
        os.close(over)
        os.close(wake)
    return "raydebug" if paused and not came else "ray debug"
