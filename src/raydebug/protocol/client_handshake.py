r"""How one of raydebug's own clients and the gateway prove to each other that they hold the token, without sending it.

While the gateway is down another user of the host can take its port; from a client he gets proofs, and no token.

    client -> gateway   its nonce, HMAC(token, "client hello" + its nonce)
    gateway -> client   its nonce, HMAC(token, "gateway to client" + both nonces)
    client -> gateway   HMAC(token, "client" + both nonces), and at once its HTTP request, or DAP

Each step is one line that begins with MARK, and an empty line. The proofs name their role, so that none of them is of
use at the port where processes dial in. Debuggers of others send the token itself, in `attach` or in a header of HTTP.

>>> line("one", "two"), words(line("one", "two")), words(b"HTTP/1.1 400 Bad Request")
(b'RAYDEBUG one two\r\n\r\n', ['one', 'two'], [])
"""

from __future__ import annotations

from raydebug.protocol import wire

MARK, END = b"RAYDEBUG ", b"\r\n\r\n"
MAX_BYTES = 256  # of a line
AS_HELLO, AS_GATEWAY, AS_CLIENT = "client hello", "gateway to client", "client"  # roles of the proofs
REFUSED = "refused"
HINT = b"raydebug gateway: this port speaks DAP and HTTP; attach with `raydebug attach`.\r\n"
"""What a gateway says to bytes that it does not know; an older one does not know MARK."""


class NotProven(ConnectionError):
    """What answers at the gateway's port has not shown that it holds the token.

    Args:
        cause: why.
        fix: what the user can do.
        code: of the error.
    """

    def __init__(self, cause: str, fix: str, code: str) -> None:
        super().__init__(cause)
        self.fix, self.code = fix, code


def line(*given: str) -> bytes:
    """Return one step as bytes."""
    return MARK + " ".join(given).encode("ascii") + END


def words(data: bytes) -> list[str]:
    """Return the words of one step; none of anything else."""
    return data[len(MARK) :].decode("ascii", "replace").split() if data.startswith(MARK) else []


def is_whole(data: bytes) -> bool:
    """Return whether no more bytes have to be read of a step."""
    return END in data or len(data) >= MAX_BYTES


class ClientHandshake:
    """The client's side, for one connection.

    Args:
        token: the cluster's.
    """

    def __init__(self, token: str) -> None:
        self._token, self._mine = token, wire.new_nonce()

    @property
    def hello(self) -> bytes:
        """The bytes to begin with."""
        return line(self._mine, wire.proof(self._token, AS_HELLO, self._mine))

    def prove(self, answer: bytes) -> bytes:
        """Return the bytes to send after the gateway's answer, before the request.

        Raises:
            NotProven: the answer does not come from a gateway with this token.
            ConnectionResetError: there is no answer.
        """
        if not answer:
            raise ConnectionResetError("it closed the connection without a response")
        match words(answer):
            case [theirs, proof] if wire.is_nonce(theirs):
                if wire.is_same(wire.proof(self._token, AS_GATEWAY, self._mine, theirs), proof):
                    return line(wire.proof(self._token, AS_CLIENT, self._mine, theirs))
            case [word] if word == REFUSED:
                cause = "the token is not this cluster's"
                fix = "take the cluster's own name (`--name`); `raydebug ps` names its token file"
                raise NotProven(cause, fix, "auth.wrong-token")
        if answer.startswith(HINT[:20]):
            cause = "it is a gateway of an older raydebug, which cannot prove that it holds the token; nothing was sent"
            raise NotProven(cause, "restart the cluster: `raydebug down`, then `raydebug up`", "gateway.older")
        cause = "what listens there has not proved that it holds the cluster's token; nothing was sent"
        fix = "find out which program has the port; `raydebug up` starts a gateway that is down"
        raise NotProven(cause, fix, "gateway.not-proven")
