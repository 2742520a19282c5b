"""Dials the gateway and hands the proven connection to pydevd. Imported at the first pause only.

Sources (debugpy 1.8.22, private names, held by tests/ray/test_contracts.py): `debugpy.server.api._settrace`,
`pydevd.start_client`, `pydevd.settrace_forked`, `PyDB.block_until_configuration_done`,
`PyDB.add_dap_messages_listener`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import threading
from typing import Any

from raydebug.dap import wire
from raydebug.worker import handshake, job_log, names, records, requirement, wake
from raydebug.worker.line import Line
from raydebug.worker.standing import Standing

DIAL_TIMEOUT_S = 3.0
DIAL_AGAIN_TIMEOUT_S = 1.0
ATTACH_TIMEOUT_S = 10.0
PAUSE, CONTROL = "pause", "control"
DEFAULT_PATIENCE_S = 3600.0  # how long a pause waits for a gateway that is gone


class NoGateway(Exception):
    """The gateway cannot be reached, or did not prove itself; the text says which."""


_lock = threading.RLock()
_dialled_by: int | None = None
_line: Line | None = None  # of the process that _dialled_by names
_instance, _dials = os.urandom(8).hex(), itertools.count(1)  # which process this is, and its how manyth dial
about_to_pause: set[int] = set()
"""Idents of threads that are on their way to a pause, or stand: they keep the line."""


def connected_debugger() -> Any:
    """Return this process's pydevd, dialling the gateway first where needed.

    Raises:
        NoGateway: there is none to talk to.
        NoDebugger: debugpy is missing here, or too old.
    """
    global _dialled_by, _line
    with _lock:
        if _dialled_by == os.getpid():
            debugger = _alive_debugger()
            if debugger is not None:
                return debugger
        elif _dialled_by is not None:
            _forget_parents_debugger()
        requirement.require_debugpy()
        line = Line(
            proven_connection(timeout_s=DIAL_TIMEOUT_S),
            dial=_dial_again,
            end_unless_needed=_end_unless_needed,
            patience_s=_patience_s(),
            say=job_log.write,
        )
        try:
            debugger = _hand_to_pydevd(line)
        except BaseException:
            line.close()
            raise
        _dialled_by, _line = os.getpid(), line
        return debugger


def _alive_debugger() -> Any:
    import pydevd

    debugger = pydevd.get_global_debugger()
    gone = debugger is None or debugger.pydb_disposed or _line is None or _line.ended
    return None if gone else debugger


def _forget_parents_debugger() -> None:
    # After a fork pydevd's threads are gone, but its objects are here.
    import pydevd

    pydevd.settrace_forked(setup_tracing=False)


def _dial_again() -> socket.socket:
    try:
        return proven_connection(timeout_s=DIAL_AGAIN_TIMEOUT_S)
    except NoGateway as error:
        raise ConnectionError(str(error)) from error


def _end_unless_needed(line: Line) -> bool:
    """End a lost line, unless a thread of this process stands or is about to."""
    if line is not _line:  # lost before its first session was set up: whoever dialled is told
        line.ended = True
        return True
    with _lock:
        debugger = _alive_debugger()
        line.ended = debugger is None or not (about_to_pause or standing_of(debugger).is_anybody())
        return line.ended


def standing_of(debugger: Any) -> Standing:
    """Return what stands in a process, by its pydevd."""
    standing: Standing = debugger._raydebug_standing
    return standing


def _patience_s() -> float:
    with contextlib.suppress(ValueError):
        return float(os.environ.get(names.PATIENCE, ""))
    return DEFAULT_PATIENCE_S


def proven_connection(purpose: str = PAUSE, *, timeout_s: float = DIAL_TIMEOUT_S) -> socket.socket:
    """Connect to the gateway, each side proving to the other that it holds the token.

    Args:
        purpose: what the connection is for: PAUSE hands it to pydevd, CONTROL keeps it as the control line.
        timeout_s: how long connecting and each answer may take.

    Raises:
        NoGateway: it cannot be reached, or did not prove itself.
    """
    address = os.environ.get(names.GATEWAY, "")
    host, _, port = address.rpartition(":")
    token = read_token()
    try:
        connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    except (OSError, ValueError) as error:
        raise NoGateway(f"no gateway at {address}: {error}") from error
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # evaluate: 44 ms -> 0.3 ms
        connection.set_inheritable(False)
        _prove_each_other(connection, token, purpose)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError | wire.WireError):
            raise NoGateway(f"the gateway at {address} broke off: {error}") from error
        raise
    return connection


def read_token() -> str:
    """Return the cluster's token.

    Raises:
        NoGateway: the token file cannot be read.
    """
    path = os.environ.get(names.TOKEN_PATH, "")
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError) as error:
        raise NoGateway(f"the token file cannot be read: {error}") from error


def _prove_each_other(connection: socket.socket, token: str, purpose: str) -> None:
    mine = handshake.new_nonce()
    connection.sendall(wire.encode(wire.event(1, "hello", {"nonce": mine, "version": 1})))
    answer = _receive(connection, "proof")
    theirs = str(answer.get("nonce", ""))
    if not handshake.same(handshake.gateway_proof(token, mine, theirs), answer.get("proof")):
        raise NoGateway("what answers there does not hold this cluster's token")
    proof = handshake.process_proof(token, mine, theirs)
    # A gateway that still holds an earlier connection of the same process lets go of it.
    own: dict[str, Any] = {"instance": _instance, **({"dials": next(_dials)} if purpose == PAUSE else {})}
    body = {"proof": proof, "purpose": purpose, "process": {**records.describe_process(), **own}}
    connection.sendall(wire.encode(wire.event(2, "proof", body)))
    _receive(connection, "welcome")


def _receive(connection: socket.socket, name: str) -> dict[str, Any]:
    """Read exactly one message: what follows it belongs to pydevd."""
    header = b""
    while not header.endswith(b"\r\n\r\n"):
        header += _exactly(connection, 1)
        if len(header) > 256:
            raise wire.WireError("not the gateway's protocol")
    decoder = wire.Decoder(max_body_bytes=4096)
    decoder.feed(header)
    while True:
        messages = decoder.feed(_exactly(connection, 1))
        if messages:
            break
    if messages[0].get("event") != name:
        raise NoGateway(f"the gateway refused: {messages[0].get('body', {}).get('reason', messages[0].get('event'))}")
    return dict(messages[0].get("body") or {})


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = connection.recv(count)
    if not data:
        raise OSError("it closed the connection")
    return data


def import_pydevd() -> None:
    """Import debugpy and its own copy of pydevd, which is on the path only then (0.08 s)."""
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else a warning about frozen modules in the job log
    with _lock:
        hook = sys.breakpointhook
        import debugpy.server.api  # noqa: F401

        # isort: split
        import pydevd  # noqa: F401

        sys.breakpointhook = hook  # pydevd puts its own in place


def _hand_to_pydevd(line: Line) -> Any:
    hook = sys.breakpointhook
    import_pydevd()
    import debugpy
    import pydevd
    from debugpy.server import api

    debugpy.configure(subProcess=False)  # else every child Python is injected and may block before its first line
    api.ensure_logging()
    start_client = pydevd.start_client
    pydevd.start_client = lambda _host, _port: line
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
    _keep_out_of_own_code(debugger)
    wake.wake_resumed_threads(debugger)
    debugger._raydebug_standing = Standing(debugger)
    debugger.add_dap_messages_listener(debugger._raydebug_standing)
    _wait_until_attached(debugger)
    return debugger


def _keep_out_of_own_code(debugger: Any) -> None:
    """Make steps pass over this package, and contextlib, which it is reached through."""
    from _pydevd_bundle.pydevd_api import PyDevdAPI

    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    PyDevdAPI().set_dont_trace_start_end_patterns(debugger, (own,), ("contextlib.py",))


def _wait_until_attached(debugger: Any) -> None:
    """Wait until the gateway has set up its session, so that the next stop is reported to it."""
    gave_up = threading.Event()
    timer = threading.Timer(ATTACH_TIMEOUT_S, gave_up.set)
    timer.daemon = True
    timer.start()
    debugger.block_until_configuration_done(cancel=gave_up)
    timer.cancel()
    if not debugger.is_attached():
        with contextlib.suppress(Exception):
            debugger.dispose_and_kill_all_pydevd_threads(wait=False)
        raise NoGateway(f"the gateway opened no session within {ATTACH_TIMEOUT_S:.0f} s")


def _become_another_process() -> None:
    global _instance, _dials, _lock
    _instance, _dials = os.urandom(8).hex(), itertools.count(1)
    _lock = threading.RLock()


# A fork waits until no other thread imports the debugger or dials: in the child the locks that it holds, those of the
# import system too, would never be let go, and its first breakpoint would hang.
os.register_at_fork(
    before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_become_another_process
)
