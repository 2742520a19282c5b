"""How a process and the gateway prove to each other that they hold the cluster's token, without sending it.

    process -> gateway   hello   {nonce}
    gateway -> process   proof   {nonce, proof = HMAC(token, "gateway" + both nonces)}
    process -> gateway   proof   {proof = HMAC(token, "process" + both nonces), process: what it is}
    gateway -> process   welcome {}

After that the connection is pydevd's own. Pure; both sides use it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

NONCE_BYTES = 32


def new_nonce() -> str:
    """Return a fresh nonce as hexadecimal text."""
    return secrets.token_hex(NONCE_BYTES)


def gateway_proof(token: str, process_nonce: str, gateway_nonce: str) -> str:
    """Return what only a gateway with the token can say."""
    return _proof(token, "gateway", process_nonce, gateway_nonce)


def process_proof(token: str, process_nonce: str, gateway_nonce: str) -> str:
    """Return what only a process with the token can say."""
    return _proof(token, "process", process_nonce, gateway_nonce)


def same(expected: str, given: object) -> bool:
    """Compare two proofs or tokens in constant time."""
    return isinstance(given, str) and hmac.compare_digest(expected.encode(), given.encode())


def _proof(token: str, role: str, process_nonce: str, gateway_nonce: str) -> str:
    text = "\0".join(("raydebug dial-in 1", role, process_nonce, gateway_nonce))
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()
