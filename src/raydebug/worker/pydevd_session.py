"""This process's pydevd session with the gateway: checked, dialled, handed over. Imported at the first pause only.

Sources (debugpy 1.8.22, private names, held by tests/ray/test_contracts.py): `debugpy.server.api._settrace`,
`pydevd.start_client`, `pydevd.settrace_forked`, `pydevd_constants.after_fork`, `pydevd_xml.get_type`,
`PyDB.block_until_configuration_done`, `PyDB.add_dap_messages_listener`, `pydevd.is_thread_alive`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from raydebug import worker
from raydebug.protocol import wire
from raydebug.protocol.messages import SAY_REQUEST
from raydebug.worker import suspended_threads
from raydebug.worker.dial_in import Unreachable, proven_connection
from raydebug.worker.reconnecting_socket import Backoff, ReconnectingSocket, patience_s

# The first version whose pydevd has what this file and suspended_threads.py use (`PYDEVD_USE_SYS_MONITORING`,
# `notify_event.wait`): tests/ray/test_contracts.py. Ray itself asks for 1.8.0 (2.60.0, util/debugpy.py:19).
AT_LEAST = (1, 8, 6)
ATTACH_TIMEOUT_S = 10.0
END_TIMEOUT_S = 2.0  # four times of what pydevd waits for its own threads
OWN_DEBUGGER = (
    "the program has connected a debugger of its own (debugpy.listen or debugpy.connect), and a process has room for "
    "one; breakpoint() stops in that one once its client is attached"
)

_connected_by: int | None = None
_socket: ReconnectingSocket | None = None  # of the process that _connected_by names
_gave_up = False  # the patience of this process has ended once, and no gateway has answered since
about_to_pause: set[int] = set()
"""Idents of threads that are suspended or about to be: they keep the connection."""


def connected_debugger(say: Callable[[str], None] = worker.log) -> Any:
    """Return this process's pydevd; if needed, dial the gateway first, and retry for RAYDEBUG_PATIENCE_S.

    Raises:
        NoGateway: there is none.
        NoDebugger: debugpy is missing or too old.
    """
    global _gave_up
    limit_s = 0.0 if _gave_up else patience_s()
    backoff, said = Backoff(limit_s, time.monotonic()), False
    while True:  # without the guard between two attempts: a fork waits for it
        try:
            debugger = _connected_debugger()
        except Unreachable as error:
            if backoff.has_ended:
                _gave_up = True
                raise
            if not said and backoff.is_long:
                say(f"waits to pause for up to {limit_s:.0f} s, until the gateway answers: {error}")
                said = True
            backoff.wait(threading.Event())
        else:
            _gave_up = False
            return debugger


def _connected_debugger() -> Any:
    global _connected_by, _socket
    with worker.fork_guard:
        if _connected_by == os.getpid():
            debugger = _live_debugger()
            if debugger is not None:
                return debugger
            _wait_for_its_end()
        elif _connected_by is not None:
            import pydevd

            pydevd.settrace_forked(setup_tracing=False)  # after a fork its threads are gone, but its objects are here
        if own_debugger() is not None:
            raise NoDebugger(OWN_DEBUGGER)
        if fault := _debugpy_fault():
            raise NoDebugger(fault)
        connection = ReconnectingSocket(proven_connection(), end_unless_needed=_end_unless_needed)
        try:
            debugger = _hand_to_pydevd(connection)
        except BaseException:
            connection.close()
            raise
        _connected_by, _socket = os.getpid(), connection
        return debugger


def own_debugger() -> Any:
    """Return the pydevd that the program itself has connected, by debugpy.listen() for instance; None without one."""
    with worker.fork_guard:  # another thread may connect ours
        find = getattr(sys.modules.get("pydevd"), "get_global_debugger", None)  # another pydevd may have none
        debugger = find() if find is not None else None
        return None if debugger is None or suspended_threads.is_tracked(debugger) else debugger


def end() -> None:
    """End this process's session with the gateway, at the end of the program: pydevd may be newer than its own end."""
    if _connected_by == os.getpid():
        import pydevd

        pydevd.stoptrace()


def _live_debugger() -> Any:
    import pydevd

    debugger = pydevd.get_global_debugger()
    gone = debugger is None or debugger.pydb_disposed or _socket is None or _socket.ended
    return None if gone else debugger


