"""Messages between starter, server and zygote: a length, a dictionary, and open files (SCM_RIGHTS) on a unix socket.

Both ends belong to one installation and one user, so marshal, which Python has loaded already, is sufficient.
"""

from __future__ import annotations

import _socket  # the C part alone: `socket` costs a starting process 4 ms
import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

LENGTH_BYTES = 8
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_FILES = 250  # SCM_MAX_FD of Linux is 253
_FD_BYTES = 4


def send(sock: Any, message: Message, files: list[int] | None = None) -> None:
    """Send a whole message with open files."""
    body = marshal.dumps(message)
    data = len(body).to_bytes(LENGTH_BYTES, "little") + body
    rights = b"".join(fd.to_bytes(_FD_BYTES, "little") for fd in files or ())
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else []
    sent = sock.sendmsg([data], ancillary)
    if sent < len(data):
        sock.sendall(data[sent:])


def receive(sock: Any) -> tuple[Message, list[int]] | None:
    """Receive a message with its open files; None at the end of the stream.

    Raises:
        OSError: the stream ended within a message, or the message is too long.
    """
    head, ancillary, _, _ = sock.recvmsg(LENGTH_BYTES, _socket.CMSG_SPACE(MAX_FILES * _FD_BYTES))
    files = [
        int.from_bytes(data[at : at + _FD_BYTES], "little")
        for level, kind, data in ancillary
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for at in range(0, len(data) - len(data) % _FD_BYTES, _FD_BYTES)
    ]
    if not head:
        return None
    head += _exactly(sock, LENGTH_BYTES - len(head))
    length = int.from_bytes(head, "little")
    if length > MAX_BODY_BYTES:
        raise OSError(f"a message of {length} bytes")
    return marshal.loads(_exactly(sock, length)), files  # noqa: S302 - see the module's first lines


def _exactly(sock: Any, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise OSError("the stream ended within a message")
        data += piece
    return data
