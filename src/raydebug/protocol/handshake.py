"""Mutual proof of a process and the gateway that they hold the cluster's token, without sending it.

    process -> gateway   hello   {nonce, proof = HMAC(token, "hello" + its nonce)}
    gateway -> process   proof   {nonce, proof = HMAC(token, "gateway" + both nonces)}
    process -> gateway   proof   {proof = HMAC(token, "process" + both nonces), process: ProcessRecord}
    gateway -> process   welcome {}

After that the connection belongs to pydevd. The proof in the first packet shows that its sender holds the token, so the
gateway can close other connections at once; a replayed packet is useless, because the second proof covers the gateway's
own nonce. Pure; both sides use it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

NONCE_BYTES = 32


def new_nonce() -> str:
    """Return a fresh nonce as hexadecimal text."""
    return secrets.token_hex(NONCE_BYTES)


def is_nonce(text: str) -> bool:
    """Say whether a text has the form of a nonce."""
    return len(text) == 2 * NONCE_BYTES and text.isascii() and text.isalnum()


def hello_proof(token: str, process_nonce: str) -> str:
    """Return the proof in the first packet of a process."""
    return _proof(token, "hello", process_nonce, "")


def gateway_proof(token: str, process_nonce: str, gateway_nonce: str) -> str:
    """Return the proof that only a gateway with the token can make."""
    return _proof(token, "gateway", process_nonce, gateway_nonce)


def process_proof(token: str, process_nonce: str, gateway_nonce: str) -> str:
    """Return the proof that only a process with the token can make."""
    return _proof(token, "process", process_nonce, gateway_nonce)


def same(expected: str, given: object) -> bool:
    """Compare two proofs or tokens in constant time; `given` may be any JSON value, lone surrogates included."""
    return isinstance(given, str) and hmac.compare_digest(expected.encode(), given.encode(errors="surrogatepass"))


def _proof(token: str, role: str, process_nonce: str, gateway_nonce: str) -> str:
    text = "\0".join(("raydebug dial-in 1", role, process_nonce, gateway_nonce))
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()
