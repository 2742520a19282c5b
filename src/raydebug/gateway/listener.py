"""A listening port of the gateway, and what a connection may do until it has shown the token.

At most ACCEPTS_PER_TURN connections are accepted in one turn of the event loop, and each is read in the next turn. So a
peer with its proof in its first packet is authenticated before other connections, however many, can displace it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from raydebug.gateway import logs
from raydebug.protocol import client_handshake, messages, wire
from raydebug.protocol.wire import Message

log = logging.getLogger("raydebug.gateway")

ACCEPTS_PER_TURN = 64
BACKLOG = 4096  # connections that wait in the kernel, which limits it to net.core.somaxconn
NO_FILES_PAUSE_S = 0.5  # when no file descriptor is free
MAX_UNPROVEN = 2048  # of one kind, at one time
FILES_PER_UNPROVEN = 8  # the three budgets of a gateway take at most three eighths of its file descriptors
# For peers without the token that send single bytes: a wake-up for each byte of a thousand such peers would occupy a
# core. The first message of a peer with the token arrives whole.
FIRST_PIECE_WAIT_S = 0.05


class Unproven:
    """A budget of connections that have not shown the token: beyond the limit the oldest one is closed.

    Args:
        limit: connections at one time; None for MAX_UNPROVEN, or fewer where few files may be open.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or min(MAX_UNPROVEN, max(16, _file_limit() // FILES_PER_UNPROVEN))
        self._tasks: dict[asyncio.Task[Any], str] = {}  # oldest first

    @contextlib.contextmanager
    def holding(self, peer: str) -> Iterator[Callable[[], None]]:
        """Count the calling task's connection while it is unauthenticated; the task of a displaced one is cancelled.

        Args:
            peer: the address of the other side.

        Yields:
            A function to call as soon as the connection is authenticated.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = peer
        if len(self._tasks) > self._limit:
            oldest = next(iter(self._tasks))
            gone = self._tasks.pop(oldest)
            oldest.cancel()
            why = "closed a connection from %s: it had not shown the token, and %d newer ones wait"
            log.warning(why, gone, self._limit, extra={"stranger": gone})

        def proven() -> None:
            self._tasks.pop(task, None)

        try:
            yield proven
        finally:
            proven()


class Listener:
    """Accepts the connections of one port.

    Args:
        host, port: where to listen; port 0 takes any free one.
        fd: a socket that listens there already, of the supervisor, which keeps the port while no gateway runs.
        serve: called with each connection and its peer's address, in a task of its own. The connection is closed
            when it returns, unless `streams_of` has taken it.

    Raises:
        OSError: the port is taken.
    """

    def __init__(
        self, host: str, port: int, serve: Callable[[socket.socket, str], Awaitable[None]], fd: int | None = None
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        address = (host, port)
        self._socket = socket.create_server(address, family=family) if fd is None else socket.socket(fileno=fd)
        self._socket.listen(BACKLOG)
        self._socket.setblocking(False)
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(self._socket, self._accept)

    @property
    def port(self) -> int:
        """The actual port."""
        return int(self._socket.getsockname()[1])

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor is free
                log.error("accepting no connections for %s s: %s", NO_FILES_PAUSE_S, error)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(NO_FILES_PAUSE_S, self._loop.add_reader, self._socket, self._accept)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._run(connection, str(address[0])))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, connection: socket.socket, peer: str) -> None:
        try:
            await self._serve(connection, peer)
        except (OSError, TimeoutError):
            pass  # the peer has closed the connection, or was silent for too long
        except asyncio.CancelledError:
            pass  # displaced, or the gateway shuts down
        except Exception:
            log.exception("a connection from %s ended by an error in the gateway", peer, extra={"stranger": peer})
        finally:
            connection.close()


class Pieces:
    """The waits between the pieces of a message that does not arrive whole: each is twice as long as the one before."""

    def __init__(self) -> None:
        self._wait_s = FIRST_PIECE_WAIT_S

    async def wait(self) -> None:
        """Let more bytes gather in the kernel."""
        await asyncio.sleep(self._wait_s)
        self._wait_s *= 2


async def streams_of(connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of an accepted connection; they own its file descriptor now."""
    taken = socket.socket(fileno=connection.detach())
    taken.setblocking(False)
    return await asyncio.open_connection(sock=taken)


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the hard limit."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def _file_limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_UNPROVEN * FILES_PER_UNPROVEN if limit == resource.RLIM_INFINITY else limit


MAX_FIRST_BYTES = 16 * 1024
MAX_HEADER_BYTES, MAX_HELLO_BYTES, MAX_PROOF_BYTES = 256, 1024, 16 * 1024
MAX_HELLOS = 10_000  # nonces kept against replay
FREE_TRIES = 10  # a mistyped or stale token is an accident
WITHIN_S = 60.0
DELAY_S = 1.0


class AuthThrottle:
    """Delays answers to wrong tokens after FREE_TRIES in a minute; the right token is never delayed.

    One count for all clients, because all of them come from the same loopback address.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=FREE_TRIES + 1)

    def delay_s(self) -> float:
        """Count a wrong token, and return the delay of its answer in seconds."""
        now = time.monotonic()
        self._times.append(now)
        return DELAY_S if len(self._times) > FREE_TRIES and now - self._times[0] < WITHIN_S else 0.0

    async def delay_answer(self, client: str, peer: object) -> None:
        """Count a wrong token, write it to the audit log, and wait before the answer.

        Args:
            client: who sent it (`logs.name_client`).
            peer: its address.
        """
        logs.audit("refuse", client, stranger=peer, reason="wrong token")
        await asyncio.sleep(self.delay_s())


class ClientAuthentication:
    """The gateway's side of the handshake (protocol/client_handshake.py) with one of raydebug's own clients.

    Args:
        token: the cluster's token.
        throttle: delays answers to wrong tokens.
    """

    def __init__(self, token: str, throttle: AuthThrottle) -> None:
        self._token, self._throttle = token, throttle

    async def prove(self, connection: socket.socket, first: bytes) -> bytes:
        """Prove the gateway to a client and the client to the gateway; return what the client sent after its proof.

        Args:
            connection: of the client.
            first: its first line.

        Raises:
            ConnectionError: a proof is wrong, or the connection ended.
        """
        loop, mine = asyncio.get_running_loop(), wire.new_nonce()
        theirs, proof = (*client_handshake.words(first), "", "")[:2]
        if not wire.is_nonce(theirs) or not wire.is_same(client_handshake.hello_proof(self._token, theirs), proof):
            await self._refuse(connection)
        own = client_handshake.gateway_proof(self._token, theirs, mine)
        answer = b""
        await loop.sock_sendall(connection, client_handshake.line(mine, own))
        while client_handshake.END not in answer and len(answer) < MAX_FIRST_BYTES:
            data = await loop.sock_recv(connection, MAX_FIRST_BYTES)
            if not data:
                raise ConnectionResetError("closed before it proved itself")
            answer += data
        step, _, rest = answer.partition(client_handshake.END)
        proof = "".join(client_handshake.words(step))
        if not wire.is_same(client_handshake.client_proof(self._token, theirs, mine), proof):
            await self._refuse(connection)
        return rest

    async def _refuse(self, connection: socket.socket) -> None:
        peer = connection.getpeername()
        await self._throttle.delay_answer(logs.name_client("raydebug", peer), peer)
        await asyncio.get_running_loop().sock_sendall(connection, client_handshake.line(client_handshake.REFUSED))
        raise ConnectionRefusedError("wrong token")


class ProcessAuthentication:
    """The gateway's side of the handshake (protocol/wire.py) with a process that dials in.

    Args:
        token: the cluster's token.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._hellos: deque[str] = deque(maxlen=MAX_HELLOS)  # nonces of accepted first packets

    async def receive_hello(self, connection: socket.socket) -> str:
        """Return the nonce of a first packet that was made with the token and was not sent before.

        Raises:
            ConnectionError: the packet is wrong, or the connection ended.
            WireError: it is no message.
        """
        hello = await _receive(connection, messages.HELLO, MAX_HELLO_BYTES)
        nonce = hello.get("nonce")
        if not isinstance(nonce, str) or not wire.is_nonce(nonce):
            raise await _refuse(connection, "no nonce")
        if not wire.is_same(wire.hello_proof(self._token, nonce), hello.get("proof")):
            raise await _refuse(connection, "wrong token")
        if nonce in self._hellos:
            raise await _refuse(connection, "its first packet was sent before")
        self._hellos.append(nonce)
        return nonce

    async def prove(self, connection: socket.socket, process_nonce: str) -> tuple[str, Any]:
        """Prove the gateway to a process and the process to the gateway; return the purpose and the process's record.

        Raises:
            ConnectionError: the proof is wrong, or the connection ended.
            WireError: it is no message.
        """
        nonce = wire.new_nonce()
        proof = wire.gateway_proof(self._token, process_nonce, nonce)
        await _send(connection, messages.PROOF, {"nonce": nonce, "proof": proof})
        answer = await _receive(connection, messages.PROOF, MAX_PROOF_BYTES)
        if not wire.is_same(wire.process_proof(self._token, process_nonce, nonce), answer.get("proof")):
            raise await _refuse(connection, "wrong token")
        await _send(connection, messages.WELCOME, {})
        return str(answer.get("purpose")), answer.get("process")


async def _receive(connection: socket.socket, name: str, max_bytes: int) -> Message:
    decoder = wire.Decoder(max_header_bytes=MAX_HEADER_BYTES, max_body_bytes=max_bytes)
    loop, pieces = asyncio.get_running_loop(), Pieces()
    while data := await loop.sock_recv(connection, 4096):
        for message in decoder.feed(data):  # the process sends its next message only after our response
            if message.get("event") != name:
                raise ConnectionRefusedError(f"{message.get('event')!r} instead of {name!r}")
            body = message.get("body")
            return body if isinstance(body, dict) else {}
        await pieces.wait()
    raise ConnectionResetError("closed before it proved itself")


async def _send(connection: socket.socket, name: str, body: Message) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, wire.encode(wire.event(1, name, body)))


async def _refuse(connection: socket.socket, reason: str) -> ConnectionRefusedError:
    """Send the reason to the peer, and return the error to raise."""
    await _send(connection, messages.REFUSED, {"reason": reason})
    return ConnectionRefusedError(reason)
