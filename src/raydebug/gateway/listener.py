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
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from raydebug.gateway.background import keep

log = logging.getLogger("raydebug.gateway")

ACCEPTS_PER_TURN = 64
BACKLOG = 4096  # connections that wait in the kernel, which limits it to net.core.somaxconn
NO_FILES_PAUSE_S = 0.5  # when no file descriptor is free
MANY_FILES = 2**20  # where their number has no limit
MAX_UNPROVEN = 2048  # of one kind, at one time
# Shares of the files that may be open, in sixteenths: three budgets of unproven connections, those of processes and of
# clients, and pidfds. One is left for the gateway itself.
UNPROVEN_SHARE, PROCESSES_SHARE, CLIENTS_SHARE, PIDFD_SHARE = 1, 8, 2, 2
# For peers without the token that send single bytes: a wake-up for each byte of a thousand such peers would occupy a
# core. The first message of a peer with the token arrives whole.
FIRST_PIECE_WAIT_S = 0.05


def files_of(share: int) -> int:
    """Return how many files a share is, in sixteenths of those that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (MANY_FILES if files == resource.RLIM_INFINITY else files) * share // 16


class Proven:
    """A budget of connections that have shown the token; those of one job have three quarters of it."""

    def __init__(self, share: int) -> None:
        self._most = files_of(share)
        self._jobs: weakref.WeakKeyDictionary[asyncio.StreamWriter, object] = weakref.WeakKeyDictionary()

    def add(self, writer: asyncio.StreamWriter, job: object = None) -> None:
        """Count a connection.

        Raises:
            ConnectionRefusedError: there are too many.
        """
        if len(self._jobs) >= self._most * 3 // 4:
            jobs = [of for one, of in self._jobs.items() if not one.is_closing()]
            if len(jobs) >= self._most:
                raise ConnectionRefusedError(f"there are {self._most} connections already")
            if job is not None and jobs.count(job) >= self._most * 3 // 4:
                raise ConnectionRefusedError(f"its job has {len(jobs)} connections already")
        self._jobs[writer] = job

    def describe(self) -> dict[str, int]:
        """Return how many there are, and the most."""
        return {"now": sum(not one.is_closing() for one in self._jobs), "most": self._most}


class Unproven:
    """A budget of connections that have not shown the token: beyond the limit the oldest one is closed."""

    def __init__(self) -> None:
        self._limit = min(MAX_UNPROVEN, max(8, files_of(UNPROVEN_SHARE)))
        self._tasks: dict[asyncio.Task[Any], str] = {}  # oldest first

    @contextlib.contextmanager
    def holding(self, peer: str) -> Iterator[Callable[[], None]]:
        """Count the calling task's connection while it is unauthenticated; the task of a displaced one is cancelled.

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


class Place(NamedTuple):
    """Where to listen; port 0 takes any free one.

    `fd` is a socket that listens there already, of the supervisor, which keeps the port while no gateway runs.
    """

    host: str
    port: int
    fd: int | None


class Listener:
    """Accepts the connections of one port.

    Args:
        place: where to listen.
        serve: called with each connection and its peer's address, in a task of its own. The connection is closed
            when it returns, unless `streams_of` has taken it.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, place: Place, serve: Callable[[socket.socket, str], Awaitable[None]]) -> None:
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        is_open = place.fd is not None
        self._socket = socket.socket(fileno=place.fd) if is_open else socket.create_server(place[:2], family=family)
        self._socket.listen(BACKLOG)
        self._socket.setblocking(False)
        self._serve = serve
        self._loop = asyncio.get_running_loop()
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
            keep(self._run(connection, str(address[0])))

    async def _run(self, connection: socket.socket, peer: str) -> None:
        try:
            await self._serve(connection, peer)
        except (OSError, asyncio.CancelledError):
            pass  # closed by the peer, silent for too long (TimeoutError), displaced, or the gateway shuts down
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
