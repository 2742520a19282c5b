"""Which variables hold secrets: their values reach no log, no command line and no file of ours."""

from __future__ import annotations

from collections.abc import Mapping

SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
HIDDEN = "(hidden)"


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the values of secret ones hidden; a path to a token is no secret.

    >>> without_secrets({"HF_TOKEN": "x", "RAY_AUTH_TOKEN_PATH": "/t", "RANK": "0"})
    {'HF_TOKEN': '(hidden)', 'RAY_AUTH_TOKEN_PATH': '/t', 'RANK': '0'}
    """
    return {name: HIDDEN if is_secret(name) else value for name, value in variables.items()}


def is_secret(name: str) -> bool:
    """Say whether the value of a variable of this name is a secret."""
    return any(word in name.upper() for word in SECRET_WORDS) and not name.upper().endswith("_PATH")
