"""The suspended threads of this process: tracked, announced again after a reconnect, and traced only while needed.

Tracing is on only while a client steps or has set breakpoints: it slows calls down by up to 23 times.

Sources (debugpy 1.8.22, private names, held by tests/ray/test_contracts.py): pydevd.py:2867 `IDAPMessagesListener`,
`PyDB.do_wait_suspend`, `BaseSchema._translate_id_to_dap`, `PyDB.enable_tracing`, `pydevd_tracing.SetTrace`, and from
Python 3.12 on `pydevd_sys_monitoring.start_monitoring`, `stop_monitoring`, `update_monitor_events`, `restart_events`:
in debugpy from 1.8.6 on. Ray 2.60.0 `Worker.worker_paused_by_debugger` (_private/worker.py:666).
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from raydebug.protocol import messages
from raydebug.protocol.wire import Message
from raydebug.worker import records
from raydebug.worker.frames import outwards, start_thread


class SuspendedThreads:
    """The suspended threads of this process, by its pydevd."""

    def __init__(self, debugger: Any) -> None:
        self._debugger = debugger
        self._records: dict[int, dict[str, Any]] = {}
        self._since: dict[int, tuple[threading.Thread, float]] = {}  # suspended, or stepping to the next stop
        self._stops: dict[int, Message] = {}
        self._announced: set[int] = set()  # their record is sent, their stop comes next

    def announce(self, thread_id: int, record: Mapping[str, object]) -> None:
        """Announce a pause that is about to begin."""
        self._send_event(messages.PAUSE_EVENT, {"threadId": thread_id, "record": record})

    def begins(self, thread_id: int) -> None:
        """Note that the calling thread is about to be suspended."""
        self._since.setdefault(thread_id, (threading.current_thread(), time.monotonic()))

    def ends(self, thread_id: int, *, steps: bool) -> None:
        """Note that a thread has been resumed, for good or for a step."""
        self._stops.pop(thread_id, None)
        if not steps:
            self._since.pop(thread_id, None)
            self._records.get(thread_id, {}).pop("nth", None)  # the next stop at a line of a client is another pause

    def broken_off(self, thread_id: int, reason: str) -> None:
        """Report that a suspended thread was resumed without a client (e.g. its task was cancelled)."""
        self._records.pop(thread_id, None)
        self._send_event(messages.BROKEN_OFF_EVENT, {"threadId": thread_id, "reason": reason})

    def is_suspended(self, thread_id: int) -> bool:
        """Return whether a thread is suspended now."""
        return thread_id in self._stops

    def any(self) -> bool:
        """Return whether a thread is suspended, or stepping."""
        return any(thread.is_alive() for thread, _ in list(self._since.values()))

    # pydevd's hooks: an exception here would end its writer or reader

    def before_send(self, message: Message) -> None:
        """Inspect a message from pydevd to the gateway."""
        body = message.get("body") or {}
        if message.get("event") == messages.PAUSE_EVENT:
            self._records[body["threadId"]] = body["record"]
            self._announced.add(body["threadId"])
        elif message.get("event") == "stopped" and "threadId" in body:
            thread_id = body["threadId"]
            if thread_id in self._announced:
                self._announced.discard(thread_id)
            else:  # a step or a line breakpoint: its record has another location
                record = self._records.setdefault(thread_id, {"kind": "breakpoint"})
                for name in ("file", "line", "function"):
                    record.pop(name, None)
            self._stops[thread_id] = dict(body)
        elif message.get("command") == "configurationDone":  # its session is set up: the first one, or a new one
            self._replay()

    def after_receive(self, message: Message) -> None:
        """Required by pydevd; requests of the gateway do not matter here."""

    def _replay(self) -> None:
        now = time.monotonic()
        for thread_id, body in list(self._stops.items()):
            _, since = self._since.get(thread_id, (None, now))
            self.announce(thread_id, {**self._records[thread_id], "stood_s": round(now - since, 3)})
            self._send_event("stopped", body)

    def _send_event(self, name: str, body: Message) -> None:
        self.send({"type": "event", "event": name, "body": body})

    def send(self, message: Message) -> None:
        """Let pydevd send a message to the gateway."""
        from _pydevd_bundle.pydevd_comm_constants import CMD_THREAD_SUSPEND
        from _pydevd_bundle.pydevd_net_command import NetCommand

        self._debugger.writer.add_command(NetCommand(CMD_THREAD_SUSPEND, 0, message, is_json=True))


def track(debugger: Any) -> None:
    """Track the suspended threads of this process, by its freshly connected pydevd."""
    debugger._raydebug_suspended = SuspendedThreads(debugger)
    debugger.add_dap_messages_listener(debugger._raydebug_suspended)


def is_tracked(debugger: Any) -> bool:
    """Return whether a pydevd is one that we have connected to the gateway."""
    return hasattr(debugger, "_raydebug_suspended")


def suspended_by(debugger: Any) -> SuspendedThreads:
    """Return the suspended threads of a process, by its pydevd."""
    suspended: SuspendedThreads = debugger._raydebug_suspended
    return suspended


def dap_id(thread: threading.Thread) -> int:
    """Return the number by which DAP names a thread."""
    from _pydevd_bundle._debug_adapter.pydevd_base_schema import BaseSchema
    from _pydevd_bundle.pydevd_constants import get_current_thread_id

    return int(BaseSchema._translate_id_to_dap(get_current_thread_id(thread)))


def watch_stops(debugger: Any) -> None:
    """Track suspended threads at every stop of this process, for the reconnecting socket and for Ray.

    Ray shows their number in its dashboard and to its tools.
    """
    if getattr(debugger, "_raydebug_tracks", False):
        return
    debugger._raydebug_tracks = True
    from _pydevd_bundle.pydevd_constants import STATE_RUN

    suspended, wait = suspended_by(debugger), debugger.do_wait_suspend
    report_to_ray: Callable[[bool], None] = lambda begins: None  # noqa: E731
    if records.is_ray_process():
        report_to_ray = _ray_reporter(sys.modules["ray._private.worker"].global_worker)

    def do_wait_suspend(thread: threading.Thread, *args: Any, **kwargs: Any) -> Any:
        thread_id, info = dap_id(thread), thread.additional_info  # type: ignore[attr-defined]
        suspended.begins(thread_id)
        report_to_ray(True)
        try:
            return wait(thread, *args, **kwargs)
        except BaseException as error:  # Ray raises KeyboardInterrupt in the thread of a task that is cancelled
            info.pydev_state, info.pydev_step_cmd = STATE_RUN, -1
            suspended.broken_off(thread_id, f"{type(error).__name__} was raised in it: the task is cancelled, or ended")
            raise
        finally:
            report_to_ray(False)
            suspended.ends(thread_id, steps=info.pydev_step_cmd != -1)
            if info.pydev_step_cmd == -1:  # it may end a step, in a loop that never returns to pause_at
                trace_only_while_needed(debugger, info)

    debugger.do_wait_suspend = do_wait_suspend


def _ray_reporter(worker: Any) -> Callable[[bool], None]:
    """Return a function that reports the begin (True) and the end (False) of a stop to Ray, in order, without waiting.

    Each is a call to Ray's head (about 1 ms): a step would cost two of them.
    """
    events: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def report() -> None:
        stops: list[Any] = []
        while True:
            begins = events.get()
            with contextlib.suppress(Exception):
                if begins:
                    stops.append(worker.worker_paused_by_debugger())
                    stops[-1].__enter__()
                elif stops:
                    stops.pop().__exit__(None, None, None)

    start_thread(report, "raydebug")
    return events.put


# Tracing

_lock = threading.Lock()  # from Python 3.12 on one switch turns the tracing of all threads on and off
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


@contextlib.contextmanager
def not_traced(info: Any) -> Iterator[None]:
    """Keep pydevd from stopping in our own calls on the way to the user's frame, and in what is evaluated at a pause.

    `info` is what pydevd knows of the calling thread.
    """
    from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING

    if PYDEVD_USE_SYS_MONITORING:  # where `is_tracing` has no effect
        from _pydevd_sys_monitoring import pydevd_sys_monitoring as monitoring

        # The first call creates pydevd's record of this thread; the first event would create it later, enabled.
        monitoring.start_monitoring(all_threads=False)
        monitoring.stop_monitoring(all_threads=False)
    info.is_tracing += 1
    try:
        yield
    finally:
        info.is_tracing -= 1
        if PYDEVD_USE_SYS_MONITORING:
            monitoring.start_monitoring(all_threads=False)


def trace_only_while_needed(debugger: Any, info: Any) -> None:
    """Trace the calling thread for a step or for line breakpoints, and let it run at full speed otherwise.

    `info` is what pydevd knows of the calling thread.
    """
    needed = not debugger.pydb_disposed and (info.pydev_step_cmd != -1 or bool(debugger.breakpoints))
    from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING

    if PYDEVD_USE_SYS_MONITORING:
        _monitor(debugger, here=needed)
        return
    if needed:
        debugger.enable_tracing()
        return
    import pydevd_tracing

    pydevd_tracing.SetTrace(None)
    if not debugger.breakpoints and _is_pydevds(threading.gettrace()):
        threading.settrace(None)  # new threads are not traced any more either


@contextlib.contextmanager
def programs_tracer_kept() -> Iterator[None]:
    """Give the calling thread the program's own tracer back after a pause (coverage): pydevd replaces it."""
    tracer = sys.gettrace()
    frames = []
    if tracer is not None and not _is_pydevds(tracer):
        frames = [(frame, frame.f_trace) for frame in outwards(sys._getframe(2))]  # behind contextlib
    try:
        yield
    finally:
        if frames and sys.gettrace() is None:  # not during a step
            for frame, of_frame in frames:
                frame.f_trace = of_frame
            python_settrace()(tracer)


def python_settrace() -> Callable[[Any], None]:
    """Return Python's own sys.settrace: pydevd replaces it by one that warns."""
    pydevd_tracing = sys.modules.get("pydevd_tracing")
    own = pydevd_tracing.TracingFunctionHolder._original_tracing if pydevd_tracing is not None else None
    return own or sys.settrace


def _is_pydevds(tracer: Any) -> bool:
    return str(getattr(tracer, "__module__", "")).startswith(("pydevd", "_pydevd"))


def _monitor(debugger: Any, *, here: bool) -> None:
    """Start Python's monitoring for the calling thread, or stop it after the last thread that needs it.

    Of two threads that are resumed at once the last one has to stop it. So each checks for the other under the lock,
    and only a thread that needs monitoring itself may start it: the need of the other can end at any moment.
    """
    from _pydevd_sys_monitoring import pydevd_sys_monitoring as monitoring

    with _lock:
        if here:
            monitoring.start_monitoring(all_threads=True)  # of Python: stop_monitoring gave it back
            monitoring.start_monitoring(all_threads=False)
            monitoring.update_monitor_events()
            monitoring.restart_events()
        elif not suspended_by(debugger).any():
            monitoring.stop_monitoring(all_threads=True)