def _wait_for_its_end() -> None:
    """Wait until pydevd has forgotten a debugger that a thread of its own ends: it would hand it out as the new one.

    Source: debugpy 1.8.22, pydevd.py:2611 (`dispose_and_kill_all_pydevd_threads`, also called by `CheckAliveThread`).
    """
    import pydevd

    deadline = time.monotonic() + END_TIMEOUT_S
    while getattr(pydevd.get_global_debugger(), "pydb_disposed", False) and time.monotonic() < deadline:
        time.sleep(0.005)


def _end_unless_needed(connection: ReconnectingSocket) -> bool:
    """End a lost connection, unless a thread of this process is suspended or about to be."""
    if connection is not _socket:  # lost before its first session was set up: its dial-in fails
        connection.ended = True
        return True
    with worker.fork_guard:
        debugger = _live_debugger()
        connection.ended = debugger is None or not (about_to_pause or suspended_threads.suspended_by(debugger).any())
        return connection.ended


# debugpy: a worker of another environment (Ray's runtime_env) may have none, or an old one


class NoDebugger(Exception):
    """This process cannot pause; the text says why, and what to install."""


@functools.cache
def _debugpy_fault() -> str:
    """Return why debugpy is missing or too old; empty if it is neither."""
    wanted = ".".join(map(str, AT_LEAST))
    fix = f"`{sys.executable} -m pip install 'debugpy>={wanted}'`; breakpoints of this process are passed over"
    try:
        import debugpy

        version = str(debugpy.__version__)
    except Exception as error:  # noqa: BLE001 - a broken package is none
        return f"debugpy cannot be loaded ({error}); {fix}"
    return "" if _is_enough(version) else f"debugpy {version} is too old; {fix}"


def _is_enough(version: str) -> bool:
    """Compare as numbers: as text, which is how Ray compares, 1.10 comes before 1.8.

    >>> _is_enough("1.10.0"), _is_enough("1.8.6"), _is_enough("1.8.5"), _is_enough("1.8"), _is_enough("0+unknown")
    (True, True, False, False, False)
    """
    numbers = [int("".join(c for c in part if c.isdigit()) or 0) for part in version.split("+")[0].split(".")]
    return tuple(numbers[:3]) >= AT_LEAST


def import_pydevd() -> None:
    """Import debugpy and its own copy of pydevd, which is on the path only then (0.08 s)."""
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else a warning about frozen modules in the job log
    with worker.fork_guard:
        hook = sys.breakpointhook  # import_hooks.py is not in each Python that can pause
        import debugpy.server.api  # noqa: F401

        # isort: split
        import pydevd  # noqa: F401
        from _pydevd_bundle import pydevd_xml

        pydevd_xml.get_type(None)  # its first call tries to import django
        sys.breakpointhook = hook  # pydevd puts its own in place


def _hand_to_pydevd(connection: ReconnectingSocket) -> Any:
    hook = sys.breakpointhook
    import_pydevd()
    import debugpy
    import pydevd
    from _pydevd_bundle.pydevd_api import PyDevdAPI
    from debugpy.server import api

    debugpy.configure(subProcess=False)  # else every child Python is injected and may block before its first line
    api.ensure_logging()
    _count_paused_as_alive(pydevd)
    start_client = pydevd.start_client
    pydevd.start_client = lambda _host, _port: connection
    try:
        api._settrace(
            host="raydebug-gateway",
            port=1,
            suspend=False,
            trace_only_current_thread=True,
            wait_for_ready_to_run=False,
            block_until_connected=True,
            patch_multiprocessing=False,
        )
    finally:
        pydevd.start_client = start_client
        sys.breakpointhook = hook  # pydevd puts its own in place
    debugger = pydevd.get_global_debugger()
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep  # excluded from steps, as is what calls it
    PyDevdAPI().set_dont_trace_start_end_patterns(debugger, (own,), ("contextlib.py",))
    resume_fast()
    register_say_request()
    suspended_threads.track(debugger)
    _wait_until_attached(debugger)
    return debugger


def _count_paused_as_alive(pydevd: Any) -> None:
    """Let a paused thread count as alive: pydevd would end a pause in a function of atexit at once."""
    is_alive = pydevd.is_thread_alive
    if not hasattr(is_alive, "_raydebug_counts"):

        def is_thread_alive(thread: threading.Thread) -> bool:
            return thread.ident in about_to_pause or bool(is_alive(thread))

        is_thread_alive._raydebug_counts = True  # type: ignore[attr-defined]
        pydevd.is_thread_alive = is_thread_alive


def _wait_until_attached(debugger: Any) -> None:
    """Wait until the gateway has set up its session; the next stop is reported there."""
    gave_up = threading.Event()
    timer = threading.Timer(ATTACH_TIMEOUT_S, gave_up.set)
    timer.daemon = True
    timer.start()
    debugger.block_until_configuration_done(cancel=gave_up)
    timer.cancel()
    if not debugger.is_attached():
        with contextlib.suppress(Exception):
            debugger.dispose_and_kill_all_pydevd_threads(wait=False)
        raise Unreachable(f"the gateway opened no session within {ATTACH_TIMEOUT_S:.0f} s")


def resume_fast() -> None:
    """Make the two functions that resume a thread also wake it: pydevd itself looks only every 0.2 s.

    Source: debugpy 1.8.22, pydevd.py:2297 (`TIMEOUT_SLOW`): the thread waits on an event that neither
    `internal_run_thread` (_pydevd_bundle/pydevd_thread_lifecycle.py:53) nor `internal_step_in_thread`
    (_pydevd_bundle/pydevd_comm.py:716, called by pydevd_api.py:258) sets.
    """
    from _pydevd_bundle import pydevd_api, pydevd_thread_lifecycle
    from _pydevd_bundle.pydevd_constants import get_thread_id

    run, step = pydevd_thread_lifecycle.internal_run_thread, pydevd_api.internal_step_in_thread
    if getattr(run, "_raydebug_wakes", False):
        return

    def wake(thread_id: str) -> None:
        import pydevd

        current = pydevd.get_global_debugger()
        if current is not None:
            current.get_internal_queue_and_event(thread_id)[1].set()

    def internal_run_thread(thread: Any, set_additional_thread_info: Any) -> None:
        run(thread, set_additional_thread_info)
        wake(get_thread_id(thread))

    def internal_step_in_thread(py_db: Any, thread_id: str, *args: Any, **kwargs: Any) -> None:
        step(py_db, thread_id, *args, **kwargs)
        wake(thread_id)

    internal_run_thread._raydebug_wakes = True  # type: ignore[attr-defined]
    pydevd_thread_lifecycle.internal_run_thread = internal_run_thread
    pydevd_api.internal_step_in_thread = internal_step_in_thread


def register_say_request() -> None:
    """Teach pydevd SAY_REQUEST: the gateway has a paused thread write a line to the job's log.

    Source: debugpy 1.8.22: pydevd_process_net_command_json.py looks up `on_<command>_request`, in lower case;
    pydevd_base_schema.py `register_request`, without which a request cannot be read; pydevd.py
    `post_method_as_internal_command`, which runs a function in a suspended thread.
    """
    from _pydevd_bundle._debug_adapter import pydevd_base_schema, pydevd_schema
    from _pydevd_bundle.pydevd_process_net_command_json import PyDevJsonCommandProcessor

    def on_request(_processor: object, debugger: Any, request: Any) -> None:
        suspended, thread_id = suspended_threads.suspended_by(debugger), request.arguments["threadId"]
        to = {"seq": request.seq, "command": request.command}
        if not suspended.is_suspended(thread_id):
            suspended.send(wire.refusal(0, to, "the thread is not paused"))
            return

        def say(_debugger: object) -> None:  # not in pydevd's reader: the paused thread may hold a lock of stderr
            worker.log(f"{request.arguments['at']} {request.arguments['text']}")
            suspended.send(wire.response(0, to))

        own_id = pydevd_base_schema.BaseSchema._translate_id_from_dap(thread_id)
        debugger.post_method_as_internal_command(own_id, say)

    pydevd_base_schema.register_request(SAY_REQUEST)(pydevd_schema.Request)
    setattr(PyDevJsonCommandProcessor, f"on_{SAY_REQUEST.lower()}_request", on_request)


def _become_another_process() -> None:
    about_to_pause.clear()
    constants = sys.modules.get("_pydevd_bundle.pydevd_constants")
    if constants is not None:
        constants.after_fork()  # pydevd's own locks, which its other threads may have held


os.register_at_fork(after_in_child=_become_another_process)
